# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Bytes of one rank of a task, term by term as in the readable evaluator's residency."""

from libc.math cimport ceil

from hetrl_kernels.tables cimport Tables, fmax, fmin

cdef enum:  # columns of the allowances
    PROCESS = 0
    ENGINE = 1
    COMMUNICATION = 2
    FRAGMENTATION = 3
    HOST_PROCESS = 4


cdef State train_state(Tables t, int model, int degree, int first, int layers, int num_replicas, int sharding) noexcept nogil:
    cdef State state
    cdef double parameters = t.stage_parameters(model, first, layers) / degree
    cdef double trained = parameters, frozen = 0.0
    cdef int optimizer_ranks = 1 if sharding == NO_SHARDING else num_replicas
    cdef int all_ranks = num_replicas if sharding == FSDP else 1
    if t.lora:
        trained = t.model_lora[model] * layers / t.model_layers[model] / degree
        frozen = parameters * t.weight_bytes
    state.weights = (frozen + trained * t.weight_bytes) / all_ranks
    state.gradients = trained * t.gradient_bytes / all_ranks
    state.optimizer = trained * t.optimizer_bytes / optimizer_ranks
    return state


cdef StageActivations stage_activations(Tables t, int task, int degree_index, int first, int layers, int in_flight) noexcept nogil:
    """Activations per token of a training stage, logits included on the last stage."""
    cdef StageActivations stage
    cdef int model = t.task_model[task], k, count
    stage.kept = stage.expanded = stage.logits = 0.0
    stage.inputs = layers * t.model_hidden_bytes[model]
    stage.in_flight = in_flight
    stage.logits_factor = t.train_logits_factor
    for k in range(t.model_kinds[model]):
        count = t.kinds_before[model, k, first + layers] - t.kinds_before[model, k, first]
        if count:
            stage.kept += t.kind_activation[model, degree_index, k] * count
            stage.expanded = fmax(stage.expanded, t.kind_activation[model, degree_index, k])
    if first + layers == t.model_layers[model] and t.model_is_lm[model]:
        stage.logits = t.model_logits[model, degree_index]
    return stage


cdef double micro_batch_size(Tables t, int task, double prompts, int micro_batch, double* num_micro_batches) noexcept nogil:
    """Sequences of a micro-batch, no more than a mini-batch has, and how many of them a mini-batch has."""
    cdef double sequences = prompts * t.task_sequences[task] / t.num_mini_batches
    cdef double size = fmax(1.0, fmin(micro_batch, ceil(sequences)))
    num_micro_batches[0] = fmax(1.0, ceil(sequences / size))
    return size


cdef double train_activations(
    Tables t, int task, int degree_index, int first, int layers, int in_flight, double prompts, int micro_batch,
    bint recompute) noexcept nogil:
    """Activations of a training stage at its peak, logits included on the last stage, without fragmentation."""
    cdef StageActivations stage = stage_activations(t, task, degree_index, first, layers, in_flight)
    cdef double num_micro_batches
    cdef double size = micro_batch_size(t, task, prompts, micro_batch, &num_micro_batches)
    return activation_bytes(&stage, size * t.max_sequence, num_micro_batches, recompute)


cdef double gathered_bytes(Tables t, int model, int degree, int first, int layers) noexcept nogil:
    """Weights of two layers, which FSDP gathers at a time."""
    cdef double largest = 0.0
    cdef int k
    for k in range(t.model_kinds[model]):
        if t.kinds_before[model, k, first + layers] > t.kinds_before[model, k, first]:
            largest = fmax(largest, t.kind_parameters[model, k])
    return 2 * largest * t.bytes_per_element / degree


cdef inline double process_bytes(Tables t, int kind, bint spans) noexcept nogil:
    return t.type_allowance[kind, PROCESS] + (t.type_allowance[kind, COMMUNICATION] if spans else 0.0)


cdef Rank train_rank(
    Tables t, int kind, const State* state, double activations, double gathered, int weights, int optimizer,
    bint spans) noexcept nogil:
    cdef Rank rank
    cdef double process = process_bytes(t, kind, spans)
    cdef bint stay = weights == RESIDENT
    cdef double held = state.optimizer if optimizer == ON_DEVICE else 0.0
    rank.active = (
        state.weights + gathered + state.gradients + (0.0 if optimizer == HOST else state.optimizer)
        + activations * (1.0 + t.type_allowance[kind, FRAGMENTATION]) + process
    )
    rank.idle = (state.weights if stay else 0.0) + held + process
    rank.sync = state.weights + held + process
    rank.host = t.type_allowance[kind, HOST_PROCESS]
    rank.host += state.optimizer if optimizer != ON_DEVICE else 0.0
    rank.host += 0.0 if stay else state.weights
    rank.moved = 0.0
    if optimizer == HOST_WHEN_IDLE:
        rank.moved += 2 * state.optimizer
    if weights == ON_HOST:
        rank.moved += 2 * state.weights
    return rank


cdef Rank score_rank(
    Tables t, int task, int kind, int degree_index, int degree, int first, int layers, int micro_batch, int weights,
    bint spans) noexcept nogil:
    cdef Rank rank
    cdef int model = t.task_model[task]
    cdef double bytes_here = t.stage_parameters(model, first, layers) * t.bytes_per_element / degree
    cdef double batch_tokens = micro_batch * t.max_sequence
    cdef double activations = t.model_widest_activation[model, degree_index] * batch_tokens
    cdef double process = 0.0 if weights == SHARED else process_bytes(t, kind, spans)
    cdef double own = 0.0 if weights == SHARED else bytes_here
    if first + layers == t.model_layers[model] and t.model_is_lm[model]:
        activations += batch_tokens * t.model_logits[model, degree_index]
    rank.active = own + activations * (1.0 + t.type_allowance[kind, FRAGMENTATION]) + process
    rank.idle = (own if weights == RESIDENT else 0.0) + process
    rank.sync = own + process if t.task_trained[task] else rank.idle
    rank.host = 0.0 if weights == SHARED else t.type_allowance[kind, HOST_PROCESS]
    if weights == ON_HOST:
        rank.host += bytes_here
    rank.moved = own if weights == ON_HOST else 0.0
    return rank


cdef Rank generate_rank(
    Tables t, int task, int kind, int degree_index, int degree, int first, int layers, double prompts, int weights,
    bint spans) noexcept nogil:
    cdef Rank rank
    cdef int model = t.task_model[task]
    cdef double bytes_here = t.stage_parameters(model, first, layers) * t.bytes_per_element / degree
    cdef double tokens = fmin(t.prefill_activation_tokens, t.prompt_tokens * fmax(1, prompts))
    cdef double process = process_bytes(t, kind, spans)
    cdef double loaded = bytes_here + t.type_allowance[kind, ENGINE] + process
    rank.active = loaded + t.model_widest_activation[model, degree_index] * tokens * (1.0 + t.type_allowance[kind, FRAGMENTATION])
    rank.sync = loaded
    rank.idle = loaded if weights == RESIDENT else process
    rank.host = t.type_allowance[kind, HOST_PROCESS]
    rank.moved = bytes_here if weights == ON_HOST else 0.0
    return rank


cdef double kv_bytes(Tables t, int model, int degree_index, int first, int layers) noexcept nogil:
    """KV bytes of one token on one rank of a stage."""
    cdef double total = 0.0
    cdef int k
    for k in range(t.model_kinds[model]):
        total += t.kind_kv[model, degree_index, k] * (t.kinds_before[model, k, first + layers] - t.kinds_before[model, k, first])
    return total
