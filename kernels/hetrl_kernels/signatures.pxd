"""Seconds of every kind of replica seen so far, by all that they depend on."""

from cython cimport final


cdef struct Entry:  # its key follows
    unsigned long long hash
    double tokens
    double seconds  # of the pipeline, or of all the replica does; an upper bound if only that is known
    double first  # with the old log-probabilities ahead of it
    double low  # lower bound of `seconds`, equal where these are exact; negative in a new entry
    int pattern  # the caller's number for task, layers and prompts
    unsigned int born  # after how many times of emptying the table; an entry of before is free


@final
cdef class Signatures:
    cdef void* memory
    cdef char* entries  # starts at a cache line
    cdef size_t room, stride, used
    cdef unsigned int born
    cdef readonly long long num_missed

    cdef Entry* find(
        self, unsigned long long hash, int pattern, double tokens, const int* key, int length) noexcept nogil
    cdef void clear(self) noexcept nogil


cdef inline unsigned long long weight(unsigned long long place) noexcept nogil:
    """Odd factor of one part of a key: a hash is the sum of the parts times these, so that parts can be exchanged."""
    cdef unsigned long long z = (place + 1) * <unsigned long long>0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * <unsigned long long>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <unsigned long long>0x94D049BB133111EB
    return (z ^ (z >> 31)) | 1
