"""Seconds of one replica of a task, and of the parts that all replicas of a training task share."""

from hetrl_kernels.tables cimport Tables


cdef struct Replica:
    int num_stages
    const int* node  # [num_stages]
    const int* layers  # [num_stages]


cdef struct TrainTime:
    double pipeline
    double old_log_probs
    int num_micro_batches
    double fluid  # a lower bound of all of a step's work per prompt, free of pipeline fill


cdef struct StageTime:  # one full micro-batch on a stage, tensor-parallel all-reduces included
    double forward
    double backward
    double scoring  # old log-probabilities, or a scoring task's forward pass


cdef StageTime train_stage(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, int node, int first,
    int layers) noexcept nogil
cdef StageTime stage_time(Tables t, int kind, int micro_batch, bint recompute, double seconds, double reduces) noexcept nogil
cdef double stage_all_reduces(Tables t, double hidden, int degree, int node, int layers) noexcept nogil
cdef double boundary_seconds(Tables t, int task, int micro_batch, int source, int target) noexcept nogil
cdef void train_stages(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, const Replica* replica,
    StageTime* stages, double* sends) noexcept nogil
cdef TrainTime train_pipeline(
    Tables t, int task, int micro_batch, int num_stages, const StageTime* stages, const double* sends, double prompts,
    bint bound) noexcept nogil
cdef double train_fluid(Tables t, int task, int micro_batch, double slowest, double slowest_score) noexcept nogil
cdef double score_stage(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, int node, int first,
    int layers) noexcept nogil
cdef TrainTime train_replica(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, const Replica* replica,
    double prompts, bint bound) noexcept nogil
cdef double score_replica(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, const Replica* replica,
    double prompts) noexcept nogil
cdef double score_fluid(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, const Replica* replica) noexcept nogil
cdef double generate_replica(
    Tables t, int task, int degree_index, int degree, int limit, const Replica* replica, int prompts,
    double kv_tokens) noexcept nogil
