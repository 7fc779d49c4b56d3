# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fastest declared option of a task on given devices, without heuristic cuts."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy

from hetrl_kernels.finder cimport Finder
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport RESIDENT
from hetrl_kernels.options cimport Option
from hetrl_kernels.replica_times cimport ReplicaTimes
from hetrl_kernels.tables cimport NUM_SCORE_SHAPES, SCORE, TRAIN, Tables, fmin, micro_batch_of, score_shape
from hetrl_kernels.timing cimport TrainTime
from hetrl_kernels.train_options cimport Candidate, compare_candidates


cdef class FastestFinder(Finder):
    """Finds options as the search does, with every threshold-filled share kept while a layout lives.

    Parameters
    ----------
    tables, allowed, engine_limit
        As of `hetrl_kernels.finder.Finder`, whose fronts are not cut here.
    """

    def __init__(self, Tables tables, int[:, ::1] allowed, int engine_limit):
        Finder.__init__(self, tables, allowed, 1 << 30, engine_limit)
        self.refills = True
        self.splits = {}
        self.cutoff = INFINITY

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
        qsort(candidates, number, sizeof(Candidate), compare_candidates)
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
        cdef double best = INFINITY, active, idle, host
        cdef int s
        cdef Layout layout
        cdef Option option
        for layout in found:
            for s in range(NUM_SCORE_SHAPES):
                if self.least_scoring(task, layout, score_shape(s)) >= best:
                    continue
                self.fill.cutoff = best
                option = self.score_option(task, layout, score_shape(s), RESIDENT, [], 0.0, &active, &idle, &host)
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
        cdef double best = INFINITY
        cdef int s
        cdef int* base
        cdef Layout layout
        self.splits.clear()
        if devices.num_devices == 0:
            return INFINITY
        for layout in self.layouts_of(trainer, devices):
            for s in range(NUM_SCORE_SHAPES):
                if self.least_scoring(scorer, layout, score_shape(s)) >= best:
                    continue
                base = <int*>malloc(2 * layout.num_classes * sizeof(int))
                best = fmin(
                    best,
                    self.shares(
                        scorer, layout, score_shape(s), micro_batch_of(score_shape(s)), False, NULL, base,
                        base + layout.num_classes,
                    ),
                )
                free(base)
        return best
