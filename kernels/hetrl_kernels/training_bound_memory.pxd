"""Whether a training task's states and activations may fit, and how long the longest stage is for that."""

from hetrl_kernels.training_bound_pipelines cimport PipelineBound


cdef class MemoryBound(PipelineBound):
    cdef double sharded(self, long sharding, bint on_host, long most) noexcept nogil
    cdef bint fits(
        self, long q, long sharding, bint on_host, long stages, long fewest, long most, double size, double
        in_flight
    ) noexcept nogil
    cdef double longest_stage(
        self, long q, long sharding, bint on_host, long stages, long most, long kind, double size, double
        in_flight
    ) noexcept nogil
