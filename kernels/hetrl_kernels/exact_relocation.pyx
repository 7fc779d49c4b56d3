# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options on other nodes that are equal to their own."""

from libc.stdlib cimport calloc, malloc
from libc.string cimport memcpy

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.tables cimport Tables


def relocated(Option option, int[::1] to, Devices devices):
    """The same option on other nodes that are equal to its own.

    Parameters
    ----------
    to
        ``[N]`` new node of every old one.
    devices
        The group's devices on the new nodes.
    """
    cdef Layout old = option.layout
    cdef Layout layout = Layout.__new__(Layout)
    cdef Option result
    cdef int i, cell, node, cells = devices.num_cells, before = old.devices.num_cells
    cdef Tables t
    layout.degree, layout.degree_index, layout.num_replicas = old.degree, old.degree_index, old.num_replicas
    layout.num_slots, layout.max_stages, layout.num_classes = old.num_slots, old.max_stages, old.num_classes
    layout.devices = devices
    layout.first = <int*>malloc((old.num_replicas + 1) * sizeof(int))
    layout.node = <int*>malloc(old.num_slots * sizeof(int))
    layout.layers = <int*>malloc(old.num_slots * sizeof(int))
    layout.class_of = <int*>malloc(old.num_replicas * sizeof(int))
    layout.representative = <int*>malloc(old.num_replicas * sizeof(int))
    layout.class_size = <int*>calloc(old.num_replicas, sizeof(int))
    memcpy(layout.first, old.first, (old.num_replicas + 1) * sizeof(int))
    memcpy(layout.layers, old.layers, old.num_slots * sizeof(int))
    memcpy(layout.class_of, old.class_of, old.num_replicas * sizeof(int))
    memcpy(layout.representative, old.representative, old.num_classes * sizeof(int))
    memcpy(layout.class_size, old.class_size, old.num_classes * sizeof(int))
    for i in range(old.num_slots):
        layout.node[i] = to[old.node[i]]
    result = Option.__new__(Option)
    result.layout, result.task, result.micro_batch = layout, option.task, option.micro_batch
    result.recompute, result.sharding = option.recompute, option.sharding
    result.weights, result.optimizer = option.weights, option.optimizer
    result.seconds, result.shape, result.full = option.seconds, option.shape, option.full
    result.prompts = <int*>malloc(old.num_replicas * sizeof(int))
    memcpy(result.prompts, option.prompts, old.num_replicas * sizeof(int))
    result.used = <int*>calloc(to.shape[0], sizeof(int))
    for node in range(to.shape[0]):
        if option.used[node]:
            result.used[to[node]] = option.used[node]
    if option.kv != NULL:
        result.kv = <double*>malloc(old.num_classes * sizeof(double))
        memcpy(result.kv, option.kv, old.num_classes * sizeof(double))
    result.active = <double*>calloc(4 * cells, sizeof(double))
    result.idle = result.active + cells
    result.sync = result.idle + cells
    result.host = result.sync + cells
    for node in range(to.shape[0]):
        if option.used[node]:
            cell = devices.cell[to[node]]
            for i in range(4):
                result.active[i * cells + cell] = option.active[i * before + old.devices.cell[node]]
    return result
