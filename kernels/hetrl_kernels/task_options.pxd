"""What finding the options of training, scoring and generation has in common."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.refills cimport Refiller
from hetrl_kernels.shares cimport Shares
from hetrl_kernels.tables cimport Tables


cdef class TaskOptions:
    cdef readonly Tables t
    cdef readonly dict cuts
    cdef readonly long long num_candidates, num_costed
    cdef int[:, ::1] allowed
    cdef public dict kept  # task -> (tensor degree, per replica its stages as (node, layers)): its only layout
    cdef int max_options, engine_limit
    cdef Shares fill
    cdef dict splitters  # (task, tensor degree's index, number of the memory) -> Splitter
    cdef Refiller refiller
    cdef bint refills  # mixed pipelines are also tried with their fastest stages filled first
    cdef bint exact_fill  # shares by the threshold fill wherever they are costed
    cdef double cutoff  # negative, or seconds above which options are cut, and none for any other reason

    cdef double slow_limit(self, double fastest) noexcept nogil
    cdef Devices devices(self, bytes key)
    cdef cut(self, str reason, long long number=*)
    cdef list layouts_of(self, int task, Devices devices)
    cdef double class_seconds(
        self, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, int prompts, const double* kv) noexcept
    cdef double shares(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, int* base, int* extra) except? -1.0
    cdef int most_prompts(self, Option option, int c, double threshold) noexcept
    cdef double seconds_of(self, Option option, int c, int prompts) noexcept
    cdef void spread(self, Option option, const int* base, const int* extra) noexcept
    cdef void add_host(self, Option option, const double* host) noexcept
