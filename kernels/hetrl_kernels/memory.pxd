"""Bytes of one rank of a task: while it runs, while it is idle, while weights are synced, and on the host."""

from hetrl_kernels.tables cimport Tables

cdef enum:  # optimizer-state sharding
    NO_SHARDING = 0
    ZERO1 = 1
    FSDP = 2

cdef enum:  # weights while idle
    RESIDENT = 0
    ON_HOST = 1
    DROPPED = 2
    SHARED = 3

cdef enum:  # optimizer states
    ON_DEVICE = 0
    HOST_WHEN_IDLE = 1
    HOST = 2


cdef struct State:
    double weights
    double gradients
    double optimizer


cdef struct Rank:
    double active
    double idle
    double sync
    double host
    double moved  # bytes that cross the host link around the task's interval


cdef State train_state(Tables t, int model, int degree, int first, int layers, int num_replicas, int sharding) noexcept nogil
cdef double train_activations(
    Tables t, int task, int degree_index, int first, int layers, int in_flight, double prompts, int micro_batch, bint recompute) noexcept nogil
cdef double gathered_bytes(Tables t, int model, int degree, int first, int layers) noexcept nogil
cdef Rank train_rank(
    Tables t, int kind, const State* state, double activations, double gathered, int weights, int optimizer, bint spans) noexcept nogil
cdef Rank score_rank(
    Tables t, int task, int kind, int degree_index, int degree, int first, int layers, int micro_batch, int weights, bint spans) noexcept nogil
cdef Rank generate_rank(
    Tables t, int task, int kind, int degree_index, int degree, int first, int layers, double prompts, int weights, bint spans) noexcept nogil
cdef double kv_bytes(Tables t, int model, int degree_index, int first, int layers) noexcept nogil
