"""splitmix64: the same numbers on every machine."""

cdef extern from *:
    """
    static inline int random_part(unsigned long long* fraction, int limit) {
        unsigned __int128 product = (unsigned __int128)*fraction * (unsigned int)limit;
        *fraction = (unsigned long long)product;
        return (int)(product >> 64);
    }
    """
    # a number below the limit from random bits read as a fraction of 1; what is left of them serves for further numbers
    int random_part(unsigned long long* fraction, int limit) noexcept nogil


cdef inline unsigned long long random_bits(unsigned long long* state) noexcept nogil:
    cdef unsigned long long z
    state[0] += <unsigned long long>0x9E3779B97F4A7C15
    z = state[0]
    z = (z ^ (z >> 30)) * <unsigned long long>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <unsigned long long>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline int random_below(unsigned long long* state, int limit) noexcept nogil:
    return <int>(((random_bits(state) >> 32) * <unsigned long long>limit) >> 32)
