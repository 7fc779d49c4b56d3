# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All declared options of a task on given devices, their Pareto fronts, and the fastest of them, for the exact solver.

Nothing is cut but what a bound or an option that is as good in everything rules out.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy

from hetrl_kernels.train_options cimport Candidate
from hetrl_kernels.transfers cimport sync_from
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport FSDP, RESIDENT, SHARED
from hetrl_kernels.finder cimport Finder
from hetrl_kernels.options cimport Option
from hetrl_kernels.replica_times cimport ReplicaTimes
from hetrl_kernels.tables cimport GENERATE, PHASE_SYNC, SCORE, TRAIN, Tables, fmax, fmin
from hetrl_kernels.timing cimport Replica, TrainTime, score_fluid

from itertools import product
from math import prod

import numpy as np

cdef int[5] TRAIN_MICRO_BATCHES = [1, 2, 4, 8, 16]
cdef int[3] SCORE_SHAPES = [0, 2, 4]
cdef enum:
    MAX_SOURCES = 4096  # sets of nodes that weights may come from; where there are more, options are not compared by their syncs

cdef int by_bound(const void* a, const void* b) noexcept nogil:
    cdef const Candidate* x = <const Candidate*>a
    cdef const Candidate* y = <const Candidate*>b
    if x.bound != y.bound:
        return -1 if x.bound < y.bound else 1
    if x.layout != y.layout:
        return -1 if x.layout < y.layout else 1
    if x.micro_batch != y.micro_batch:
        return x.micro_batch - y.micro_batch
    if x.recompute != y.recompute:
        return x.recompute - y.recompute
    if x.sharding != y.sharding:
        return x.sharding - y.sharding
    return x.residency - y.residency


cdef class ExactFinder(Finder):
    """Options without heuristic cuts.

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
        Finder.__init__(self, tables, allowed, 1 << 30, engine_limit)
        self.slack, self.far, self.leads, self.node_class = slack, far, leads, node_class
        self.refills = True
        self.splits = {}
        self.sources = {}
        self.syncs = {}
        self.cutoff = INFINITY
        self.hosts_matter = True

    # --- shares ------------------------------------------------------------------------------------------------

    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept:
        cdef ReplicaTimes times = self.fill.times_of(option.task, option.layout, c, option.shape, option.micro_batch, option.recompute, 0.0)
        return times.training(prompts)

    cdef double shares(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, int* base, int* extra) except? -1.0:
        """The same as the search's; kept while a layout lives, since many options differ in other things only."""
        cdef double slowest
        cdef bytes kept
        cdef int size = 2 * layout.num_classes * sizeof(int)  # extra follows base in all callers
        if kv != NULL:
            return Finder.shares(self, task, layout, shape, micro_batch, recompute, kv, base, extra)
        key = (id(layout), task, shape, micro_batch, recompute)
        found = self.splits.get(key)
        if found is not None:
            kept = found[2]
            memcpy(base, <char*>kept, size)
            return found[1]
        slowest = Finder.shares(self, task, layout, shape, micro_batch, recompute, kv, base, extra)
        self.splits[key] = (layout, slowest, (<char*>base)[:size])
        return slowest

    # --- what options are compared in ----------------------------------------------------------------------------

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
        cdef int node, other, i, d, slot, first, sources = 0, model = t.task_model[task]
        cdef double whole = t.transfer_weights[task], card = 0.0, least = INFINITY, scale = INFINITY, fixed = INFINITY, each, total, slowest
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
            for i in range(layout.num_replicas):
                first = 0
                for slot in range(layout.first[i], layout.first[i + 1]):
                    node = layout.node[slot]
                    each = t.stage_parameters(model, first, layout.layers[slot]) * t.bytes_per_element / layout.degree
                    first += layout.layers[slot]
                    for d in range(layout.degree):
                        received[node] = fmin(whole, received[node] + each)
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

    # --- options -----------------------------------------------------------------------------------------------

    def declared(self, int task, bytes counts, Option trainer=None):
        """Every option of the declared space that fits with the devices to itself, costed; nothing is pruned.

        Engines come with all memory to themselves. With ``trainer`` the options that score with its weights.
        """
        cdef Devices devices = self.devices(counts)
        cdef list result = []
        cdef int kind = self.t.task_kind[task]
        if trainer is not None:
            return self.scoring(task, [trainer.layout], (SHARED,), INFINITY) if shareable(trainer) else []
        found = self.layouts_of(task, devices)
        if kind == TRAIN:
            result = self.training(task, found, INFINITY, None)
        elif kind == SCORE:
            result = self.scoring(task, found, self.score_residencies(devices), INFINITY)
        else:
            result = self.engines(task, devices, INFINITY)
        return result

    cdef list training(self, int task, list found, double cutoff, list front):
        """Options below ``cutoff`` seconds, in the order of their bounds; with ``front`` only those it does not replace."""
        cdef Candidate* candidates = NULL
        cdef int number = 0, room = 0, l, i
        cdef double moved
        cdef list result = []
        cdef Option option, other
        self.cutoff = cutoff
        for l in range(len(found)):
            self.train_candidates(task, found[l], l, &candidates, &number, &room, INFINITY)
        self.cutoff = INFINITY
        qsort(candidates, number, sizeof(Candidate), by_bound)
        for i in range(number):
            option = self.train_variant(task, found[candidates[i].layout], &candidates[i])
            moved = self.train_memory(option)
            if front is not None:
                for each in front:
                    other = each
                    if self.replaces(other, candidates[i].bound, option):
                        break
                else:
                    self.train_cost(option, moved)
                    if option.seconds < cutoff:
                        self.enter(front, option)
                continue
            self.train_cost(option, moved)
            if option.seconds < cutoff:
                result.append(option)
        free(candidates)
        return result if front is None else front

    cdef enter(self, list front, Option option):
        """Add an option to a front unless it is replaced; options that it replaces go."""
        cdef Option other
        for each in front:
            other = each
            if self.replaces(other, option.seconds, option):
                return
        front[:] = [each for each in front if not self.replaces(option, (<Option>each).seconds, <Option>each)]
        front.append(option)

    cdef list scoring(self, int task, list found, tuple residencies, double cutoff):
        cdef list result = []
        cdef Layout layout
        cdef Option option
        cdef int s, c, weights
        cdef double rate, active, idle, host
        cdef Replica replica
        for layout in found:
            for s in range(3):
                rate = 0.0
                for c in range(layout.num_classes):
                    replica = layout.replica(layout.representative[c])
                    rate += layout.class_size[c] / score_fluid(
                        self.t, task, layout.degree_index, layout.degree, SCORE_SHAPES[s], TRAIN_MICRO_BATCHES[SCORE_SHAPES[s]], &replica
                    )
                self.num_candidates += len(residencies)
                if self.t.num_prompts / rate >= cutoff:
                    continue
                for weights in residencies:
                    option = self.score_option(task, layout, SCORE_SHAPES[s], weights, [], 0.0, &active, &idle, &host)
                    if option is not None and option.seconds < cutoff:
                        result.append(option)
        return result

    cdef list engines(self, int task, Devices devices, double cutoff):
        """Engines with all memory to themselves: lower bounds of their time beside others."""
        cdef double* nothing = <double*>calloc(devices.num_cells, sizeof(double))
        cdef list result = []
        cdef Option option
        for layout in self.layouts_of(task, devices):
            self.num_candidates += 1
            option = self.engine(task, layout, RESIDENT, nothing, cutoff, None)
            if option is not None:
                result.append(option)
        free(nothing)
        result.sort(key=_seconds_of)
        return result

    cpdef list front(self, int task, bytes counts, double cutoff):
        """Options below ``cutoff`` seconds of which none replaces another, fastest first; engines all of them."""
        cdef Devices devices = self.devices(counts)
        cdef list result = []
        cdef int kind = self.t.task_kind[task]
        self.splits.clear()
        if devices.num_devices == 0:
            return []
        if kind == GENERATE:
            return self.engines(task, devices, cutoff)
        found = self.layouts_of(task, devices)
        if kind == TRAIN:
            self.training(task, found, cutoff, result)
        else:
            options = self.scoring(task, found, self.score_residencies(devices), cutoff)
            options.sort(key=_seconds_of)
            for option in options:
                self.enter(result, option)
        result.sort(key=_seconds_of)
        return result

    cpdef list shared_pairs(self, int trainer, int scorer, bytes counts, double train_cutoff, double score_cutoff):
        """Training options with the options of another task that scores with their weights; none replaces another."""
        cdef Devices devices = self.devices(counts)
        cdef Candidate* candidates = NULL
        cdef int number = 0, room = 0, l, i
        cdef double moved
        cdef list found, front = [], lists
        cdef Option option, score, other, beside
        cdef bint needed, costed
        self.splits.clear()
        if devices.num_devices == 0:
            return []
        found = self.layouts_of(trainer, devices)
        lists = [None] * len(found)
        self.cutoff = train_cutoff
        for l in range(len(found)):
            self.train_candidates(trainer, found[l], l, &candidates, &number, &room, INFINITY)
        self.cutoff = INFINITY
        qsort(candidates, number, sizeof(Candidate), by_bound)
        for i in range(number):
            if candidates[i].sharding == FSDP:
                continue
            option = self.train_variant(trainer, found[candidates[i].layout], &candidates[i])
            if not shareable(option):
                continue
            l = candidates[i].layout
            if lists[l] is None:
                lists[l] = self.scoring(scorer, [found[l]], (SHARED,), score_cutoff)
            moved = self.train_memory(option)
            costed = False
            for each in lists[l]:
                score = each
                needed = True
                for other, beside in front:
                    if self.replaces(other, candidates[i].bound, option) and self.replaces(beside, score.seconds, score):
                        needed = False
                        break
                if not needed:
                    continue
                if not costed:
                    self.train_cost(option, moved)
                    costed = True
                if option.seconds >= train_cutoff:
                    break
                for other, beside in front:
                    if self.replaces(other, option.seconds, option) and self.replaces(beside, score.seconds, score):
                        needed = False
                        break
                if needed:
                    front.append((option, score))
        free(candidates)
        return front

    cpdef double fastest(self, int task, bytes counts):
        """Seconds of the fastest option with the devices to itself, inf if none fits."""
        cdef Devices devices = self.devices(counts)
        cdef int kind = self.t.task_kind[task]
        cdef double best
        self.splits.clear()
        if devices.num_devices == 0:
            return INFINITY
        found = self.layouts_of(task, devices)
        if kind == TRAIN:
            best = self.fastest_training(task, found)
        elif kind == SCORE:
            best = self.fastest_scoring(task, found)
        else:
            best = self.fastest_engine(task, devices, found)
        self.fill.cutoff = INFINITY
        return best

    cdef double fastest_training(self, int task, list found):
        cdef Candidate* candidates = NULL
        cdef int number = 0, room = 0, l, i
        cdef double best = INFINITY, moved
        cdef Option option
        for l in range(len(found)):
            self.train_candidates(task, found[l], l, &candidates, &number, &room, INFINITY)
        qsort(candidates, number, sizeof(Candidate), by_bound)
        for i in range(number):
            if candidates[i].bound >= best:
                break
            self.fill.cutoff = best
            option = self.train_variant(task, found[candidates[i].layout], &candidates[i])
            moved = self.train_memory(option)
            self.train_cost(option, moved)
            best = fmin(best, option.seconds)
        free(candidates)
        return best

    cdef double fastest_scoring(self, int task, list found):
        cdef double best = INFINITY, rate, active, idle, host
        cdef int s, c
        cdef Layout layout
        cdef Option option
        cdef Replica replica
        for layout in found:
            for s in range(3):
                rate = 0.0
                for c in range(layout.num_classes):
                    replica = layout.replica(layout.representative[c])
                    rate += layout.class_size[c] / score_fluid(
                        self.t, task, layout.degree_index, layout.degree, SCORE_SHAPES[s], TRAIN_MICRO_BATCHES[SCORE_SHAPES[s]], &replica
                    )
                if self.t.num_prompts / rate >= best:
                    continue
                self.fill.cutoff = best
                option = self.score_option(task, layout, SCORE_SHAPES[s], RESIDENT, [], 0.0, &active, &idle, &host)
                if option is not None:
                    best = fmin(best, option.seconds)
        return best

    cdef double fastest_engine(self, int task, Devices devices, list found):
        cdef double* nothing = <double*>calloc(devices.num_cells, sizeof(double))
        cdef double best = INFINITY
        cdef int i
        cdef Option option
        for _, i in sorted([(self.engine_guess(task, found[i]), i) for i in range(len(found))]):
            self.fill.cutoff = best
            option = self.engine(task, found[i], RESIDENT, nothing, best, None)
            if option is not None:
                best = fmin(best, option.seconds)
        free(nothing)
        return best

    cpdef double fastest_shared(self, int scorer, int trainer, bytes counts):
        """Seconds of the fastest scoring with the weights of ``trainer`` on any of its layouts, memory left aside."""
        cdef Devices devices = self.devices(counts)
        cdef double best = INFINITY, rate
        cdef int s, c
        cdef int* base
        cdef Layout layout
        cdef Replica replica
        self.splits.clear()
        if devices.num_devices == 0:
            return INFINITY
        for layout in self.layouts_of(trainer, devices):
            for s in range(3):
                rate = 0.0
                for c in range(layout.num_classes):
                    replica = layout.replica(layout.representative[c])
                    rate += layout.class_size[c] / score_fluid(
                        self.t, scorer, layout.degree_index, layout.degree, SCORE_SHAPES[s], TRAIN_MICRO_BATCHES[SCORE_SHAPES[s]], &replica
                    )
                if self.t.num_prompts / rate >= best:
                    continue
                base = <int*>malloc(2 * layout.num_classes * sizeof(int))
                best = fmin(
                    best,
                    self.shares(
                        scorer, layout, SCORE_SHAPES[s], TRAIN_MICRO_BATCHES[SCORE_SHAPES[s]], False, NULL, base,
                        base + layout.num_classes,
                    ),
                )
                free(base)
        return best


cdef bytes _marks(nodes, int number):
    """One int per node, 1 for those that are listed."""
    marks = np.zeros(number, dtype=np.int32)
    marks[list(nodes)] = 1
    return marks.tobytes()


cdef bint shareable(Option trainer) noexcept:
    return trainer.sharding != FSDP and trainer.weights == RESIDENT


def _seconds_of(Option option):
    return option.seconds
