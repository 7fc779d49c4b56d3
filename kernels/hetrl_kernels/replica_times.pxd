"""Seconds of one kind of replica by its number of prompts."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.tables cimport Tables
from hetrl_kernels.timing cimport StageTime, TrainTime


cdef struct ShareTime:
    int prompts  # 0: nothing here
    double total
    TrainTime training


cdef class ReplicaTimes:
    cdef Tables t
    cdef int task, kind, degree_index, degree, shape, micro_batch, num_stages
    cdef bint recompute
    cdef double kv
    cdef int* nodes  # [stages], followed by the layers
    cdef StageTime* stages  # [stages] full micro-batches of a training replica, followed by what lies between them
    cdef ShareTime* shares  # [room] at the first free place from the hash of the prompts on
    cdef int num_shares, room  # room is a power of two, at least twice the number

    cdef double total(self, int prompts) noexcept nogil
    cdef ShareTime* at(self, int prompts) noexcept nogil
    cdef void grow(self) noexcept nogil
    cdef void work_out(self, ShareTime* share) noexcept nogil
    cdef TrainTime training(self, int prompts) noexcept nogil
    cdef int most(self, double threshold) noexcept nogil


cdef bytes replica_key(Tables t, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv)
cdef ReplicaTimes replica_times(Tables t, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv)
