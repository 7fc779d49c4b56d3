"""The largest of some numbers, kept up to date while they change, and where it is.

Only where the largest itself becomes smaller, all are looked through: with n numbers of which any may change, that costs
as much as another comparison or two per change, and unlike a tree's path it is hardly ever mispredicted.
"""

from hetrl_kernels.undo cimport Log, put, put_number


cdef struct Maxima:
    int number
    double* values
    double* top  # [1] the largest; 0 if there is none
    long long* place  # [1] of one that is as large


cdef inline void change(Log* log, const Maxima* maxima, int place, double value) noexcept nogil:
    """Write one of the numbers."""
    cdef double before = maxima.values[place]
    if value == before:
        return
    put_number(log, maxima.values + place, value)
    if value >= maxima.top[0]:
        put_number(log, maxima.top, value)
        if place != maxima.place[0]:
            put(log, maxima.place, place)
    elif place == maxima.place[0]:
        look_through(log, maxima)


cdef inline void look_through(Log* log, const Maxima* maxima) noexcept nogil:
    cdef const double* values = maxima.values
    cdef double first = values[0], second = first, third = first, fourth = first  # none waits for the other
    cdef int i = 0, number = maxima.number
    while i + 3 < number:
        first = values[i] if values[i] > first else first
        second = values[i + 1] if values[i + 1] > second else second
        third = values[i + 2] if values[i + 2] > third else third
        fourth = values[i + 3] if values[i + 3] > fourth else fourth
        i += 4
    while i < number:
        first = values[i] if values[i] > first else first
        i += 1
    first = first if first > second else second
    third = third if third > fourth else fourth
    first = first if first > third else third
    i = 0
    while values[i] != first:
        i += 1
    put_number(log, maxima.top, first)
    put(log, maxima.place, i)
