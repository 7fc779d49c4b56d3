"""Seconds of weights and data that move between two tasks."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.options cimport Option
from hetrl_kernels.tables cimport Tables


cdef double add_received(Tables t, int task, Layout layout, const int* prompts, double* received) noexcept
cdef double sync_from(Tables t, const int* sources, Option target, bint drops_idle=*) noexcept
cdef double data_seconds(Tables t, Option source, Option target) noexcept
