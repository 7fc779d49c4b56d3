"""A whole plan on nodes, and its cost kept up to date while blocks of devices change places."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.contributions cimport Contributions
from hetrl_kernels.links cimport Links
from hetrl_kernels.orders cimport Orders
from hetrl_kernels.replicas cimport Replicas
from hetrl_kernels.schedule cimport MAX_GROUPS
from hetrl_kernels.tables cimport MAX_TASKS, Tables
from hetrl_kernels.undo cimport Log


cdef enum Outcome:
    COSTED
    INFEASIBLE
    ABOVE_LIMIT


cdef enum:  # of a block on a node; several blocks by bitwise or
    FITS = 0
    TOO_SMALL = 1
    FORBIDDEN = 2


cdef struct TaskTime:  # of replicas: what a task takes without gradient rings, optimizers and host traffic
    const double* slow  # of the slowest replica
    const double* first  # the same with what the first update has ahead; without such again `slow`
    double more  # updates after the first
    double slow_before  # `slow` and `first` before the last move, and a little
    double first_before
    double slow_least  # lower bounds of `slow` and `first` before the last move
    double first_least
    double rest  # all but replicas, when it was last asked for
    double rest_before  # the same before the last move, or a little less


cdef class PlanState(Arena):
    cdef Tables t
    cdef Links links
    cdef Orders orders
    cdef Replicas replicas
    cdef Contributions added
    cdef readonly int num_blocks, num_tasks, num_groups
    cdef readonly double scale, unit
    cdef Log log
    # blocks
    cdef int* node  # [B] that of `replicas`
    cdef int* size
    cdef int* group
    cdef int* shape  # row in `standing`
    cdef char* standing  # [shapes, kinds of nodes]
    # the whole
    cdef int* sync_activity  # [syncs]
    cdef double* total  # [1] the current cost
    cdef TaskTime[MAX_TASKS] times
    cdef unsigned int moved_tasks  # whose replicas the last move touched
    cdef unsigned int deciding_tasks  # on which the end of the state before the last move depends: they are worked out first
    cdef unsigned int bounded_tasks  # of which the slowest replica may be known by bounds only
    cdef double[MAX_TASKS] least  # seconds of every task before the last move, at least
    cdef double[MAX_GROUPS] load  # the same of every group's tasks
    cdef bint load_known  # the last two, and what tasks took but for replicas
    cdef unsigned int stale_tasks
    cdef bint transfers_stale, schedule_stale
    cdef Outcome outcome

    cdef void gather_stale(self) noexcept nogil
    cdef bint slower(self) noexcept nogil
    cdef bint exceeds(self, double limit, unsigned int changed) noexcept nogil
    cdef void read_load(self) noexcept nogil
    cdef void keep(self, unsigned int tasks) noexcept nogil
    cdef double rest_seconds(self, int task) noexcept nogil
    cdef bint write_seconds(self, int task) noexcept nogil
    cdef unsigned int loose_tasks(self) noexcept nogil
    cdef void sharpen(self, unsigned int tasks) noexcept nogil
    cdef void work_out(self, unsigned int tasks) noexcept nogil
    cdef bint certainly_above(self, double limit, unsigned int loose) noexcept nogil
    cdef void write_ticks(self, long long* where, double seconds) noexcept nogil
    cdef double cost(self, double limit) noexcept nogil
    cdef double step(self, double limit) noexcept nogil
    cdef double period(self) noexcept nogil
    cdef bint move(self, const int* blocks, int from_first, int number, int first, int second, double limit) noexcept nogil
    cdef void undo(self, const int* blocks, int from_first, int number, int first, int second) noexcept nogil
