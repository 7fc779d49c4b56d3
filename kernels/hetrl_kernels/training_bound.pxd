"""Lower bound of a training task's seconds."""

from hetrl_kernels.training_bound_updates cimport UpdateBound


cdef class TrainingBound(UpdateBound):
    cdef double of_setting(self, long q, double best) noexcept nogil
    cdef double of_class(self, long q, long r, long stages, long fewest, long most, long alone, double best) noexcept nogil
