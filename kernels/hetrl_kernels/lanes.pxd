"""Eight small counts in a word, one a byte, so that one operation changes, compares or adds up all of them.

Counts stay below 128: the highest bit of a byte is left for flags. Sums and differences of whole words are those of their counts.
"""

cdef enum:
    LANES = 8  # counts of a word


cdef inline unsigned long long occupied(unsigned long long word) noexcept nogil:
    """Flags of the counts that are not 0."""
    return (word + <unsigned long long>0x7F7F7F7F7F7F7F7F) & <unsigned long long>0x8080808080808080


cdef inline unsigned long long below(unsigned long long word, int limit) noexcept nogil:
    """Flags of the counts that are less than a number."""
    cdef unsigned long long flags = <unsigned long long>0x8080808080808080
    return ~((word | flags) - limit * <unsigned long long>0x0101010101010101) & flags


cdef inline int num_flags(unsigned long long flags) noexcept nogil:
    return <int>(((flags >> 7) * <unsigned long long>0x0101010101010101) >> 56)


cdef inline unsigned long long bits_of(unsigned long long flags) noexcept nogil:
    """Flags as eight bits in a row."""
    return ((flags >> 7) * <unsigned long long>0x0102040810204080) >> 56


cdef inline int count_sum(unsigned long long word) noexcept nogil:
    """Sum of all counts, which must be below 256."""
    return <int>((word * <unsigned long long>0x0101010101010101) >> 56)


cdef inline int count_at(unsigned long long word, int lane) noexcept nogil:
    return <int>(word >> 8 * lane) & 255


cdef extern from *:
    """
    typedef short Maxima __attribute__((vector_size(16)));
    typedef long long WordPair __attribute__((vector_size(16)));
    static inline Maxima larger(Maxima a, Maxima b) { Maxima over = a > b; return (a & over) | (b & ~over); }
    static inline Maxima maxima_of(long long low, long long high) { return (Maxima)(WordPair){low, high}; }
    static inline long long low_word(Maxima a) { return ((WordPair)a)[0]; }
    static inline long long high_word(Maxima a) { return ((WordPair)a)[1]; }
    """
    ctypedef struct Maxima:  # eight short numbers, of each of which the largest is sought
        pass
    Maxima larger(Maxima a, Maxima b) noexcept nogil
    Maxima maxima_of(long long low, long long high) noexcept nogil
    long long low_word(Maxima a) noexcept nogil
    long long high_word(Maxima a) noexcept nogil
