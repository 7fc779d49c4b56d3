# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What finding the options of training, scoring and generation has in common: limits, layouts, shares, host memory."""

from libc.stdlib cimport calloc, free

from hetrl_kernels.layouts cimport given_layout, layouts
from hetrl_kernels.options cimport ALLOW_PIPELINE, ALLOW_TENSOR
from hetrl_kernels.tables cimport SCORE, TRAIN, fmax
from hetrl_kernels.timing cimport Replica, TrainTime, generate_replica, score_replica, train_replica

import numpy as np

cdef int EXACT_FILL_DEVICES = 32  # in larger fleets shares are exact in the plans that are placed only
cdef double SLOW_RATIO = 2.5  # options slower than this times the fastest are cut


cdef class TaskOptions:
    """Settings and helpers; see `hetrl_kernels.finder.Finder`, which is made of this and one class per kind of task."""

    def __init__(self, Tables tables, int[:, ::1] allowed, int max_options, int engine_limit):
        self.t = tables
        self.allowed = allowed
        self.max_options = max_options
        self.engine_limit = engine_limit
        self.kept = {}
        self.cuts = {}
        self.cutoff = -1.0
        self.exact_fill = sum(tables.node_devices) <= EXACT_FILL_DEVICES
        self.fill = Shares(tables)
        self.splitters = {}
        self.refiller = Refiller(tables, self.splitters)
        self.refills = self.exact_fill

    cdef double slow_limit(self, double fastest) noexcept nogil:
        """Seconds above which an option is cut, given the fastest so far; the exact solver's limit is absolute."""
        return SLOW_RATIO * fastest if self.cutoff < 0 else self.cutoff

    cdef Devices devices(self, bytes key):
        return Devices(self.t, np.frombuffer(key, dtype=np.int32))

    cdef cut(self, str reason, long long number=1):
        if number:
            self.cuts[reason] = self.cuts.get(reason, 0) + number

    cdef list layouts_of(self, int task, Devices devices):
        cdef int kind = self.t.task_kind[task]
        if task in self.kept:
            degree, replicas = self.kept[task]
            layout = given_layout(self.t, task, devices, degree, replicas)
            return [] if layout is None else [layout]
        found = layouts(self.t, self.splitters, task, devices, self.allowed[kind, ALLOW_PIPELINE], self.allowed[kind, ALLOW_TENSOR])
        return self.refiller.with_refills(task, found) if self.refills else found

    cdef double class_seconds(
        self, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, int prompts,
        const double* kv) noexcept:
        cdef Replica replica = layout.replica(layout.representative[c])
        cdef TrainTime time
        cdef int kind = self.t.task_kind[task]
        if kind == TRAIN:
            time = train_replica(
                self.t, task, layout.degree_index, layout.degree, shape, micro_batch, recompute, &replica, prompts, False
            )
            return time.old_log_probs + self.t.num_updates * time.pipeline
        if kind == SCORE:
            return score_replica(self.t, task, layout.degree_index, layout.degree, shape, micro_batch, &replica, prompts)
        return generate_replica(self.t, task, layout.degree_index, layout.degree, micro_batch, &replica, prompts, kv[c])

    cdef double shares(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, int* base, int* extra) except? -1.0:
        return self.fill.share(task, layout, shape, micro_batch, recompute, kv, self.exact_fill or self.cutoff >= 0, base, extra)

    cdef double seconds_of(self, Option option, int c, int prompts) noexcept:
        """Seconds of a replica of class ``c`` with a share."""
        if prompts == 0:
            return 0.0
        return self.class_seconds(
            option.task, option.layout, c, option.shape, option.micro_batch, option.recompute, prompts, option.kv
        )

    cdef int most_prompts(self, Option option, int c, double threshold) noexcept:
        """Most prompts that a replica of class ``c`` handles in ``threshold`` seconds."""
        cdef int low = 0, high = self.t.num_prompts, middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds_of(option, c, middle) <= threshold:
                low = middle
            else:
                high = middle - 1
        return low

    def exact_shares(self, Option option):
        """Shares that minimise the slowest replica's seconds, as a list; those of the option where these are no better.

        The smallest threshold at which all prompts find room, by bisection; the surplus is taken from the replicas that
        would finish last.
        """
        cdef Layout layout = option.layout
        cdef int c, last, i, turn, classes = layout.num_classes, total = self.t.num_prompts
        cdef long long room
        cdef double low = 0.0, high = 0.0, middle, seconds, slowest
        cdef list most, given, old = option.shares()
        cdef dict held = {}
        if classes == 1:
            return old
        for i in range(layout.num_replicas):
            held[(layout.class_of[i], old[i])] = None
        for c, i in held:
            high = fmax(high, self.seconds_of(option, c, i))
        slowest = high
        for turn in range(40):
            middle = (low + high) / 2
            room = 0
            for c in range(classes):
                room += <long long>layout.class_size[c] * self.most_prompts(option, c, middle)
            if room >= total:
                high = middle
            else:
                low = middle
            if high - low <= 1e-9 * high:
                break
        most = [self.most_prompts(option, c, high) for c in range(classes)]
        room = sum([layout.class_size[c] * <int>most[c] for c in range(classes)])
        if room < total or high >= slowest:
            return old
        given = [most[layout.class_of[i]] for i in range(layout.num_replicas)]
        fewer = [0] * classes
        while room > total:
            # one prompt less for every replica of the class that would finish last, or for as many as there is surplus
            last = max(range(classes), key=lambda c: (self.seconds_of(option, c, most[c] - fewer[c]), c))
            fewer[last] += 1
            for i in range(layout.num_replicas - 1, -1, -1):
                if layout.class_of[i] == last and room > total:
                    given[i] -= 1
                    room -= 1
        return given

    cdef void spread(self, Option option, const int* base, const int* extra) noexcept:
        """Write the shares of all replicas, the remainder to the first of each class."""
        cdef Layout layout = option.layout
        cdef int i, c
        cdef int* given = <int*>calloc(layout.num_classes, sizeof(int))
        for i in range(layout.num_replicas):
            c = layout.class_of[i]
            option.prompts[i] = base[c] + (given[c] < extra[c])
            given[c] += 1
        free(given)

    cdef void add_host(self, Option option, const double* host) noexcept:
        """Host bytes of the fullest node of every cell, from those of one rank in every slot."""
        cdef Layout layout = option.layout
        cdef double* total = <double*>calloc(self.t.num_nodes, sizeof(double))
        cdef int s, node
        for s in range(layout.num_slots):
            total[layout.node[s]] += layout.degree * host[s]
        for s in range(layout.num_slots):
            node = layout.node[s]
            option.host[layout.devices.cell[node]] = fmax(option.host[layout.devices.cell[node]], total[node])
        free(total)
