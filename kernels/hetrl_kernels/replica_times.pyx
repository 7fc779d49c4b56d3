# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of one kind of replica by its number of prompts, each worked out once and kept."""

from libc.math cimport INFINITY, floor
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.tables cimport GENERATE, SCORE, TRAIN, Tables, fmin
from hetrl_kernels.timing cimport Replica, TrainTime, generate_replica, score_replica, train_replica

import cython


@cython.no_gc
cdef class ReplicaTimes:
    """Replicas of equal stages on nodes of equal kinds behind equal links take equal seconds wherever they are."""

    def __dealloc__(self):
        free(self.nodes)
        free(self.seconds)

    cdef double total(self, int prompts) noexcept nogil:
        """Seconds of the whole share; a training replica's old log-probabilities and all its pipelines."""
        if prompts == 0:
            return 0.0
        if self.seconds[prompts] < 0:
            self.work_out(prompts)
        return self.seconds[prompts]

    cdef void work_out(self, int prompts) noexcept nogil:
        cdef Replica replica
        cdef TrainTime time
        replica.num_stages, replica.node, replica.layers = self.num_stages, self.nodes, self.nodes + self.num_stages
        if self.kind == TRAIN:
            time = self.training(prompts)
            self.seconds[prompts] = time.old_log_probs + self.t.num_updates * time.pipeline
        elif self.kind == SCORE:
            self.seconds[prompts] = score_replica(
                self.t, self.task, self.degree_index, self.degree, self.shape, self.micro_batch, &replica, prompts
            )
        else:
            self.seconds[prompts] = generate_replica(
                self.t, self.task, self.degree_index, self.degree, self.micro_batch, &replica, prompts, self.kv
            )

    cdef TrainTime training(self, int prompts) noexcept nogil:
        """A training replica's pipeline, old log-probabilities and micro-batches."""
        cdef Replica replica
        cdef TrainTime time
        cdef int room = self.t.num_prompts + 1
        if prompts > 0 and self.seconds[room + prompts] >= 0:
            time.pipeline, time.old_log_probs = self.seconds[room + prompts], self.seconds[2 * room + prompts]
            time.num_micro_batches = <int>self.seconds[3 * room + prompts]
            time.fluid = 0.0
            return time
        replica.num_stages, replica.node, replica.layers = self.num_stages, self.nodes, self.nodes + self.num_stages
        time = train_replica(
            self.t, self.task, self.degree_index, self.degree, self.shape, self.micro_batch, self.recompute, &replica, prompts, False
        )
        self.seconds[room + prompts], self.seconds[2 * room + prompts] = time.pipeline, time.old_log_probs
        self.seconds[3 * room + prompts] = time.num_micro_batches
        return time

    cdef int most(self, double threshold) noexcept nogil:
        """Most prompts that take no longer than ``threshold`` seconds."""
        cdef int low = 0, high = self.t.num_prompts, middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.total(middle) <= threshold:
                low = middle
            else:
                high = middle - 1
        return low


cdef bytes replica_key(Tables t, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv):
    """What seconds depend on: settings, sequences that a KV pool runs at once, and the stages with their links."""
    cdef int[200] values
    cdef int j, number = 6, first = layout.first[layout.representative[c]], stages = layout.first[layout.representative[c] + 1] - first
    values[0], values[1], values[2], values[3], values[4] = task, layout.degree_index, shape, micro_batch, recompute
    values[5] = 0
    if t.task_kind[task] == GENERATE:
        values[5] = -1 if kv < t.max_sequence else <int>fmin(micro_batch, floor(kv / t.task_in_flight[task]))
    for j in range(stages):
        values[number] = t.node_kind[layout.node[first + j]]
        values[number + 1] = layout.layers[first + j]
        values[number + 2] = t.link_kind[layout.node[first + j], layout.node[first + j + 1]] if j + 1 < stages else -1
        number += 3
    return (<char*>values)[: number * sizeof(int)]


cdef ReplicaTimes replica_times(Tables t, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv):
    cdef ReplicaTimes times = ReplicaTimes.__new__(ReplicaTimes)
    cdef int i, first = layout.first[layout.representative[c]], room = t.num_prompts + 1
    times.t, times.task, times.kind = t, task, t.task_kind[task]
    times.degree_index, times.degree = layout.degree_index, layout.degree
    times.shape, times.micro_batch, times.recompute, times.kv = shape, micro_batch, recompute, kv
    times.num_stages = layout.first[layout.representative[c] + 1] - first
    times.nodes = <int*>malloc(2 * times.num_stages * sizeof(int))
    memcpy(times.nodes, layout.node + first, times.num_stages * sizeof(int))
    memcpy(times.nodes + times.num_stages, layout.layers + first, times.num_stages * sizeof(int))
    room *= 4 if times.kind == TRAIN else 1
    times.seconds = <double*>malloc(room * sizeof(double))
    for i in range(room):
        times.seconds[i] = -1.0
    return times
