# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options of generation tasks: engines, whose KV pools take the room that is left."""

from libc.math cimport INFINITY, floor
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hetrl_kernels.memory cimport RESIDENT, Rank, generate_rank, kv_bytes
from hetrl_kernels.options cimport add_rank, new_option, spread_to_replicas
from hetrl_kernels.tables cimport Tables, fmax, fmin
from hetrl_kernels.timing cimport Replica, generate_replica

from operator import attrgetter


cdef class EngineOptions(ScoreOptions):
    """Options of generation tasks."""

    cdef tuple engine_options(self, int task, Devices devices):
        """Engines with all memory to themselves, fastest first: lower bounds of their time with neighbours."""
        cdef double* nothing = <double*>calloc(devices.num_cells, sizeof(double))
        cdef Option option
        cdef list found = []
        cdef double fastest = INFINITY
        for layout in self.layouts_of(task, devices):
            self.num_candidates += 1
            if fastest < INFINITY and self.engine_guess(task, layout) > 2 * self.slow_limit(fastest):
                self.cut("SLOW_LAYOUT")
                continue
            option = self.engine(task, layout, RESIDENT, nothing, INFINITY, None)
            if option is not None:
                self.smallest_need(option)
                found.append(option)
                fastest = fmin(fastest, option.seconds)
        free(nothing)
        found.sort(key=attrgetter("seconds"))
        self.cut("FRONT_OVERFLOW", max(0, len(found) - self.max_options))
        return tuple(found[: self.max_options])

    cdef double engine_guess(self, int task, Layout layout) noexcept:
        """Seconds if all replicas were as fast as those of the largest class, with full KV pools."""
        cdef int c, largest = 0
        cdef double useful = fmax(self.engine_limit * self.t.task_in_flight[task], self.t.max_sequence)
        cdef Replica replica
        for c in range(layout.num_classes):
            if layout.class_size[c] > layout.class_size[largest]:
                largest = c
        replica = layout.replica(layout.representative[largest])
        return generate_replica(
            self.t, task, layout.degree_index, layout.degree, self.engine_limit, &replica,
            max(1, self.t.num_prompts // layout.num_replicas), useful,
        )

    cdef void smallest_need(self, Option option):
        """Work out ``need``: bytes beside the other tasks' without which an engine cannot run."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef int c, slot, first, node, cell
        cdef Rank rank
        cdef double needed
        option.need = <double*>calloc(layout.devices.num_cells, sizeof(double))
        for c in range(layout.num_classes):
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                cell = layout.devices.cell[node]
                rank = generate_rank(
                    t, option.task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot], t.num_prompts,
                    RESIDENT, layout.num_slots * layout.degree > 1,
                )
                needed = kv_bytes(t, t.task_model[option.task], layout.degree_index, first, layout.layers[slot]) * t.max_sequence
                option.need[cell] = fmax(option.need[cell], rank.active + needed)
                first += layout.layers[slot]

    cdef Option engine(self, int task, Layout layout, int weights, const double* taken, double cutoff, Option alone):
        """An engine with its KV pools in the room beside ``taken`` bytes per cell; None if there is too little.

        ``alone`` is the same engine with all memory to itself, or None: where its pools are as large, so is its time.
        """
        cdef Tables t = self.t
        cdef int c, slot, first, node, model = t.task_model[task]
        cdef bint spans = layout.num_slots * layout.degree > 1, fits = True, full = True
        cdef double useful = fmax(self.engine_limit * t.task_in_flight[task], t.max_sequence)
        cdef double held, room
        cdef Rank rank
        cdef double* kv = <double*>malloc((layout.num_classes + layout.num_slots) * sizeof(double))
        cdef double* hosts = kv + layout.num_classes
        cdef Option option
        for c in range(layout.num_classes):
            kv[c] = useful
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                rank = generate_rank(
                    t, task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot],
                    t.num_prompts, weights, spans,
                )
                room = t.node_limit[node] - taken[layout.devices.cell[node]] - rank.active
                held = kv_bytes(t, model, layout.degree_index, first, layout.layers[slot])
                if room < 0:
                    fits = False
                elif held > 0:
                    kv[c] = fmin(kv[c], floor(room / held))
                first += layout.layers[slot]
                hosts[slot] = rank.host
            fits = fits and kv[c] >= t.max_sequence
            full = full and kv[c] == useful
            if not fits:
                break
        if not fits or (full and alone is not None and alone.full and alone.seconds >= cutoff):
            if not fits:
                self.cut("KV_ROOM")
            free(kv)
            return None
        option = new_option(t, layout, task, self.engine_limit)
        option.weights = weights
        option.full = full
        if full and alone is not None and alone.full:
            option.seconds = alone.seconds
            memcpy(option.prompts, alone.prompts, layout.num_replicas * sizeof(int))
        else:
            self.engine_shares(option, alone, kv)
        if option.seconds >= cutoff:
            free(kv)
            return None
        for c in range(layout.num_classes):
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                rank = generate_rank(
                    t, task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot],
                    t.num_prompts, weights, spans,
                )
                first += layout.layers[slot]
                add_rank(option, layout.devices.cell[node], &rank)
        spread_to_replicas(layout, hosts)
        self.add_host(option, hosts)
        option.kv = kv
        return option

    cdef void engine_shares(self, Option option, Option alone, const double* kv):
        """Shares and seconds of an engine with these KV pools; those with room for as many sequences are worked out once."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef int c
        cdef int* base
        cdef bytes shares
        key = tuple([<int>fmin(self.engine_limit, floor(kv[c] / t.task_in_flight[option.task])) for c in range(layout.num_classes)])
        if alone is not None:
            if alone.beside is None:
                alone.beside = {}
            found = alone.beside.get(key)
            if found is not None:
                option.seconds, shares = found
                memcpy(option.prompts, <char*>shares, layout.num_replicas * sizeof(int))
                return
        self.num_costed += 1
        base = <int*>malloc(2 * layout.num_classes * sizeof(int))
        option.seconds = self.shares(option.task, layout, 0, self.engine_limit, False, kv, base, base + layout.num_classes)
        self.spread(option, base, base + layout.num_classes)
        free(base)
        if alone is not None:
            alone.beside[key] = (option.seconds, (<char*>option.prompts)[: layout.num_replicas * sizeof(int)])
