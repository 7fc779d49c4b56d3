"""All declared options of a task on given devices, for the exact solver."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.finder cimport Finder
from hetrl_kernels.options cimport Option
from hetrl_kernels.timing cimport TrainTime


cdef class ExactFinder(Finder):
    cdef double[::1] slack, far
    cdef int[::1] leads, node_class
    cdef dict splits
    cdef dict sources, syncs  # of the devices of `place`
    cdef bytes place
    cdef public bint hosts_matter  # whether host memory could ever run out

    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept
    cdef double shares(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, int* base, int* extra) except? -1.0
    cdef bint leaner(self, Option a, Option b) noexcept
    cdef bint same_nodes(self, Option a, Option b) noexcept
    cdef bint no_slower(self, Option a, double seconds, Option b) noexcept
    cdef bint as_fast(self, Option a, double seconds, Option b, bint own_sources, bint own_targets)
    cdef double sync_excess(self, Option a, Option b, bint own_sources)
    cdef tuple sync_profile(self, Option option)
    cdef tuple sources_of(self, int task, Devices devices)
    cpdef double sync_floor(self, Option option)
    cpdef double least_sync(self, int task, bytes counts)
    cdef bint replaces(self, Option a, double seconds, Option b)
    cdef list training(self, int task, list found, double cutoff, list front)
    cdef enter(self, list front, Option option)
    cdef list scoring(self, int task, list found, tuple residencies, double cutoff)
    cdef list engines(self, int task, Devices devices, double cutoff)
    cpdef list front(self, int task, bytes counts, double cutoff)
    cpdef list shared_pairs(self, int trainer, int scorer, bytes counts, double train_cutoff, double score_cutoff)
    cpdef double fastest(self, int task, bytes counts)
    cdef double fastest_training(self, int task, list found)
    cdef double fastest_scoring(self, int task, list found)
    cdef double fastest_engine(self, int task, Devices devices, list found)
    cpdef double fastest_shared(self, int scorer, int trainer, bytes counts)


cdef bint shareable(Option trainer) noexcept
