"""Options of all tasks, found once."""

from hetrl_kernels.engine_options cimport EngineOptions
from hetrl_kernels.layouts cimport Devices


cdef class Finder(EngineOptions):
    cdef dict known

    cpdef tuple options(self, int task, Devices devices)
    cdef bint knows(self, int task, bytes counts)
