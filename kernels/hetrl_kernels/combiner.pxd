"""Level 3: how the tasks of one group share its devices."""

from hetrl_kernels.layouts cimport Devices
from hetrl_kernels.options cimport Finder, Option
from hetrl_kernels.tables cimport MAX_TASKS, Tables


cdef class Combiner:
    cdef Tables t
    cdef Finder finder
    cdef Devices devices
    cdef int cells, number, visits
    cdef long long no_room
    cdef list tasks, lists
    cdef int[MAX_TASKS] trainer
    cdef bint[MAX_TASKS] is_engine
    cdef double[MAX_TASKS + 1] ahead
    cdef int[MAX_TASKS + 1][MAX_TASKS] roomy
    cdef double[MAX_TASKS + 1] generating
    cdef double* limit
    cdef double* host_ram
    cdef double* least
    cdef double* idle
    cdef double* peak
    cdef double* busy
    cdef double* sync
    cdef double* host
    cdef double* taken
    cdef list chosen, best
    cdef readonly double best_seconds

    cdef list run(self)
    cdef void look_ahead(self)
    cdef void descend(self, int index, double seconds)
    cdef void engines(self, int index, double seconds)
    cdef void attempt(self, int index, double seconds, Option option)
    cdef bint push(self, int index, Option option) noexcept
    cdef void engines_ahead(self, int index)
