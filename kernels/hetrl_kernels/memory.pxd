"""Bytes of one rank of a task: while it runs, while it is idle, while weights are synced, and on the host."""

from hetrl_kernels.tables cimport Tables, fmin

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


cdef struct StageActivations:  # of a training stage
    double kept  # bytes per token where nothing is recomputed
    double expanded  # bytes per token of the widest layer, while it is recomputed
    double inputs  # bytes per token of all layers' inputs
    double logits  # bytes per token, once
    double logits_factor  # how often they are there
    int in_flight  # micro-batches at most


cdef inline double activation_bytes(
    const StageActivations* stage, double batch_tokens, double num_micro_batches, bint recompute) noexcept nogil:
    """At a stage's peak, without fragmentation."""
    cdef double flying = fmin(num_micro_batches, stage.in_flight)
    if recompute:
        return stage.inputs * batch_tokens * flying + stage.expanded * batch_tokens + batch_tokens * stage.logits * stage.logits_factor
    return stage.kept * batch_tokens * flying + batch_tokens * stage.logits * stage.logits_factor


cdef StageActivations stage_activations(Tables t, int task, int degree_index, int first, int layers, int in_flight) noexcept nogil
cdef double micro_batch_size(Tables t, int task, double prompts, int micro_batch, double* num_micro_batches) noexcept nogil
cdef State train_state(Tables t, int model, int degree, int first, int layers, int num_replicas, int sharding) noexcept nogil
cdef double train_activations(
    Tables t, int task, int degree_index, int first, int layers, int in_flight, double prompts, int micro_batch,
    bint recompute) noexcept nogil
cdef double gathered_bytes(Tables t, int model, int degree, int first, int layers) noexcept nogil
cdef Rank train_rank(
    Tables t, int kind, const State* state, double activations, double gathered, int weights, int optimizer,
    bint spans) noexcept nogil
cdef Rank score_rank(
    Tables t, int task, int kind, int degree_index, int degree, int first, int layers, int micro_batch, int weights,
    bint spans) noexcept nogil
cdef Rank generate_rank(
    Tables t, int task, int kind, int degree_index, int degree, int first, int layers, double prompts, int weights,
    bint spans) noexcept nogil
cdef double kv_bytes(Tables t, int model, int degree_index, int first, int layers) noexcept nogil
