# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""When one option is as good as another whatever else a plan holds, weight syncs from and to other groups included."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from hetrl_kernels.exact_fastest cimport FastestFinder
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport SHARED
from hetrl_kernels.options cimport Option
from hetrl_kernels.tables cimport PHASE_SYNC, TRAIN, Tables, fmax, fmin
from hetrl_kernels.transfers cimport add_received, sync_from

from itertools import product
from math import prod

import numpy as np

cdef enum:
    MAX_SOURCES = 4096  # sets of nodes that weights may come from; where there are more, options are not compared by their syncs


cdef class OptionOrder(FastestFinder):
    """Compares options of a task.

    Parameters
    ----------
    slack
        ``[A]`` seconds by which a task's data transfers can differ between any two of its options.
    far
        ``[A]`` the same with the weight syncs that start from a training task; inf where a step may wait for these syncs
        without waiting for the task.
    leads
        ``[A]`` whether all that comes later in a step waits for this task.
    node_class
        ``[N]`` class of every node; nodes of a class may change places.
    """

    def __init__(
        self, Tables tables, int[:, ::1] allowed, int engine_limit, double[::1] slack, double[::1] far, int[::1] leads,
        int[::1] node_class):
        FastestFinder.__init__(self, tables, allowed, engine_limit)
        self.slack, self.far, self.leads, self.node_class = slack, far, leads, node_class
        self.sources = {}
        self.syncs = {}
        self.hosts_matter = True

    cdef bint leaner(self, Option a, Option b) noexcept:
        """Whether ``a`` holds no more than ``b`` anywhere, at any time."""
        cdef int cell
        for cell in range(4 * a.layout.devices.num_cells):  # active, idle, sync, host
            if a.active[cell] > b.active[cell]:
                return False
        return True

    cdef bint same_nodes(self, Option a, Option b) noexcept:
        """Whether two options use devices of the same nodes."""
        cdef int node
        for node in range(self.t.num_nodes):
            if (a.used[node] > 0) != (b.used[node] > 0):
                return False
        return True

    cdef bint as_fast(self, Option a, double seconds, Option b, bint own_sources, bint own_targets):
        """Whether a step with ``a`` is no slower than with ``b`` if that took ``seconds``, in every group.

        Transfers may differ by the task's slack, which counts since they follow or precede the task. Syncs count unless
        they stay in the group: those into the task by the nodes that weights may come from (with ``own_sources`` the
        group's own, too), those out of it, with ``own_targets``, by its nodes.
        """
        cdef double excess
        if not self.no_slower(a, seconds, b):
            return False
        if not self.t.task_trained[a.task] or a.weights == SHARED:
            return True
        if self.t.task_kind[a.task] == TRAIN:
            return not own_targets or a.seconds + self.far[a.task] <= seconds or self.same_nodes(a, b)
        if b.weights == SHARED:
            return False
        excess = self.sync_excess(a, b, own_sources)
        return excess <= 0 or (self.leads[a.task] and a.seconds + self.slack[a.task] + excess <= seconds)

    cdef bint no_slower(self, Option a, double seconds, Option b) noexcept:
        """Whether ``a`` with its data transfers is no slower than ``b`` with its own if that took ``seconds``."""
        if memcmp(a.used, b.used, self.t.num_nodes * sizeof(int)) == 0:
            return a.seconds <= seconds
        return a.seconds + self.slack[a.task] <= seconds

    cdef double sync_excess(self, Option a, Option b, bint own_sources):
        """Seconds by which a sync into ``a`` may take longer than into ``b``, wherever the weights come from."""
        cdef Py_ssize_t i, number
        cdef double excess = -INFINITY
        if a.layout is b.layout:
            return 0.0
        first, second = self.sync_profile(a), self.sync_profile(b)
        if first is None or second is None:
            return INFINITY
        cdef double* x = <double*><char*>(<bytes>first[1])
        cdef double* y = <double*><char*>(<bytes>second[1])
        number = len(<bytes>first[1]) // sizeof(double) if own_sources else first[2]
        for i in range(number):
            excess = fmax(excess, x[i] - y[i])
        return fmax(excess, 0.0) if number else 0.0

    cdef tuple sync_profile(self, Option option):
        """Layout, seconds of a sync by where the weights may come from, for how many of these from other groups, and their least.

        None where they may come from too many sets of nodes.
        """
        cdef double[::1] seconds
        cdef bytes nodes
        cdef int i
        key = (id(option.layout), option.task)
        found = self.syncs.get(key)
        if found is None:
            sources = self.sources_of(option.task, option.layout.devices)
            if sources is None:
                return None
            foreign, own = sources
            seconds = np.empty(len(foreign) + len(own))
            for i, nodes in enumerate(foreign + own):
                seconds[i] = sync_from(self.t, <int*><char*>nodes, option)
            least = min(seconds[: len(foreign)], default=0.0)
            found = self.syncs[key] = (option.layout, np.asarray(seconds).tobytes(), len(foreign), least)
        return found

    cdef tuple sources_of(self, int task, Devices devices):
        """Sets of nodes that may hold the trained weights, of other groups, up to the order of equal nodes, and of this one."""
        cdef int node, kind, trainer
        cdef dict free = {}
        cdef Layout layout
        if self.place != devices.key:
            self.sources.clear()
            self.syncs.clear()
            self.place = devices.key
        found = self.sources.get(task)
        if found is not None:
            return found
        ways = []
        for node in range(self.t.num_nodes):
            if devices.counts[node] == 0:
                free.setdefault(self.node_class[node], []).append(node)
            elif devices.counts[node] < self.t.node_devices[node]:
                ways.append([(), (node,)])
        for kind in free:
            ways.append([tuple(free[kind][:number]) for number in range(len(free[kind]) + 1)])
        if prod([len(each) for each in ways]) > MAX_SOURCES:
            return None
        foreign = [_marks(sum(chosen, ()), self.t.num_nodes) for chosen in product(*ways)]
        own = []
        for trainer in range(self.t.num_tasks):
            if self.t.task_kind[trainer] == TRAIN and self.t.task_role[trainer] == self.t.task_role[task]:
                for layout in self.layouts_of(trainer, devices):
                    own.append(_marks([layout.node[node] for node in range(layout.num_slots)], self.t.num_nodes))
        empty = _marks((), self.t.num_nodes)
        found = self.sources[task] = ([each for each in foreign if each != empty], sorted(set(own)))
        return found

    cpdef double sync_floor(self, Option option):
        """Seconds that a sync into this task takes at least, whatever trains on other devices."""
        profile = self.sync_profile(option)
        return 0.0 if profile is None else profile[3]

    cpdef double least_sync(self, int task, bytes counts):
        """Seconds that a sync into a task takes at least on these devices, whatever its layout and whatever trains elsewhere.

        Nodes that are all the group's own receive over the network, from nodes that are not; the others may hold the weights.
        """
        cdef Tables t = self.t
        cdef Devices devices = self.devices(counts)
        cdef Layout layout
        cdef int node, other, sources = 0
        cdef double card = 0.0, least = INFINITY, scale = INFINITY, fixed = INFINITY, total, slowest
        cdef double* received = <double*>calloc(3 * t.num_nodes, sizeof(double))
        cdef double* latency = received + t.num_nodes
        cdef double* bandwidth = latency + t.num_nodes
        for node in range(t.num_nodes):
            latency[node] = INFINITY
            if devices.counts[node]:
                scale = fmin(scale, t.calibration[t.node_type[node], PHASE_SYNC, 0])
                fixed = fmin(fixed, t.calibration[t.node_type[node], PHASE_SYNC, 1])
            if devices.counts[node] < t.node_devices[node]:
                sources += 1
                card = fmax(card, t.node_nic[node])
                continue
            for other in range(t.num_nodes):
                if devices.counts[other] < t.node_devices[other]:
                    latency[node] = fmin(latency[node], t.link_latency[other, node])
                    bandwidth[node] = fmax(bandwidth[node], t.link_bandwidth[other, node])
        for layout in self.layouts_of(task, devices) if sources else []:
            for node in range(t.num_nodes):
                received[node] = 0.0
            add_received(t, task, layout, NULL, received)
            total = slowest = 0.0
            for node in range(t.num_nodes):
                if received[node] > 0 and bandwidth[node] > 0:
                    total += received[node]
                    slowest = fmax(slowest, latency[node] + received[node] / bandwidth[node])
            least = fmin(least, fmax(slowest, total / sources / card))
        free(received)
        return scale * least + fixed if least < INFINITY else 0.0

    cdef bint replaces(self, Option a, double seconds, Option b):
        """Whether ``a`` is as good as ``b`` if that took ``seconds``, in every group and on every node."""
        return a.seconds <= seconds and self.leaner(a, b) and self.as_fast(a, seconds, b, True, True)


cdef bytes _marks(nodes, int number):
    """One int per node, 1 for those that are listed."""
    marks = np.zeros(number, dtype=np.int32)
    marks[list(nodes)] = 1
    return marks.tobytes()
