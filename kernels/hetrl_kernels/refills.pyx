# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Other layer splits of pipelines over mixed devices: the slowest stage stays as slow, fast stages are filled first.

A pipeline takes as long as its slowest stage for every micro-batch, and once through all stages: what layers slow stages can
do without makes the way through all of them shorter.
"""

from libc.math cimport floor
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from hetrl_kernels.layouts cimport Layout, Splitter, build, known_splitter, same_layers
from hetrl_kernels.tables cimport MAX_STAGES, TRAIN, Tables, fmax


cdef class Refiller:
    """Refilled layouts of all tasks.

    Parameters
    ----------
    t
        The lowered job.
    splitters
        Those known, as in `hetrl_kernels.layouts.known_splitter`.
    """

    def __init__(self, Tables t, dict splitters):
        self.t = t
        self.splitters = splitters

    cdef list with_refills(self, int task, list found):
        """Layouts, each followed by what it becomes with its fastest stages filled first, where that differs."""
        cdef list result = []
        cdef Layout layout, other
        for layout in found:
            result.append(layout)
            other = self.refilled(task, layout)
            if other is not None and not same_layers(layout, other):
                result.append(other)
        return result

    cdef Layout refilled(self, int task, Layout layout):
        """The same stages with other layers; None where all stages are on devices of one type."""
        cdef int i, stages, slot
        cdef bint mixed = False, train = self.t.task_kind[task] == TRAIN
        cdef Splitter splitter
        cdef int* layers
        cdef Layout result
        for slot in range(layout.num_slots):
            mixed = mixed or self.t.node_type[layout.node[slot]] != self.t.node_type[layout.node[0]]
        if not mixed or layout.max_stages == 1:
            return None
        splitter = self.splitter(task, layout)
        layers = <int*>malloc(layout.num_slots * sizeof(int))
        memcpy(layers, layout.layers, layout.num_slots * sizeof(int))
        if train:  # replicas share one split
            self.refill(splitter, layout, 0, layout.num_replicas, layers)
            for i in range(1, layout.num_replicas):
                memcpy(layers + layout.first[i], layers, layout.max_stages * sizeof(int))
        else:
            for i in range(layout.num_replicas):
                self.refill(splitter, layout, i, i + 1, layers + layout.first[i])
        result = build(self.t, splitter, layout.devices, layout.num_replicas, layout.first, layout.node, layers)
        free(layers)
        return result

    cdef Splitter splitter(self, int task, Layout layout):
        """The splitter with the tightest memory that a layout keeps to."""
        cdef int i
        cdef Splitter splitter
        for i in range(3, -1, -1):
            splitter = known_splitter(self.t, self.splitters, task, layout.degree_index, i)
            if splitter.caps_hold(layout):
                break
        return splitter

    cdef void refill(self, Splitter splitter, Layout layout, int start, int stop, int* layers) noexcept nogil:
        """Layers of the stages of equally split replicas, as many as now.

        The fastest stages get as many as the threshold admits; what is left for equally fast ones is spread over them.
        """
        cdef int i, j, kind, best, first = layout.first[start], stages = layout.first[start + 1] - first, left = 0
        cdef double[MAX_STAGES] per_layer, fixed
        cdef int[MAX_STAGES] caps
        cdef double threshold = 0.0
        for j in range(stages):
            per_layer[j] = fixed[j] = 0.0
            caps[j] = 0
            for i in range(start, stop):
                kind = self.t.node_type[layout.node[layout.first[i] + j]]
                per_layer[j] = fmax(per_layer[j], splitter.per_layer[kind])
                if j == stages - 1:
                    fixed[j] = fmax(fixed[j], splitter.head[kind])
                if caps[j] == 0 or splitter.caps[kind] < caps[j]:
                    caps[j] = splitter.caps[kind]
            threshold = fmax(threshold, fixed[j] + layout.layers[first + j] * per_layer[j])
            left += layout.layers[first + j] - 1
            layers[j] = 1
        threshold *= 1 + 1e-12
        while left > 0:
            best = -1
            for j in range(stages):
                if layers[j] == caps[j] or fixed[j] + (layers[j] + 1) * per_layer[j] > threshold:
                    continue
                if best < 0 or per_layer[j] < per_layer[best] or (
                    per_layer[j] == per_layer[best]
                    and fixed[j] + layers[j] * per_layer[j] < fixed[best] + layers[best] * per_layer[best]
                ):
                    best = j
            layers[best] += 1  # the layers as they are fit below the threshold, so there is one
            left -= 1
