"""Level 3: how the tasks of one group share its devices."""

from hetrl_kernels.layouts cimport Devices
from hetrl_kernels.finder cimport Finder
from hetrl_kernels.options cimport Option
from hetrl_kernels.tables cimport MAX_TASKS, Tables


cdef class Combiner:
    cdef Tables t
    cdef Finder finder
    cdef Devices devices
    cdef int cells, number, visits, num_trained, longest
    cdef long long no_room
    cdef list tasks, lists
    cdef int[MAX_TASKS] trainer
    cdef bint[MAX_TASKS] is_engine
    cdef bint drops_idle
    cdef dict syncs  # (marks of the sending nodes, layout) -> seconds
    cdef dict places  # trainer -> marks of its nodes; of None: of nodes with devices outside the group
    cdef double[MAX_TASKS + 1] ahead, priced_ahead
    cdef double* cost
    cdef double* cheapest
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

    cdef list run(self, bint drops_idle)
    cdef double weight_sync(self, int index, Option option)
    cdef bytes places_of(self, Option trainer)
    cdef void look_ahead(self)
    cdef void price(self, int index)
    cdef void sum_ahead(self, double* ahead)
    cdef void descend(self, int index, double seconds)
    cdef void engines(self, int index, double seconds)
    cdef void attempt(self, int index, double seconds, Option option)
    cdef bint push(self, int index, Option option) noexcept
    cdef void engines_ahead(self, int index)
