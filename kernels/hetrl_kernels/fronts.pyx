# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All declared options of a task on given devices and their Pareto fronts, for the exact solver.

Nothing is cut but what a bound or an option that is as good in everything rules out.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, qsort

from hetrl_kernels.exact_order cimport OptionOrder
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport FSDP, RESIDENT, SHARED
from hetrl_kernels.options cimport Option
from hetrl_kernels.tables cimport GENERATE, NUM_SCORE_SHAPES, SCORE, TRAIN, score_shape
from hetrl_kernels.train_options cimport Candidate, compare_candidates

from operator import attrgetter


cdef class ExactFinder(OptionOrder):
    """Options without heuristic cuts."""

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
        qsort(candidates, number, sizeof(Candidate), compare_candidates)
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
        cdef int s, weights
        cdef double active, idle, host
        for layout in found:
            for s in range(NUM_SCORE_SHAPES):
                self.num_candidates += len(residencies)
                if self.least_scoring(task, layout, score_shape(s)) >= cutoff:
                    continue
                for weights in residencies:
                    option = self.score_option(task, layout, score_shape(s), weights, [], 0.0, &active, &idle, &host)
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
        result.sort(key=attrgetter("seconds"))
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
            options.sort(key=attrgetter("seconds"))
            for option in options:
                self.enter(result, option)
        result.sort(key=attrgetter("seconds"))
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
        qsort(candidates, number, sizeof(Candidate), compare_candidates)
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


cdef bint shareable(Option trainer) noexcept:
    return trainer.sharding != FSDP and trainer.weights == RESIDENT
