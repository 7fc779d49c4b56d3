"""splitmix64: the same numbers on every machine."""


cdef inline unsigned long long random_bits(unsigned long long* state) noexcept nogil:
    cdef unsigned long long z
    state[0] += <unsigned long long>0x9E3779B97F4A7C15
    z = state[0]
    z = (z ^ (z >> 30)) * <unsigned long long>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <unsigned long long>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline int random_below(unsigned long long* state, int limit) noexcept nogil:
    return <int>(((random_bits(state) >> 32) * <unsigned long long>limit) >> 32)
