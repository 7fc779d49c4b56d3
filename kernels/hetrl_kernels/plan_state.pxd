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
    double seconds_before  # all that the task took, where the loads of groups are known


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
    cdef unsigned int[MAX_GROUPS] group_tasks
    cdef double[MAX_GROUPS] load  # seconds of the tasks of every group before the last move
    cdef bint load_known
    cdef unsigned int stale_tasks
    cdef bint transfers_stale, schedule_stale
    cdef Outcome outcome

    cdef void gather_stale(self) noexcept nogil
    cdef bint slower(self) noexcept nogil
    cdef bint exceeds(self, double limit, unsigned int changed) noexcept nogil
    cdef bint overloaded(self, double limit, unsigned int bounded, unsigned int known) noexcept nogil
    cdef void read_load(self) noexcept nogil
    cdef void keep(self, unsigned int tasks) noexcept nogil
    cdef double task_seconds(self, int task) noexcept nogil
    cdef void write_ticks(self, long long* where, double seconds) noexcept nogil
    cdef double cost(self, double limit) noexcept nogil
    cdef double step(self, double limit) noexcept nogil
    cdef bint move(self, const int* blocks, int from_first, int number, int first, int second, double limit) noexcept nogil
    cdef void undo(self, const int* blocks, int from_first, int number, int first, int second) noexcept nogil
