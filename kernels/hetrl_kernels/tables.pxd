"""The lowered job as C sees it, and the amounts and times that follow from it directly."""

cdef enum:
    TRAIN = 0
    SCORE = 1
    GENERATE = 2

cdef enum:  # phases of the calibration, in the order of the tables
    PHASE_GENERATE = 0
    PHASE_PREFILL = 1
    PHASE_SCORE = 2
    PHASE_TRAIN = 3
    PHASE_OPTIMIZER = 4
    PHASE_SYNC = 5
    PHASE_REDUCE = 6

cdef enum:  # operations of collectives, in the order of the tables
    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2

cdef enum:
    MAX_STAGES = 64
    MAX_TASKS = 16
    NUM_TAIL = 16
    NUM_SCORE_SHAPES = 3


cdef class Tables:
    cdef readonly int num_nodes, num_types, num_models, num_tasks, num_degrees, num_shapes, num_grid, first_prefill_shape
    cdef readonly int num_prompts, num_mini_batches, num_updates, prefill_chunk, bytes_per_element, online
    cdef readonly double prompt_tokens, mean_response, max_response, max_sequence, prefill_activation_tokens, staleness
    cdef readonly double weight_bytes, gradient_bytes, optimizer_bytes, gradient_overlap, gather_overlap, train_logits_factor
    cdef readonly bint lora
    cdef int[::1] node_type, node_devices, node_kind
    cdef double[::1] node_limit, node_host_ram, node_host_link, node_host_memory, node_nic, node_usd
    cdef double[:, ::1] link_latency, link_bandwidth
    cdef int[:, ::1] link_kind
    cdef double[:, :, :, ::1] node_collective
    cdef double[::1] type_flops, type_memory, type_bandwidth
    cdef int[::1] type_vendor, type_is_cpu, type_supported
    cdef double[:, ::1] type_allowance
    cdef double[:, :, ::1] calibration
    cdef int[::1] model_layers, model_kinds, model_tied, model_is_lm
    cdef double[:, ::1] model_outside
    cdef double[::1] model_parameters, model_lora, model_hidden_bytes
    cdef double[:, ::1] parameters_before
    cdef int[:, :, ::1] kinds_before
    cdef double[:, ::1] kind_parameters, kind_window
    cdef double[:, :, ::1] kind_activation, kind_kv
    cdef double[:, ::1] model_widest_activation, model_logits
    cdef int[:, ::1] tensor_allowed
    cdef double[:, :, :, :, ::1] layer_seconds
    cdef double[:, :, :, ::1] head_seconds
    cdef double[:, :, :, :, ::1] decode_projections
    cdef double[:, :, :, :, :, ::1] decode_attention
    cdef double[:, :, :, ::1] decode_head
    cdef double[::1] concurrency_grid, decode_contexts
    cdef int[::1] task_kind, task_model, task_role, task_sequences, task_trained, task_role_is_actor
    cdef double[::1] task_in_flight, transfer_weights
    cdef int[:, ::1] task_needs
    cdef double[:, ::1] transfer_bytes
    cdef double[::1] tail_times, tail_alive
    cdef double* any_alive  # [concurrency, NUM_TAIL] filled on first use, negative before
    cdef int most_running
    cdef object keep

    cdef double inside(self, int node, int operation, int n, double v) noexcept nogil
    cdef double stage_parameters(self, int model, int first, int layers) noexcept nogil
    cdef double stage_seconds(self, int model, int kind, int degree, int shape, int first, int layers) noexcept nogil


cdef inline double fmax(double a, double b) noexcept nogil:  # libm's own is a call, because of its rules on nan
    return a if a > b else b


cdef inline double fmin(double a, double b) noexcept nogil:
    return a if a < b else b


cdef inline int micro_batch_of(int shape) noexcept nogil:
    """Sequences of a micro-batch, by its index in the tables."""
    return 1 << shape


cdef inline int score_shape(int number) noexcept nogil:
    """Index of the micro-batch of a scoring shape: 1, 4 or 16 sequences."""
    return 2 * number


cdef inline double all_reduce(double v, int n, double latency, double bandwidth) noexcept nogil:
    if n <= 1:
        return 0.0
    return 2 * (n - 1) * (latency + v / (n * bandwidth))


cdef inline double all_gather(double v, int n, double latency, double bandwidth) noexcept nogil:
    if n <= 1:
        return 0.0
    return (n - 1) * (latency + v / (n * bandwidth))


cdef double one_f_one_b(int num_stages, const double* forward, const double* backward, const double* send, int m) noexcept nogil
cdef double one_f_one_b_bound(int num_stages, const double* forward, const double* backward, const double* send, int m) noexcept nogil
cdef double forward_only(int num_stages, const double* forward, const double* send, int m) noexcept nogil
