"""Options of generation tasks."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.score_options cimport ScoreOptions


cdef class EngineOptions(ScoreOptions):
    cdef void smallest_need(self, Option option)
    cdef void engine_shares(self, Option option, Option alone, const double* kv)
    cdef double engine_guess(self, int task, Layout layout) noexcept
    cdef tuple engine_options(self, int task, Devices devices)
    cdef Option engine(self, int task, Layout layout, int weights, const double* taken, double cutoff, Option alone)
