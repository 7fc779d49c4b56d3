"""Seconds of every kind of replica seen so far, by all that they depend on."""

cdef struct Entry:
    unsigned long long hash
    double tokens
    double seconds  # of the pipeline, or of all the replica does
    double first  # with the old log-probabilities ahead of it
    int pattern  # 1 + the caller's number for task, layers and prompts; 0 in a free entry
    int key
    bint known


cdef class Signatures:
    cdef Entry* entries
    cdef unsigned long long* keys
    cdef size_t room, used, keys_room, keys_used
    cdef readonly long long num_missed

    cdef Entry* find(
        self, unsigned long long hash, int pattern, double tokens, const unsigned long long* key, int length) noexcept nogil
    cdef void clear(self) noexcept nogil


cdef inline unsigned long long mixed(unsigned long long value, unsigned long long place) noexcept nogil:
    """Hash of one part of a key; a key's hash is the exclusive or of its parts', so that parts can be exchanged."""
    cdef unsigned long long z = value * <unsigned long long>0x9E3779B97F4A7C15 + (place + 1) * <unsigned long long>0xD1B54A32D192ED03
    z = (z ^ (z >> 32)) * <unsigned long long>0xBF58476D1CE4E5B9
    return z ^ (z >> 29)
