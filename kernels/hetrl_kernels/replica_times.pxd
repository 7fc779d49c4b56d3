"""Seconds of one kind of replica by its number of prompts."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.tables cimport Tables
from hetrl_kernels.timing cimport TrainTime


cdef class ReplicaTimes:
    cdef Tables t
    cdef int task, kind, degree_index, degree, shape, micro_batch, num_stages
    cdef bint recompute
    cdef double kv
    cdef int* nodes  # [stages], followed by the layers
    cdef double* seconds  # [prompts + 1]; for training three more: pipeline, old log-probabilities, micro-batches

    cdef double total(self, int prompts) noexcept nogil
    cdef void work_out(self, int prompts) noexcept nogil
    cdef TrainTime training(self, int prompts) noexcept nogil
    cdef int most(self, double threshold) noexcept nogil


cdef bytes replica_key(Tables t, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv)
cdef ReplicaTimes replica_times(Tables t, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv)
