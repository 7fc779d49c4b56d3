"""One way to run a task on given devices."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.memory cimport Rank
from hetrl_kernels.tables cimport Tables

cdef enum:  # columns of `TaskOptions.allowed`: features that plans may use, per task kind
    ALLOW_PIPELINE = 0
    ALLOW_TENSOR = 1
    ALLOW_ZERO1 = 2
    ALLOW_FSDP = 3
    ALLOW_RECOMPUTE = 4
    ALLOW_OPTIMIZER_HOST = 5
    ALLOW_WEIGHTS_HOST = 6
    ALLOW_DROPPED = 7


cdef class Option:
    """One way to run a task: layout, settings, shares, seconds, and the largest bytes of a device in every cell."""

    cdef readonly Layout layout
    cdef readonly int task, micro_batch, recompute, sharding, weights, optimizer
    cdef readonly double seconds
    cdef int* prompts  # [R]
    cdef int* used  # [N] devices
    cdef double* kv  # [classes] tokens of an engine's KV pools
    cdef readonly int shape
    cdef bint full  # an engine whose KV pools are as large as they are useful
    cdef double* need  # [cells] bytes that an engine's fullest device takes with its smallest KV pool; NULL if not worked out
    cdef dict beside  # sequences that the KV pools of an engine's classes run at once -> (seconds, shares)
    cdef double* active  # [cells], as the following
    cdef double* idle
    cdef double* sync
    cdef double* host


cdef Option new_option(Tables t, Layout layout, int task, int micro_batch)
cdef void add_rank(Option option, int cell, const Rank* rank) noexcept nogil
cdef void spread_to_replicas(Layout layout, double* values) noexcept nogil
