# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of one replica of a task: training pipelines, scoring, generation.

Compositions of the lowered unit costs, term by term as in the readable evaluator. Infeasible is infinite.
"""

from libc.math cimport INFINITY, ceil, floor, pow

from hetrl_kernels.tables cimport fmax, fmin
from hetrl_kernels.tables cimport (
    ALL_REDUCE, MAX_STAGES, NUM_TAIL, PHASE_GENERATE, PHASE_PREFILL, PHASE_SCORE, PHASE_TRAIN, Tables, forward_only,
    one_f_one_b, one_f_one_b_bound,
)


cdef inline double calibrated(Tables t, int kind, int phase, double composed, double iterations, double sequences) noexcept nogil:
    return (
        t.calibration[kind, phase, 0] * composed + t.calibration[kind, phase, 1] * iterations + t.calibration[kind, phase, 2] * sequences
    )


cdef inline double send_seconds(Tables t, double num_bytes, int source, int target) noexcept nogil:
    return t.link_latency[source, target] + num_bytes / t.link_bandwidth[source, target]


cdef double stage_all_reduces(Tables t, double hidden, int degree, int node, int layers) noexcept nogil:
    """Tensor-parallel all-reduces of one pass: two per layer."""
    if degree <= 1:
        return 0.0
    return 2 * layers * t.inside(node, ALL_REDUCE, degree, hidden)


cdef StageTime train_stage(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, int node, int first,
    int layers) noexcept nogil:
    """A full micro-batch of a training task on one stage."""
    cdef int model = t.task_model[task], kind = t.node_type[node]
    cdef double hidden = micro_batch * (t.prompt_tokens + t.mean_response) * t.model_hidden_bytes[model]
    return stage_time(
        t, kind, micro_batch, recompute, t.stage_seconds(model, kind, degree_index, shape, first, layers),
        stage_all_reduces(t, hidden, degree, node, layers),
    )


cdef StageTime stage_time(Tables t, int kind, int micro_batch, bint recompute, double seconds, double reduces) noexcept nogil:
    """The same from the seconds of the layers' forward pass and of its all-reduces."""
    cdef StageTime time
    cdef int passes_back = 3 if recompute else 2
    cdef double per_sequence = t.calibration[kind, PHASE_TRAIN, 2] * micro_batch
    cdef double ahead = t.calibration[kind, PHASE_TRAIN, 0] * seconds + t.calibration[kind, PHASE_TRAIN, 1] / 3 + per_sequence / 3
    cdef double behind = (
        t.calibration[kind, PHASE_TRAIN, 0] * seconds * passes_back + (t.calibration[kind, PHASE_TRAIN, 1] + per_sequence) * 2 / 3
    )
    time.forward = ahead + reduces
    time.backward = behind + reduces * (2 if recompute else 1)
    time.scoring = calibrated(t, kind, PHASE_SCORE, seconds, 1, micro_batch) + reduces
    return time


cdef double boundary_seconds(Tables t, int task, int micro_batch, int source, int target) noexcept nogil:
    """A full micro-batch's activations, or their gradients, from one stage to the next."""
    cdef double hidden = micro_batch * (t.prompt_tokens + t.mean_response) * t.model_hidden_bytes[t.task_model[task]]
    return send_seconds(t, hidden, source, target)


cdef void train_stages(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, const Replica* replica,
    StageTime* stages, double* sends) noexcept nogil:
    """All stages of a replica, and what lies between them."""
    cdef int j, first = 0
    for j in range(replica.num_stages):
        stages[j] = train_stage(t, task, degree_index, degree, shape, micro_batch, recompute, replica.node[j], first, replica.layers[j])
        first += replica.layers[j]
        if j + 1 < replica.num_stages:
            sends[j] = boundary_seconds(t, task, micro_batch, replica.node[j], replica.node[j + 1])


cdef TrainTime train_pipeline(
    Tables t, int task, int micro_batch, int num_stages, const StageTime* stages, const double* sends, double prompts,
    bint bound) noexcept nogil:
    """A mini-batch's pipeline and the old log-probabilities of a replica; with ``bound`` the pipeline's lower bound."""
    cdef TrainTime result
    cdef double per_update = prompts * t.task_sequences[task] / t.num_mini_batches
    cdef double[MAX_STAGES] forward, backward, scoring, sent
    cdef double fill, slowest = 0.0, slowest_score = 0.0
    cdef int j, m
    result.pipeline = 0.0
    result.old_log_probs = 0.0
    result.num_micro_batches = 0
    result.fluid = 0.0
    if per_update == 0:
        return result
    m = <int>ceil(per_update / micro_batch)
    fill = per_update / (m * micro_batch)
    for j in range(num_stages):
        forward[j] = fill * stages[j].forward
        backward[j] = fill * stages[j].backward
        scoring[j] = fill * stages[j].scoring
        slowest = fmax(slowest, stages[j].forward + stages[j].backward)
        slowest_score = fmax(slowest_score, stages[j].scoring)
        if j + 1 < num_stages:
            sent[j] = fill * sends[j]
    if bound:
        result.pipeline = one_f_one_b_bound(num_stages, forward, backward, sent, m)
    else:
        result.pipeline = one_f_one_b(num_stages, forward, backward, sent, m)
    result.num_micro_batches = m
    result.fluid = train_fluid(t, task, micro_batch, slowest, slowest_score)
    if t.task_role_is_actor[task]:
        result.old_log_probs = forward_only(num_stages, scoring, sent, m * t.num_mini_batches)
    return result


cdef double train_fluid(Tables t, int task, int micro_batch, double slowest, double slowest_score) noexcept nogil:
    """Lower bound of all of a step's work per prompt, free of pipeline fill, from the slowest stages' full micro-batches.

    The number of micro-batches times their fill and size is the number of sequences, whatever the number of prompts.
    """
    cdef double fluid = t.num_updates * slowest / micro_batch * t.task_sequences[task] / t.num_mini_batches
    if t.task_role_is_actor[task]:
        fluid += slowest_score / micro_batch * t.task_sequences[task]
    return fluid


cdef TrainTime train_replica(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, const Replica* replica,
    double prompts, bint bound) noexcept nogil:
    """One replica's mini-batch pipeline and old log-probabilities; with ``bound`` the pipeline's lower bound."""
    cdef StageTime[MAX_STAGES] stages
    cdef double[MAX_STAGES] sends
    train_stages(t, task, degree_index, degree, shape, micro_batch, recompute, replica, stages, sends)
    return train_pipeline(t, task, micro_batch, replica.num_stages, stages, sends, prompts, bound)


cdef double score_stage(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, int node, int first,
    int layers) noexcept nogil:
    """A full micro-batch of a scoring task on one stage."""
    cdef int model = t.task_model[task], kind = t.node_type[node]
    cdef double hidden = micro_batch * (t.prompt_tokens + t.mean_response) * t.model_hidden_bytes[model]
    cdef double seconds = t.stage_seconds(model, kind, degree_index, shape, first, layers)
    return calibrated(t, kind, PHASE_SCORE, seconds, 1, micro_batch) + stage_all_reduces(t, hidden, degree, node, layers)


cdef double score_replica(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, const Replica* replica,
    double prompts) noexcept nogil:
    cdef double sequences = prompts * t.task_sequences[task]
    cdef double hidden = micro_batch * (t.prompt_tokens + t.mean_response) * t.model_hidden_bytes[t.task_model[task]]
    cdef double forward[MAX_STAGES]
    cdef double sends[MAX_STAGES]
    cdef double fill
    cdef int j, m, first = 0
    if sequences == 0:
        return 0.0
    m = <int>ceil(sequences / micro_batch)
    fill = sequences / (m * micro_batch)
    for j in range(replica.num_stages):
        forward[j] = fill * score_stage(t, task, degree_index, degree, shape, micro_batch, replica.node[j], first, replica.layers[j])
        first += replica.layers[j]
        if j + 1 < replica.num_stages:
            sends[j] = fill * send_seconds(t, hidden, replica.node[j], replica.node[j + 1])
    return forward_only(replica.num_stages, forward, sends, m)


cdef double score_fluid(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch,
    const Replica* replica) noexcept nogil:
    """Lower bound of scoring seconds per prompt."""
    cdef double slowest = 0.0
    cdef int j, first = 0
    for j in range(replica.num_stages):
        slowest = fmax(
            slowest, score_stage(t, task, degree_index, degree, shape, micro_batch, replica.node[j], first, replica.layers[j])
        )
        first += replica.layers[j]
    return slowest / micro_batch * t.task_sequences[task]


cdef double prefill_seconds(Tables t, int task, int degree_index, int degree, const Replica* replica, int prompts) noexcept nogil:
    cdef int model = t.task_model[task]
    cdef int per_chunk = t.prefill_chunk if t.prefill_chunk < prompts else prompts
    cdef int m = (prompts + per_chunk - 1) // per_chunk
    cdef double fill = (<double>prompts) / (m * per_chunk)
    cdef double hidden = per_chunk * t.prompt_tokens * t.model_hidden_bytes[model]
    cdef double forward[MAX_STAGES]
    cdef double sends[MAX_STAGES]
    cdef int j, node, kind, first = 0
    cdef int shape = t.first_prefill_shape + per_chunk - 1
    for j in range(replica.num_stages):
        node = replica.node[j]
        kind = t.node_type[node]
        forward[j] = fill * (
            calibrated(
                t, kind, PHASE_PREFILL, t.stage_seconds(model, kind, degree_index, shape, first, replica.layers[j]), 1, per_chunk
            )
            + stage_all_reduces(t, hidden, degree, node, replica.layers[j])
        )
        first += replica.layers[j]
        if j + 1 < replica.num_stages:
            sends[j] = fill * send_seconds(t, hidden, node, replica.node[j + 1])
    return forward_only(replica.num_stages, forward, sends, m)


cdef inline double interpolated(const double* values, int cell, double share) noexcept nogil:
    return values[cell] + share * (values[cell + 1] - values[cell])


cdef double generate_replica(
    Tables t, int task, int degree_index, int degree, int limit, const Replica* replica, int prompts,
    double kv_tokens) noexcept nogil:
    """Prefill and decoding of one replica with a KV pool of ``kv_tokens`` tokens; infinite if the pool is too small."""
    cdef int model = t.task_model[task]
    cdef int sequences = prompts * t.task_sequences[task]
    cdef int num_stages = replica.num_stages
    cdef int running, s, j, k, count, node, kind, cell, first
    cdef double active, context, iterations, any_alive, split, share, seconds, seen, short, slope, total, slowest
    cdef double composed = 0.0, all_iterations = 0.0, result = 0.0, hidden = t.model_hidden_bytes[model]
    if sequences == 0:
        return 0.0
    if kv_tokens < t.max_sequence:
        return INFINITY
    running = <int>fmin(fmin(limit, sequences), floor(kv_tokens / t.task_in_flight[task]))
    if running < 1:
        running = 1
    for s in range(NUM_TAIL + 1):
        if s == 0:
            active = running
            context = t.prompt_tokens + t.mean_response / 2
            iterations = (sequences - running) * t.mean_response / running
        else:
            any_alive = -1.0
            if running <= t.most_running:
                any_alive = t.any_alive[running * NUM_TAIL + s - 1]
            if any_alive < 0:
                any_alive = 1.0 - pow(1.0 - t.tail_alive[s - 1], running)
                if running <= t.most_running:
                    t.any_alive[running * NUM_TAIL + s - 1] = any_alive
            active = fmax(running * t.tail_alive[s - 1] / any_alive, 1.0) if any_alive > 0 else 1.0
            context = t.prompt_tokens + t.tail_times[s - 1]
            iterations = any_alive * t.max_response / NUM_TAIL
        all_iterations += iterations
        if iterations == 0:
            continue
        split = fmax(active / num_stages, 1.0)
        cell = 0
        while cell < t.num_grid - 2 and t.concurrency_grid[cell + 1] <= split:
            cell += 1
        share = fmin(1.0, (split - t.concurrency_grid[cell]) / (t.concurrency_grid[cell + 1] - t.concurrency_grid[cell]))
        total = slowest = 0.0
        first = 0
        for j in range(num_stages):
            node = replica.node[j]
            kind = t.node_type[node]
            seconds = 0.0
            for k in range(t.model_kinds[model]):
                count = t.kinds_before[model, k, first + replica.layers[j]] - t.kinds_before[model, k, first]
                if count == 0:
                    continue
                seen = fmin(context, t.kind_window[model, k])
                short = interpolated(&t.decode_attention[model, kind, degree_index, k, 0, 0], cell, share)
                slope = interpolated(&t.decode_attention[model, kind, degree_index, k, 1, 0], cell, share) - short
                slope = fmax(slope, 0.0) / (t.decode_contexts[1] - t.decode_contexts[0])
                seconds += count * (
                    interpolated(&t.decode_projections[model, kind, degree_index, k, 0], cell, share)
                    + fmax(short + slope * (seen - t.decode_contexts[0]), 0.0)
                )
            first += replica.layers[j]
            if degree > 1:
                seconds += stage_all_reduces(t, hidden * split, degree, node, replica.layers[j])
            if j == num_stages - 1:
                seconds += interpolated(&t.decode_head[model, kind, degree_index, 0], cell, share)
            else:
                seconds += t.link_latency[node, replica.node[j + 1]] + hidden * split / t.link_bandwidth[node, replica.node[j + 1]]
            total += seconds
            slowest = fmax(slowest, seconds)
        composed += iterations * fmax(total, num_stages * slowest)
    for j in range(num_stages):
        kind = t.node_type[replica.node[j]]
        result = fmax(result, calibrated(t, kind, PHASE_GENERATE, composed, all_iterations, sequences * t.mean_response))
    return prefill_seconds(t, task, degree_index, degree, replica, prompts) + result
