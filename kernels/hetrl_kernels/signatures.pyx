# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of every kind of replica seen so far, by all that they depend on.

Open addressing, an entry and its key in one or two cache lines; the whole key is compared, so that two replicas whose
hashes are equal by chance stay two. A full table is emptied: it only saves time.
"""

from cython cimport final
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

cdef enum:
    CACHE_LINE = 64


@final
cdef class Signatures:
    """An empty table.

    Parameters
    ----------
    bits
        Binary logarithm of its room.
    longest
        Parts of the longest key.
    """

    def __cinit__(self, int bits, int longest):
        self.room = <size_t>1 << bits
        self.stride = (sizeof(Entry) + longest * sizeof(int) + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
        self.born = 1
        self.memory = calloc(self.room * self.stride + CACHE_LINE, 1)
        if self.memory == NULL:
            raise MemoryError
        self.entries = <char*>(<size_t>self.memory + CACHE_LINE - <size_t>self.memory % CACHE_LINE)

    def __dealloc__(self):
        free(self.memory)

    cdef void clear(self) noexcept nogil:
        self.used = 0
        self.born += 1
        if self.born == 0:  # after 2^32 times
            memset(self.entries, 0, self.room * self.stride)
            self.born = 1

    cdef Entry* find(
        self, unsigned long long hash, int pattern, double tokens, const int* key, int length) noexcept nogil:
        """The entry of a key; where there was none a new one, ``NEW``, for the caller to fill in."""
        cdef size_t mask = self.room - 1
        cdef size_t home = (hash ^ (hash >> 32)) * <unsigned long long>0x9E3779B97F4A7C15 >> 40 & mask
        cdef size_t place = home
        cdef Entry* entry
        cdef const int* known
        cdef int i
        while True:
            entry = <Entry*>(self.entries + place * self.stride)
            if entry.born != self.born:
                break
            if entry.hash == hash and entry.pattern == pattern and entry.tokens == tokens:
                known = <const int*>(entry + 1)
                i = 0
                while i < length and known[i] == key[i]:
                    i += 1
                if i == length:
                    return entry
            place = (place + 1) & mask
        self.num_missed += 1
        if 2 * self.used >= self.room:
            self.clear()
            entry = <Entry*>(self.entries + home * self.stride)
        entry.hash = hash
        entry.pattern = pattern
        entry.born = self.born
        entry.tokens = tokens
        entry.low = -1.0
        memcpy(entry + 1, key, length * sizeof(int))
        self.used += 1
        return entry
