"""Seconds of all replicas of a plan, kept up to date while blocks change nodes."""

from cython cimport final

from hetrl_kernels.links cimport Links
from hetrl_kernels.replica_tables cimport Replica, ReplicaTables, Unit
from hetrl_kernels.signatures cimport Entry, Signatures
from hetrl_kernels.tables cimport MAX_STAGES, MAX_TASKS
from hetrl_kernels.undo cimport Log


@final
cdef class Replicas(ReplicaTables):
    cdef Signatures signatures
    # replicas that a proposal touches
    cdef unsigned long long[MAX_STAGES + 1] weights  # of places in a hash
    cdef int num_touched
    cdef int turn
    cdef bint fresh  # no replica has been worked out yet
    cdef unsigned int stale_tasks
    cdef double[MAX_TASKS] least  # lower bounds of what a task's slowest replica takes, by those that were touched last
    cdef double[MAX_TASKS] least_first

    cdef void place_all(self, Log* log) noexcept nogil
    cdef void write_unit(self, Log* log, const Unit* unit, int node) noexcept nogil
    cdef void fill_look(self, int look, int node) noexcept nogil
    cdef double tokens_of(self, const Replica* replica, const int* nodes) noexcept nogil
    cdef void seconds_of(
        self, const Replica* replica, const int* nodes, const int* words, double tokens, double* slow, double* first) noexcept nogil
    cdef void shift(self, Log* log, int block, int target) noexcept nogil
    cdef void touch(self, Log* log, int block, bint all_stages) noexcept nogil
    cdef void note(self, Replica* replica, bint slower) noexcept nogil
    cdef void refresh(self, Log* log) noexcept nogil
    cdef bint others_decide(self, const Replica* replica, double slow, double first) noexcept nogil
    cdef Entry* find(self, const Replica* replica, double tokens, const int* words) noexcept nogil
    cdef Entry* entry_of(self, const Replica* replica) noexcept nogil
    cdef double scoring_seconds(self, const Replica* replica) noexcept nogil
    cdef void write_leaves(self, Log* log, const Replica* replica, double slow, double first) noexcept nogil
    cdef void loosen(self, Log* log, Replica* replica) noexcept nogil
    cdef int loose(self, int task) noexcept nogil
    cdef void sharpen(self, Log* log, int r) noexcept nogil
    cdef bint settle(self, Log* log, int task, bint bounds_do) noexcept nogil
    cdef void lower_bounds(self, int task, double* slow, double* first) noexcept nogil
