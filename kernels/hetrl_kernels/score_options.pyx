# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options of scoring tasks, with weights of their own or those of the role's training task."""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc

from hetrl_kernels.memory cimport FSDP, ON_HOST, RESIDENT, SHARED, Rank, score_rank
from hetrl_kernels.options cimport ALLOW_WEIGHTS_HOST, add_rank, new_option, spread_to_replicas
from hetrl_kernels.tables cimport NUM_SCORE_SHAPES, SCORE, Tables, fmax, fmin, micro_batch_of, score_shape
from hetrl_kernels.timing cimport Replica, score_fluid

from operator import attrgetter


cdef class ScoreOptions(TrainOptions):
    """Options of scoring tasks."""

    cdef tuple score_residencies(self, Devices devices):
        if self.allowed[SCORE, ALLOW_WEIGHTS_HOST] and not self.t.type_is_cpu[self.t.node_type[devices.cell_node[0]]]:
            return (RESIDENT, ON_HOST)
        return (RESIDENT,)

    cdef tuple shared_options(self, int task, Option trainer):
        """Scoring with the weights of the role's train task: the same stages on the same devices."""
        if trainer.sharding == FSDP or trainer.weights != RESIDENT:
            return ()
        if task in self.kept and self.kept[task] != self.kept.get(trainer.task):
            return ()
        key = (task, id(trainer.layout))
        if key not in self.shared:
            self.shared[key] = (self.score_options(task, [trainer.layout], (SHARED,)), trainer.layout)
        return self.shared[key][0]

    cdef tuple score_options(self, int task, list found, tuple residencies):
        cdef Layout layout
        cdef list bounds = []
        cdef int s, l
        for l in range(len(found)):
            layout = found[l]
            for s in range(NUM_SCORE_SHAPES):
                bounds.append((self.least_scoring(task, layout, score_shape(s)), l, s))
        bounds.sort()
        self.num_candidates += len(bounds) * len(residencies)
        cdef list front = [], marks = []
        cdef double fastest = INFINITY, active, idle, host
        cdef Option option
        cdef int weights
        for bound, l, s in bounds:
            if bound > self.slow_limit(fastest) or len(front) >= 2 * self.max_options:
                self.cut("SLOW_LAYOUT" if bound > self.slow_limit(fastest) else "FRONT_OVERFLOW")
                continue
            for weights in residencies:
                option = self.score_option(task, found[l], score_shape(s), weights, marks, bound, &active, &idle, &host)
                if option is None:
                    continue
                if any([mark[0] <= option.seconds and mark[1] <= active and mark[2] <= idle and mark[3] <= host for mark in marks]):
                    continue
                marks.append((option.seconds, active, idle, host))
                front.append(option)
                fastest = fmin(fastest, option.seconds)
        front.sort(key=attrgetter("seconds"))
        return tuple(front[: self.max_options])

    cdef double least_scoring(self, int task, Layout layout, int shape) noexcept:
        """Seconds that scoring takes at least, whatever the shares."""
        cdef double rate = 0.0
        cdef int c
        cdef Replica replica
        for c in range(layout.num_classes):
            replica = layout.replica(layout.representative[c])
            rate += layout.class_size[c] / score_fluid(
                self.t, task, layout.degree_index, layout.degree, shape, micro_batch_of(shape), &replica
            )
        return self.t.num_prompts / rate

    cdef Option score_option(
        self, int task, Layout layout, int shape, int weights, list marks, double bound, double* active, double* idle, double* host):
        """Memory first; costed only if it fits and nothing found so far beats it."""
        cdef Tables t = self.t
        cdef int micro_batch = micro_batch_of(shape)
        cdef Option option = new_option(t, layout, task, micro_batch)
        cdef double* hosts = <double*>malloc(layout.num_slots * sizeof(double))
        cdef double moved = 0.0
        cdef int c, slot, first, node, cell
        cdef bint spans = layout.num_slots * layout.degree > 1
        cdef Rank rank
        option.weights = weights
        option.shape = shape
        active[0] = idle[0] = host[0] = 0.0
        for c in range(layout.num_classes):
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                rank = score_rank(
                    t, task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot], micro_batch, weights, spans
                )
                first += layout.layers[slot]
                add_rank(option, layout.devices.cell[node], &rank)
                hosts[slot] = rank.host
                active[0] = fmax(active[0], rank.active / t.node_limit[node])
                idle[0] = fmax(idle[0], rank.idle / t.node_limit[node])
                moved = fmax(moved, rank.moved / t.node_host_link[node])
        if active[0] > 1.0:
            self.cut("DEVICE_MEMORY")
            free(hosts)
            return None
        spread_to_replicas(layout, hosts)
        self.add_host(option, hosts)
        free(hosts)
        for cell in range(layout.devices.num_cells):
            host[0] = fmax(host[0], option.host[cell])
        for mark in marks:
            if mark[0] <= bound + moved and mark[1] <= active[0] and mark[2] <= idle[0] and mark[3] <= host[0]:
                return None
        self.num_costed += 1
        cdef int* base = <int*>malloc(2 * layout.num_classes * sizeof(int))
        option.seconds = self.shares(task, layout, shape, micro_batch, False, NULL, base, base + layout.num_classes) + moved
        self.spread(option, base, base + layout.num_classes)
        free(base)
        return option
