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

    cdef int* ints(self, object values) except NULL:
        """Values of a sequence."""
        cdef Py_ssize_t i, number = len(values)
        cdef int* found = <int*>self.room(number * sizeof(int))
        for i in range(number):
            found[i] = values[i]
        return found

    cdef long long* words(self, object values) except NULL:
        cdef Py_ssize_t i, number = len(values)
        cdef long long* found = <long long*>self.room(number * sizeof(long long))
        for i in range(number):
            found[i] = values[i]
        return found

    cdef double* doubles(self, object values) except NULL:
        cdef Py_ssize_t i, number = len(values)
        cdef double* found = <double*>self.room(number * sizeof(double))
        for i in range(number):
            found[i] = values[i]
        return found

    cdef int* starts(self, list groups) except NULL:
        """First entry of every group where the groups' entries follow each other, and the number of all."""
        firsts = [0]
        for each in groups:
            firsts.append(firsts[-1] + len(each))
        return self.ints(firsts)
