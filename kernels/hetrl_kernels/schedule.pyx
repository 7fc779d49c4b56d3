# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shortest schedule of a handful of activities: every order that matters is tried, depth first, with bounds.

Activities that share a group do not overlap; needs carry transfer seconds.
"""

from libc.math cimport INFINITY

from hetrl_kernels.tables cimport fmax


cdef struct Search:
    const Activities* activities
    double[MAX_ACTIVITIES] tails
    double[MAX_ACTIVITIES] end
    double[MAX_GROUPS] free
    double best
    long visited


cdef void longest_tails(const Activities* a, double* tails) noexcept nogil:
    """Longest path from the start of each activity to the end, groups ignored."""
    cdef int i, j
    for i in range(a.number - 1, -1, -1):
        tails[i] = 0.0
        for j in range(i + 1, a.number):
            if a.needs[j] >> i & 1:
                tails[i] = fmax(tails[i], a.transfer[j][i] + tails[j])
        tails[i] += a.seconds[i]


cdef void place(Search* search, unsigned int done, double latest) noexcept nogil:
    cdef const Activities* a = search.activities
    cdef unsigned int everything = (<unsigned int>1 << a.number) - 1
    cdef unsigned int wanted = 0, shared = 0
    cdef int i, j, only = -1
    cdef double start
    cdef double[MAX_GROUPS] saved
    if done == everything:
        if latest < search.best:
            search.best = latest
        return
    search.visited += 1
    # what each group still has to do bounds the end
    for j in range(MAX_GROUPS):
        saved[j] = search.free[j]
    for i in range(a.number):
        if done >> i & 1:
            continue
        shared |= wanted & a.groups[i]
        wanted |= a.groups[i]
        for j in range(MAX_GROUPS):
            if a.groups[i] >> j & 1:
                saved[j] += a.seconds[i]
                if saved[j] >= search.best:
                    return
    for i in range(a.number):  # nobody else wants its groups: no choice to make
        if not (done >> i & 1) and (a.needs[i] & ~done) == 0 and (a.groups[i] & shared) == 0:
            only = i
            break
    for j in range(MAX_GROUPS):
        saved[j] = search.free[j]
    for i in range(a.number):
        if done >> i & 1 or (a.needs[i] & ~done) != 0 or (only >= 0 and i != only):
            continue
        start = 0.0
        for j in range(a.number):
            if a.needs[i] >> j & 1:
                start = fmax(start, search.end[j] + a.transfer[i][j])
        for j in range(MAX_GROUPS):
            if a.groups[i] >> j & 1:
                start = fmax(start, saved[j])
        if start + search.tails[i] >= search.best:
            continue
        search.end[i] = start + a.seconds[i]
        for j in range(MAX_GROUPS):
            search.free[j] = search.end[i] if a.groups[i] >> j & 1 else saved[j]
        place(search, done | (<unsigned int>1 << i), fmax(latest, search.end[i]))
    for j in range(MAX_GROUPS):
        search.free[j] = saved[j]


cdef double best_schedule(const Activities* activities) noexcept nogil:
    """Seconds of the shortest schedule; activities stand in a topological order."""
    cdef Search search
    cdef int i
    search.activities = activities
    search.best = INFINITY
    search.visited = 0
    for i in range(MAX_GROUPS):
        search.free[i] = 0.0
    for i in range(MAX_ACTIVITIES):
        search.end[i] = 0.0
    longest_tails(activities, search.tails)
    place(&search, 0, 0.0)
    return search.best


cdef double asynchronous_period(const Activities* activities, double staleness) noexcept nogil:
    """``max(largest group load, loop latency / (1 + staleness))``."""
    cdef double[MAX_ACTIVITIES] tails
    cdef double[MAX_GROUPS] load
    cdef double worst = 0.0, loop = 0.0
    cdef int i, j
    longest_tails(activities, tails)
    for j in range(MAX_GROUPS):
        load[j] = 0.0
    for i in range(activities.number):
        loop = fmax(loop, tails[i])
        for j in range(MAX_GROUPS):
            if activities.groups[i] >> j & 1:
                load[j] += activities.seconds[i]
    for j in range(MAX_GROUPS):
        worst = fmax(worst, load[j])
    return fmax(worst, loop / (1 + staleness))
