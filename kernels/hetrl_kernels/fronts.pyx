# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All declared options of a task on given devices, their Pareto fronts, and the fastest of them, for the exact solver.

Nothing is cut but what a bound or an option that is as good in everything rules out.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport FSDP, RESIDENT, SHARED
from hetrl_kernels.options cimport Candidate, Finder, Option
from hetrl_kernels.replica_times cimport ReplicaTimes
from hetrl_kernels.tables cimport GENERATE, PHASE_SYNC, SCORE, TRAIN, Tables, fmax, fmin
from hetrl_kernels.timing cimport Replica, TrainTime, score_fluid

import cython
import numpy as np

cdef int[5] TRAIN_MICRO_BATCHES = [1, 2, 4, 8, 16]
cdef int[3] SCORE_SHAPES = [0, 2, 4]

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
        ``[A]`` the same with the weight syncs the task takes part in.
    """

    def __init__(self, Tables tables, int[:, ::1] allowed, int engine_limit, double[::1] slack, double[::1] far):
        Finder.__init__(self, tables, allowed, 1 << 30, engine_limit)
        self.slack = slack
        self.far = far
        self.splits = {}
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

    cdef bint same_links(self, Option a, Option b) noexcept:
        """Whether transfers and syncs cost the same for both: equal devices used, equal bytes received."""
        if memcmp(a.used, b.used, self.t.num_nodes * sizeof(int)) != 0 or (b.weights == SHARED and a.weights != SHARED):
            return False
        if not self.t.task_trained[a.task] or self.t.task_kind[a.task] == TRAIN or a.layout is b.layout:
            return True
        cdef double* received = <double*>calloc(2 * self.t.num_nodes, sizeof(double))
        cdef double here = self.received(a, received), there = self.received(b, received + self.t.num_nodes)
        cdef bint same = here <= there and memcmp(received, received + self.t.num_nodes, self.t.num_nodes * sizeof(double)) == 0
        free(received)
        return same

    cdef double received(self, Option option, double* received) noexcept:
        """Bytes of weights that every node receives in a sync; returns the seconds of the slowest device's own link."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef double whole = t.transfer_weights[option.task], each, local = 0.0
        cdef int i, d, slot, first, node, model = t.task_model[option.task]
        for i in range(layout.num_replicas):
            first = 0
            for slot in range(layout.first[i], layout.first[i + 1]):
                node = layout.node[slot]
                each = t.stage_parameters(model, first, layout.layers[slot]) * t.bytes_per_element / layout.degree
                first += layout.layers[slot]
                for d in range(layout.degree):
                    received[node] = fmin(whole, received[node] + each)
                local = fmax(local, t.link_latency[node, node] + each / t.link_bandwidth[node, node])
        return local

    def sync_floor(self, Option option):
        """Seconds that a sync into this task takes at least, whatever trains on other devices.

        Nodes that are all the group's own receive over the network, from nodes that are not.
        """
        cdef Tables t = self.t
        cdef Devices devices = option.layout.devices
        cdef double* received = <double*>calloc(t.num_nodes, sizeof(double))
        cdef double local = self.received(option, received), slowest = 0.0, total = 0.0, card = 0.0, worst = 0.0
        cdef double latency, bandwidth
        cdef int node, other, sources = 0, kind
        for node in range(t.num_nodes):
            if devices.counts[node] < t.node_devices[node]:
                sources += 1
                card = fmax(card, t.node_nic[node])
        for node in range(t.num_nodes):
            if received[node] == 0 or devices.counts[node] < t.node_devices[node]:
                continue
            latency, bandwidth = INFINITY, 0.0
            for other in range(t.num_nodes):
                if devices.counts[other] < t.node_devices[other]:
                    latency = fmin(latency, t.link_latency[other, node])
                    bandwidth = fmax(bandwidth, t.link_bandwidth[other, node])
            total += received[node]
            if sources:
                slowest = fmax(slowest, latency + received[node] / bandwidth)
        if total > 0 and sources:
            slowest = fmax(slowest, total / sources / card)
        for node in range(t.num_nodes):
            if option.used[node]:
                kind = t.node_type[node]
                worst = fmax(worst, t.calibration[kind, PHASE_SYNC, 0] * (slowest + local) + t.calibration[kind, PHASE_SYNC, 1])
        free(received)
        return worst

    cdef bint replaces(self, Option a, double seconds, Option b) noexcept:
        """Whether ``a`` is as good as ``b`` if that took ``seconds``, in every group and on every node."""
        if a.seconds > seconds or not self.leaner(a, b):
            return False
        return a.seconds + self.far[a.task] <= seconds or self.same_links(a, b)

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
        cdef Candidate* candidates = NULL
        cdef int number, room = 0, l, i, s, c, kind = self.t.task_kind[task]
        cdef double best = INFINITY, moved, rate, active, idle, host
        cdef double* nothing
        cdef Option option
        cdef Layout layout
        cdef Replica replica
        self.splits.clear()
        if devices.num_devices == 0:
            return INFINITY
        found = self.layouts_of(task, devices)
        if kind == TRAIN:
            for l in range(len(found)):
                number = 0
                self.cutoff = best
                self.train_candidates(task, found[l], l, &candidates, &number, &room, INFINITY)
                self.cutoff = INFINITY
                for i in range(number):
                    if candidates[i].bound < best:
                        option = self.train_variant(task, found[l], &candidates[i])
                        moved = self.train_memory(option)
                        self.train_cost(option, moved)
                        best = fmin(best, option.seconds)
            free(candidates)
        elif kind == SCORE:
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
                    option = self.score_option(task, layout, SCORE_SHAPES[s], RESIDENT, [], 0.0, &active, &idle, &host)
                    if option is not None:
                        best = fmin(best, option.seconds)
        else:
            nothing = <double*>calloc(devices.num_cells, sizeof(double))
            for layout in found:
                option = self.engine(task, layout, RESIDENT, nothing, best, None)
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


cdef bint shareable(Option trainer) noexcept:
    return trainer.sharding != FSDP and trainer.weights == RESIDENT


def _seconds_of(Option option):
    return option.seconds
