"""When one option is as good as another."""

from hetrl_kernels.exact_fastest cimport FastestFinder
from hetrl_kernels.layouts cimport Devices
from hetrl_kernels.options cimport Option


cdef class OptionOrder(FastestFinder):
    cdef double[::1] slack, far
    cdef int[::1] leads, node_class
    cdef dict sources, syncs  # of the devices of `place`
    cdef bytes place
    cdef public bint hosts_matter  # whether host memory could ever run out

    cdef bint leaner(self, Option a, Option b) noexcept
    cdef bint same_nodes(self, Option a, Option b) noexcept
    cdef bint as_fast(self, Option a, double seconds, Option b, bint own_sources, bint own_targets)
    cdef bint no_slower(self, Option a, double seconds, Option b) noexcept
    cdef double sync_excess(self, Option a, Option b, bint own_sources)
    cdef tuple sync_profile(self, Option option)
    cdef tuple sources_of(self, int task, Devices devices)
    cpdef double sync_floor(self, Option option)
    cpdef double least_sync(self, int task, bytes counts)
    cdef bint replaces(self, Option a, double seconds, Option b)
