"""Memory that lives as long as its owner."""


cdef class Arena:
    cdef list blocks_of_memory

    cdef void* room(self, size_t size) except NULL
