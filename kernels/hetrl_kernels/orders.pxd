"""The shortest schedule in whole ticks: sums are exact, so that it does not matter in which order they are built."""

from cython cimport final

from hetrl_kernels.schedule cimport MAX_ACTIVITIES, MAX_GROUPS

cdef enum:
    MAX_ARCS = MAX_ACTIVITIES * (MAX_ACTIVITIES - 1) // 2
    NOBODY = MAX_ACTIVITIES


cdef struct Arc:  # one activity needs another
    long long transfer  # ticks
    int source  # an earlier activity


cdef struct Join:  # an activity needs several of one group, none of which needs another: they work one after the other
    int activity
    int first  # arcs: numbers in `joined`
    int number


cdef struct Work:
    int number
    int num_groups
    long long seconds[MAX_ACTIVITIES]  # ticks, as all that follows
    int first_group[MAX_ACTIVITIES]
    int second_group[MAX_ACTIVITIES]  # of a weight sync between two groups; else the first again
    int first_arc[MAX_ACTIVITIES + 1]
    Arc arcs[MAX_ARCS]  # of the activities, one after the other
    int num_joins
    Join joins[MAX_ARCS]  # in order of the activities
    int joined[MAX_ARCS]
    unsigned int before[MAX_ACTIVITIES]  # all that an activity needs, directly or not


@final
cdef class Orders:
    cdef Work work
    cdef int[MAX_ACTIVITIES] order  # the best of the last search
    cdef int[MAX_ACTIVITIES] trial
    cdef int[MAX_ACTIVITIES] on_first  # who works before in the order on the first group of an activity, or nobody
    cdef int[MAX_ACTIVITIES] on_second
    cdef long long[MAX_ACTIVITIES] heads
    cdef long long[MAX_ACTIVITIES] tails
    cdef long long[MAX_ACTIVITIES + 1] end  # of nobody: 0
    cdef long long[MAX_GROUPS] free_at
    cdef long long best, floor
    cdef unsigned int decides  # activities whose ticks the proof of the last replay rests on
    cdef readonly long long num_searched

    cdef void add(self, int first_group, int second_group, list needs)
    cdef long long largest_load(self) noexcept nogil
    cdef long long longest_path(self) noexcept nogil
    cdef void read_heads(self) noexcept nogil
    cdef long long bound(self) noexcept nogil
    cdef void arrange(self) noexcept nogil
    cdef int replay(self) noexcept nogil
    cdef bint proven(self, int last) noexcept nogil
    cdef bint waits(self, unsigned int run, unsigned int before, long long gap) noexcept nogil
    cdef double longest_chain(self, const double* seconds, int number) noexcept nogil
    cdef bint replayed(self) noexcept nogil
    cdef long long searched(self, double limit) noexcept nogil
    cdef long long shortest(self, double limit) noexcept nogil
    cdef void place(self, int depth, unsigned int done, long long latest) noexcept nogil
