# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of every kind of replica seen so far, by all that they depend on.

Open addressing; the whole key is compared, so that two replicas whose hashes are equal by chance stay two. A full table
is emptied: it only saves time.
"""

from cython cimport final
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset


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
        self.longest = longest
        self.entries = <Entry*>calloc(self.room, sizeof(Entry))
        self.keys = <int*>malloc(self.room * longest * sizeof(int))
        if self.entries == NULL or self.keys == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.entries)
        free(self.keys)

    cdef void clear(self) noexcept nogil:
        memset(self.entries, 0, self.room * sizeof(Entry))
        self.used = 0

    cdef Entry* find(
        self, unsigned long long hash, int pattern, double tokens, const int* key, int length) noexcept nogil:
        """The entry of a key; where there was none a new one, not ``known``, for the caller to fill in."""
        cdef size_t mask = self.room - 1
        cdef size_t home = (hash ^ (hash >> 32)) * <unsigned long long>0x9E3779B97F4A7C15 >> 40 & mask
        cdef size_t place = home
        cdef Entry* entry
        while True:
            entry = self.entries + place
            if entry.pattern == 0:
                break
            if (
                entry.hash == hash and entry.pattern == pattern + 1 and entry.tokens == tokens
                and memcmp(self.keys + place * self.longest, key, length * sizeof(int)) == 0
            ):
                return entry
            place = (place + 1) & mask
        self.num_missed += 1
        if 2 * self.used >= self.room:
            self.clear()
            place = home
            entry = self.entries + place
        entry.hash = hash
        entry.pattern = pattern + 1
        entry.tokens = tokens
        entry.known = False
        memcpy(self.keys + place * self.longest, key, length * sizeof(int))
        self.used += 1
        return entry
