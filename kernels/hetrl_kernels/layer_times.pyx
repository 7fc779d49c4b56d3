# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of one training or scoring replica with any layers and share, for exact inner steps written in Python."""

from hetrl_kernels.tables cimport MAX_STAGES, TRAIN, Tables, one_f_one_b
from hetrl_kernels.timing cimport Replica, TrainTime, score_replica, train_replica


def replica_seconds(
    Tables t, int task, int degree_index, int degree, int shape, int micro_batch, bint recompute, nodes, layers, int prompts):
    """Seconds per step that a replica's pipelines take; old log-probabilities of an actor included.

    Parameters
    ----------
    t
        The lowered job.
    task
        A training or scoring task.
    degree_index, degree, shape, micro_batch, recompute
        Its strategy, as in `hetrl.search.plan_arrays.PlanArrays.task_settings`.
    nodes, layers
        Of every stage, at most 64.
    prompts
        Prompts per step.
    """
    cdef int[MAX_STAGES] nodes_here
    cdef int[MAX_STAGES] layers_here
    cdef Replica replica
    cdef TrainTime time
    cdef int j
    replica.num_stages = len(nodes)
    if replica.num_stages > MAX_STAGES or len(layers) != replica.num_stages:
        raise ValueError(f"{len(nodes)} nodes and {len(layers)} numbers of layers; at most {MAX_STAGES} stages")
    for j in range(replica.num_stages):
        nodes_here[j], layers_here[j] = nodes[j], layers[j]
        if not 0 <= nodes_here[j] < t.num_nodes:
            raise IndexError("no such node")
    if sum(layers) > t.model_layers[t.task_model[task]] or min(layers) < 1:
        raise ValueError("layers do not fit the model")
    replica.node, replica.layers = nodes_here, layers_here
    if t.task_kind[task] == TRAIN:
        time = train_replica(t, task, degree_index, degree, shape, micro_batch, recompute, &replica, prompts, False)
        return time.old_log_probs + t.num_updates * time.pipeline
    return score_replica(t, task, degree_index, degree, shape, micro_batch, &replica, prompts)


def pipeline_seconds(forward, backward, send, int num_micro_batches):
    """Seconds of a 1F1B schedule, as `hetrl.cost.pipeline.one_f_one_b_seconds`.

    Parameters
    ----------
    forward, backward
        Seconds of one micro-batch on each of at most 64 stages.
    send
        Seconds between neighbours.
    num_micro_batches
        At least 1.
    """
    cdef double[MAX_STAGES] ahead, behind, between
    cdef int j, stages = len(forward)
    if not 0 < stages <= MAX_STAGES or len(backward) != stages or len(send) != stages - 1:
        raise ValueError(f"{stages} stages with {len(backward)} backward passes and {len(send)} sends")
    for j in range(stages):
        ahead[j], behind[j] = forward[j], backward[j]
        if j + 1 < stages:
            between[j] = send[j]
    return one_f_one_b(stages, ahead, behind, between, num_micro_batches)
