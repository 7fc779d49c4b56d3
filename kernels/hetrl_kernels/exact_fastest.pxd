"""The fastest declared option of a task on given devices."""

from hetrl_kernels.finder cimport Finder
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.timing cimport TrainTime


cdef class FastestFinder(Finder):
    cdef dict splits

    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept
    cdef double shares(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, int* base, int* extra) except? -1.0
    cpdef double fastest(self, int task, bytes counts)
    cdef double fastest_training(self, int task, list found)
    cdef double fastest_scoring(self, int task, list found)
    cdef double fastest_engine(self, int task, Devices devices, list found)
    cpdef double fastest_shared(self, int scorer, int trainer, bytes counts)
