# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of one training or scoring replica with any layers and share, for exact inner steps written in Python."""

from hetrl_kernels.tables cimport MAX_STAGES, TRAIN, Tables
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
