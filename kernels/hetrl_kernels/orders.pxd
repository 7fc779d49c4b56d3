"""The shortest schedule in whole ticks: sums are exact, so that it does not matter in which order they are built."""

from hetrl_kernels.schedule cimport MAX_ACTIVITIES, MAX_GROUPS


cdef struct Work:
    int number
    int num_groups
    long long seconds[MAX_ACTIVITIES]  # ticks, as all that follows
    int first_group[MAX_ACTIVITIES]
    int second_group[MAX_ACTIVITIES]  # of a weight sync between two groups; else the first again
    int num_needs[MAX_ACTIVITIES]
    int needs[MAX_ACTIVITIES][MAX_ACTIVITIES]  # earlier activities
    long long transfer[MAX_ACTIVITIES][MAX_ACTIVITIES]  # from the n-th need


cdef class Orders:
    cdef Work work
    cdef int[MAX_ACTIVITIES] order  # the best of the last search
    cdef int[MAX_ACTIVITIES] trial
    cdef long long[MAX_ACTIVITIES] tails
    cdef long long[MAX_ACTIVITIES] end
    cdef long long[MAX_GROUPS] free_at
    cdef long long best, floor
    cdef readonly long long num_searched

    cdef void start(self) noexcept nogil
    cdef long long bound(self) noexcept nogil
    cdef long long replay(self) noexcept nogil
    cdef long long shortest(self) noexcept nogil
    cdef void place(self, int depth, unsigned int done, long long latest) noexcept nogil
    cdef long long largest_load(self) noexcept nogil
    cdef long long longest_path(self) noexcept nogil
