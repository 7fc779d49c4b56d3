"""What gradient reduces and optimizer steps add to the pipelines at least."""

from hetrl_kernels.training_bound_memory cimport MemoryBound


cdef class UpdateBound(MemoryBound):
    cdef double placed(
        self, long q, long r, long sharding, bint on_host, long stages, long fewest, long most, long share,
        double pipelined, double limit
    ) noexcept nogil
    cdef double reduce_inside(
        self, long q, long r, long sharding, long most, const long* here, double gradients, double weights
    ) noexcept nogil
    cdef double ring_inside(self, long r, long kind, long operation, double num_bytes) noexcept nogil
    cdef double reduce_between(
        self, long q, long sharding, long fewest, long most, long kind, double layers, long flows
    ) noexcept nogil
    cdef double layers_between(
        self, long q, long sharding, long fewest, long most, long kind, long flows, double seconds
    ) noexcept nogil
    cdef double exposed(self, long q, long sharding, long most, double reduce, double gather) noexcept nogil
    cdef double step(self, long q, long sharding, bint on_host, long stages, long fewest, long most) noexcept nogil
    cdef double joint(self, long q, long stages) noexcept nogil
