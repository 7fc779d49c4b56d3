"""Options of training tasks."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.task_options cimport TaskOptions
from hetrl_kernels.timing cimport TrainTime


cdef struct Candidate:
    double bound
    double active  # largest fraction of a device
    double idle
    double host
    int layout
    int micro_batch  # index
    int recompute
    int sharding
    int residency


cdef int compare_candidates(const void* a, const void* b) noexcept nogil


cdef class TrainOptions(TaskOptions):
    cdef tuple train_options(self, int task, Devices devices)
    cdef double train_candidates(
        self, int task, Layout layout, int number_of_layout, Candidate** candidates, int* number, int* room, double fastest) except? -1.0
    cdef double pipelines_bound(self, int task, Layout layout, int mb, bint recompute, int* m_least) noexcept
    cdef Option train_variant(self, int task, Layout layout, const Candidate* candidate)
    cdef Option train_option(self, int task, Layout layout, const Candidate* candidate)
    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept
    cdef void train_cost(self, Option option, double moved)
    cdef double train_memory(self, Option option)
