"""Options of a task on given devices."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.refills cimport Refiller
from hetrl_kernels.shares cimport Shares
from hetrl_kernels.tables cimport Tables
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


cdef class Finder:
    cdef readonly Tables t
    cdef readonly dict cuts
    cdef readonly long long num_candidates, num_costed
    cdef int[:, ::1] allowed
    cdef dict known, shared
    cdef public dict kept  # task -> (tensor degree, per replica its stages as (node, layers)): its only layout
    cdef int max_options, engine_limit
    cdef Shares fill
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
    cdef void smallest_need(self, Option option)
    cdef void engine_shares(self, Option option, Option alone, const double* kv)
    cdef tuple train_options(self, int task, Devices devices)
    cdef double train_candidates(
        self, int task, Layout layout, int number_of_layout, Candidate** candidates, int* number, int* room, double fastest) except? -1.0
    cdef double pipelines_bound(self, int task, Layout layout, int mb, bint recompute, int* m_least) noexcept
    cdef Option train_variant(self, int task, Layout layout, const Candidate* candidate)
    cdef Option train_option(self, int task, Layout layout, const Candidate* candidate)
    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept
    cdef void train_cost(self, Option option, double moved)
    cdef double train_memory(self, Option option)
    cdef tuple score_residencies(self, Devices devices)
    cdef tuple score_options(self, int task, list found, tuple residencies)
    cdef Option score_option(
        self, int task, Layout layout, int shape, int weights, list marks, double bound, double* active, double* idle, double* host)
    cdef double engine_guess(self, int task, Layout layout) noexcept
    cdef tuple engine_options(self, int task, Devices devices)
    cpdef tuple options(self, int task, Devices devices)
    cdef bint knows(self, int task, bytes counts)
    cdef tuple shared_options(self, int task, Option trainer)
    cdef Option engine(self, int task, Layout layout, int weights, const double* taken, double cutoff, Option alone)
