"""Memory that lives as long as its owner."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef class Arena:
    """Base of classes that allocate arrays and free them together."""

    def __cinit__(self):
        self.blocks_of_memory = []
        self.mutable_blocks = []

    def __dealloc__(self):
        for address in self.blocks_of_memory or ():
            free(<void*><size_t>address)

    cdef void* room(self, size_t size) except NULL:
        """Zeroed memory."""
        cdef void* found = calloc(size if size else 1, 1)
        if found == NULL:
            raise MemoryError
        self.blocks_of_memory.append(<size_t>found)
        return found

    cdef void* state(self, size_t size) except NULL:
        """Zeroed memory that `wipe` sets to zero again."""
        cdef void* found = self.room(size)
        self.mutable_blocks.append((<size_t>found, size))
        return found

    cdef void wipe(self):
        for address, size in self.mutable_blocks:
            memset(<void*><size_t>address, 0, <size_t>size)
