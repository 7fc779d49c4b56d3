"""Memory that lives as long as its owner."""


cdef class Arena:
    cdef list blocks_of_memory, mutable_blocks

    cdef void* room(self, size_t size) except NULL
    cdef void* state(self, size_t size) except NULL
    cdef void wipe(self)
    cdef int* ints(self, object values) except NULL
    cdef long long* words(self, object values) except NULL
    cdef double* doubles(self, object values) except NULL
    cdef int* starts(self, list groups) except NULL
