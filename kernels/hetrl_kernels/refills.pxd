"""Other layer splits of pipelines over mixed devices."""

from hetrl_kernels.layouts cimport Layout, Splitter
from hetrl_kernels.tables cimport Tables


cdef class Refiller:
    cdef Tables t
    cdef dict splitters

    cdef list with_refills(self, int task, list found)
    cdef Layout refilled(self, int task, Layout layout)
    cdef Splitter splitter(self, int task, Layout layout)
    cdef void refill(self, Splitter splitter, Layout layout, int start, int stop, int* layers) noexcept nogil
