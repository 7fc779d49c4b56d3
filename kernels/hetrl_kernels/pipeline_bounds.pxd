"""Lower bounds of a training layout's pipelines."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.tables cimport Tables


cdef struct DistinctStage:  # equal stages of a layout's replicas: on nodes of one kind
    int stage
    int node  # one of theirs
    int first
    int layers
    const double* layer_seconds  # [micro-batches, kinds of layers]
    const double* head_seconds  # [micro-batches]; NULL unless the head is here
    const double* all_reduce  # what a tensor group's takes whatever its bytes, by their root, and by them
    double seconds  # of a full micro-batch's forward pass
    double reduces
    double busy  # forward and backward
    double scoring


cdef class PipelineBounds:
    cdef Tables t
    cdef Layout layout
    cdef int task, num_distinct, room
    cdef DistinctStage* distinct  # [num_distinct] by stage
    cdef int* members  # [classes, max_stages] which of them a class's replicas have

    cdef void start(self, int task, Layout layout)
    cdef void point(self, DistinctStage* each) noexcept
    cdef void at(self, int shape, int micro_batch) noexcept
    cdef double bound(self, int micro_batch, bint recompute, int* num_micro_batches) noexcept
    cdef double bound_of_equals(self, int micro_batch, bint recompute, double average, int* num_micro_batches) noexcept
