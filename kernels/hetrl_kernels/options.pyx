# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One way to run a task on given devices."""

from libc.stdlib cimport calloc, free, malloc

from hetrl_kernels.tables cimport fmax

import cython


@cython.no_gc
cdef class Option:
    def __dealloc__(self):
        free(self.prompts)
        free(self.used)
        free(self.kv)
        free(self.need)
        free(self.active)

    def shares(self):
        """Prompts of every replica."""
        return [self.prompts[i] for i in range(self.layout.num_replicas)]

    def stages(self):
        """Per replica its stages as (node, layers); a stage has as many devices as the tensor degree."""
        cdef int i, s
        return [
            [(self.layout.node[s], self.layout.layers[s]) for s in range(self.layout.first[i], self.layout.first[i + 1])]
            for i in range(self.layout.num_replicas)
        ]

    def kv_tokens(self):
        """Tokens of every replica's KV pool; empty unless this is an engine."""
        if self.kv == NULL:
            return []
        return [self.kv[self.layout.class_of[i]] for i in range(self.layout.num_replicas)]

    def node_bytes(self):
        """Per node in use the largest active, idle and sync bytes of a device, and the host bytes."""
        cdef int s, cell
        found = {}
        for s in range(self.layout.num_slots):
            cell = self.layout.devices.cell[self.layout.node[s]]
            found[self.layout.node[s]] = (self.active[cell], self.idle[cell], self.sync[cell], self.host[cell])
        return found

    @property
    def degree(self):
        """Tensor degree."""
        return self.layout.degree


cdef Option new_option(Tables t, Layout layout, int task, int micro_batch):
    cdef Option option = Option.__new__(Option)
    cdef int slot, cells = layout.devices.num_cells
    option.used = <int*>calloc(t.num_nodes, sizeof(int))
    for slot in range(layout.num_slots):
        option.used[layout.node[slot]] += layout.degree
    option.layout = layout
    option.task = task
    option.micro_batch = micro_batch
    option.prompts = <int*>malloc(layout.num_replicas * sizeof(int))
    option.active = <double*>calloc(4 * cells, sizeof(double))
    option.idle = option.active + cells
    option.sync = option.idle + cells
    option.host = option.sync + cells
    return option


cdef void add_rank(Option option, int cell, const Rank* rank) noexcept nogil:
    option.active[cell] = fmax(option.active[cell], rank.active)
    option.idle[cell] = fmax(option.idle[cell], rank.idle)
    option.sync[cell] = fmax(option.sync[cell], rank.sync)


cdef void spread_to_replicas(Layout layout, double* values) noexcept nogil:
    """Copy what the slots of each class's representative hold to its other replicas."""
    cdef int i, j, source
    for i in range(layout.num_replicas):
        source = layout.first[layout.representative[layout.class_of[i]]]
        for j in range(layout.first[i + 1] - layout.first[i]):
            values[layout.first[i] + j] = values[source + j]
