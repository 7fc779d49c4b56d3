# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of one kind of replica by its number of prompts, each worked out once and kept."""

from libc.math cimport INFINITY, floor
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.tables cimport GENERATE, SCORE, TRAIN, Tables, fmin
from hetrl_kernels.timing cimport Replica, StageTime, TrainTime, generate_replica, score_replica, train_pipeline, train_stages

import cython

cdef enum:
    FIRST_ROOM = 8
    HASH_FACTOR = 40503  # odd, so that neighbouring shares are spread over all places


@cython.no_gc
cdef class ReplicaTimes:
    """Replicas of equal stages on nodes of equal kinds behind equal links take equal seconds wherever they are."""

    def __dealloc__(self):
        free(self.nodes)
        free(self.stages)
        free(self.shares)

    cdef double total(self, int prompts) noexcept nogil:
        """Seconds of the whole share; a training replica's old log-probabilities and all its pipelines."""
        return 0.0 if prompts == 0 else self.at(prompts).total

    cdef TrainTime training(self, int prompts) noexcept nogil:
        """A training replica's pipeline, old log-probabilities and micro-batches."""
        cdef TrainTime nothing
        if prompts == 0:
            nothing.pipeline = nothing.old_log_probs = nothing.fluid = 0.0
            nothing.num_micro_batches = 0
            return nothing
        return self.at(prompts).training

    cdef ShareTime* at(self, int prompts) noexcept nogil:
        """What a share takes; its place holds until the next share is asked for."""
        cdef int place = (prompts * HASH_FACTOR) & (self.room - 1)
        while self.shares[place].prompts != prompts:
            if self.shares[place].prompts == 0:
                if 2 * (self.num_shares + 1) > self.room:
                    self.grow()
                    return self.at(prompts)
                self.num_shares += 1
                self.shares[place].prompts = prompts
                self.work_out(self.shares + place)
                break
            place = (place + 1) & (self.room - 1)
        return self.shares + place

    cdef void grow(self) noexcept nogil:
        cdef ShareTime* old = self.shares
        cdef int i, place, before = self.room
        self.room = 2 * before if before else FIRST_ROOM
        self.shares = <ShareTime*>calloc(self.room, sizeof(ShareTime))
        for i in range(before):
            if old[i].prompts:
                place = (old[i].prompts * HASH_FACTOR) & (self.room - 1)
                while self.shares[place].prompts:
                    place = (place + 1) & (self.room - 1)
                self.shares[place] = old[i]
        free(old)

    cdef void work_out(self, ShareTime* share) noexcept nogil:
        cdef Replica replica
        replica.num_stages, replica.node, replica.layers = self.num_stages, self.nodes, self.nodes + self.num_stages
        if self.kind == TRAIN:
            share.training = train_pipeline(
                self.t, self.task, self.micro_batch, self.num_stages, self.stages, <double*>(self.stages + self.num_stages),
                share.prompts, False,
            )
            share.total = share.training.old_log_probs + self.t.num_updates * share.training.pipeline
        elif self.kind == SCORE:
            share.total = score_replica(
                self.t, self.task, self.degree_index, self.degree, self.shape, self.micro_batch, &replica, share.prompts
            )
        else:
            share.total = generate_replica(
                self.t, self.task, self.degree_index, self.degree, self.micro_batch, &replica, share.prompts, self.kv
            )

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
    cdef int first = layout.first[layout.representative[c]]
    cdef Replica replica = layout.replica(layout.representative[c])
    times.t, times.task, times.kind = t, task, t.task_kind[task]
    times.degree_index, times.degree = layout.degree_index, layout.degree
    times.shape, times.micro_batch, times.recompute, times.kv = shape, micro_batch, recompute, kv
    times.num_stages = replica.num_stages
    times.nodes = <int*>malloc(2 * times.num_stages * sizeof(int))
    memcpy(times.nodes, layout.node + first, times.num_stages * sizeof(int))
    memcpy(times.nodes + times.num_stages, layout.layers + first, times.num_stages * sizeof(int))
    if times.kind == TRAIN:
        times.stages = <StageTime*>malloc(times.num_stages * (sizeof(StageTime) + sizeof(double)))
        train_stages(
            t, task, times.degree_index, times.degree, shape, micro_batch, recompute, &replica, times.stages,
            <double*>(times.stages + times.num_stages),
        )
    times.grow()
    return times
