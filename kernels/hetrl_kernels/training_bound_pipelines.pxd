"""What pipelines of whole layers take at least: all of a task's, and the busiest replica's."""

from hetrl_kernels.training_bound_tables cimport BoundTables, Slots


cdef class PipelineBound(BoundTables):
    cdef double flowing(self, long q, long stages, long most) noexcept nogil
    cdef double spread(self, long q, const double* take, double amount, double per_group) noexcept nogil
    cdef double busiest(
        self, long q, long share, long stages, const long* slots, long between, bint head_between, double
        slowest, double limit
    ) noexcept nogil
    cdef double once(self, long q) noexcept nogil
    cdef double whole_layers(
        self, long q, long stages, const double* kappa, const long* slots, long between, bint head_between,
        double low
    ) noexcept nogil
    cdef double held_layers(
        self, long q, long stages, const double* kappa, const long* slots, long between, bint head_between,
        double k
    ) noexcept nogil
    cdef double passed(self, long q, long num_kinds, const double* each, double slowest, double low) noexcept nogil
    cdef double dealt(self, long q, long stages, const Slots* slots) noexcept nogil
    cdef double quickest_layers(self, long q, long stages, double slowest) noexcept nogil
    cdef double lost_to_head(self, long q, long kind, double layers, double slowest) noexcept nogil
    cdef double most_layers(self, long q, long stages, const Slots* slots, double slowest) noexcept nogil
