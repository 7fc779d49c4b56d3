"""The step as a schedule of activities on groups."""

cdef enum:
    MAX_ACTIVITIES = 31
    MAX_GROUPS = 16


cdef struct Activities:
    int number
    double seconds[MAX_ACTIVITIES]
    unsigned int groups[MAX_ACTIVITIES]  # bit set
    unsigned int needs[MAX_ACTIVITIES]  # bit set of earlier activities
    double transfer[MAX_ACTIVITIES][MAX_ACTIVITIES]  # seconds from the second index to the first


cdef double best_schedule(const Activities* activities) noexcept nogil
cdef double asynchronous_period(const Activities* activities, double staleness) noexcept nogil
