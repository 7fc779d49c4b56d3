"""Options of scoring tasks."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.train_options cimport TrainOptions


cdef class ScoreOptions(TrainOptions):
    cdef dict shared  # (task, trainer's layout) -> options with the trainer's weights

    cdef tuple score_residencies(self, Devices devices)
    cdef tuple score_options(self, int task, list found, tuple residencies)
    cdef double least_scoring(self, int task, Layout layout, int shape) noexcept
    cdef Option score_option(
        self, int task, Layout layout, int shape, int weights, list marks, double bound, double* active, double* idle, double* host)
    cdef tuple shared_options(self, int task, Option trainer)
