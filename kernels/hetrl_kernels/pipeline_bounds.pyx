# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Lower bounds of a training layout's pipelines, whatever the shares.

Replicas of many classes are made of few kinds of stages, whose times are worked out once for every micro-batch.
"""

from libc.math cimport ceil, sqrt
from libc.stdlib cimport free, realloc

from hetrl_kernels.tables cimport ALL_REDUCE, MAX_STAGES, fmax
from hetrl_kernels.timing cimport (
    StageTime, TrainTime, boundary_seconds, stage_time, train_fluid, train_pipeline,
)

import cython


@cython.no_gc
cdef class PipelineBounds:
    """Bounds of one layout after the other.

    Parameters
    ----------
    t
        The lowered job.
    """

    def __init__(self, Tables t):
        self.t = t

    def __dealloc__(self):
        free(self.distinct)
        free(self.members)

    cdef void start(self, int task, Layout layout):
        """Find the distinct stages of a layout; all its replicas share one split of layers."""
        cdef int c, i, j, slot, node, first = 0, needed = layout.num_classes * layout.max_stages
        self.task, self.layout, self.num_distinct = task, layout, 0
        if needed > self.room:
            self.room = 2 * needed
            self.distinct = <DistinctStage*>realloc(self.distinct, self.room * sizeof(DistinctStage))
            self.members = <int*>realloc(self.members, self.room * sizeof(int))
        cdef int start
        for j in range(layout.max_stages):
            start = self.num_distinct
            for c in range(layout.num_classes):
                slot = layout.first[layout.representative[c]] + j
                node = layout.node[slot]
                for i in range(start, self.num_distinct):
                    if self.t.node_kind[self.distinct[i].node] == self.t.node_kind[node]:
                        break
                else:
                    i = self.num_distinct
                    self.distinct[i].stage, self.distinct[i].node = j, node
                    self.distinct[i].first, self.distinct[i].layers = first, layout.layers[slot]
                    self.point(&self.distinct[i])
                    self.num_distinct += 1
                self.members[c * layout.max_stages + j] = i
            first += layout.layers[j]

    cdef void point(self, DistinctStage* each) noexcept:
        """Where a stage's seconds stand in the tables."""
        cdef Tables t = self.t
        cdef int model = t.task_model[self.task], kind = t.node_type[each.node], degree = self.layout.degree_index
        each.layer_seconds = &t.layer_seconds[model, kind, degree, 0, 0]
        each.head_seconds = &t.head_seconds[model, kind, degree, 0] if each.first + each.layers == t.model_layers[model] else NULL
        each.all_reduce = &t.node_collective[each.node, ALL_REDUCE, self.layout.degree, 0]

    cdef void at(self, int shape, int micro_batch) noexcept:
        """Work out full micro-batches of this size, as `Tables.stage_seconds` and `Tables.inside` do."""
        cdef Tables t = self.t
        cdef int i, k, count, model = t.task_model[self.task], kinds = t.layer_seconds.shape[4]
        cdef double hidden = micro_batch * (t.prompt_tokens + t.mean_response) * t.model_hidden_bytes[model], root = sqrt(hidden)
        cdef DistinctStage* each
        for i in range(self.num_distinct):
            each = self.distinct + i
            each.seconds = each.reduces = 0.0
            for k in range(t.model_kinds[model]):
                count = t.kinds_before[model, k, each.first + each.layers] - t.kinds_before[model, k, each.first]
                if count:
                    each.seconds += count * each.layer_seconds[shape * kinds + k]
            if each.head_seconds != NULL:
                each.seconds += each.head_seconds[shape]
            if self.layout.degree > 1:
                each.reduces = 2 * each.layers * (each.all_reduce[0] + each.all_reduce[1] * root + each.all_reduce[2] * hidden)

    cdef double bound(self, int micro_batch, bint recompute, int* num_micro_batches) noexcept:
        """Seconds of all updates' pipelines and the old log-probabilities; the fewest micro-batches of the busiest replica."""
        cdef Tables t = self.t
        cdef Layout layout = self.layout
        cdef int c, i, j, stages = layout.max_stages
        cdef double rate = 0.0, average = (<double>t.num_prompts) / layout.num_replicas, busy, scoring
        cdef const int* member = self.members
        cdef StageTime time
        if layout.num_classes == 1:
            return self.bound_of_equals(micro_batch, recompute, average, num_micro_batches)
        num_micro_batches[0] = <int>ceil(average * t.task_sequences[self.task] / t.num_mini_batches / micro_batch)
        for i in range(self.num_distinct):
            time = stage_time(
                t, t.node_type[self.distinct[i].node], micro_batch, recompute, self.distinct[i].seconds, self.distinct[i].reduces
            )
            self.distinct[i].busy, self.distinct[i].scoring = time.forward + time.backward, time.scoring
        for c in range(layout.num_classes):
            busy = scoring = 0.0
            for j in range(stages):
                busy = fmax(busy, self.distinct[member[j]].busy)
                scoring = fmax(scoring, self.distinct[member[j]].scoring)
            member += stages
            rate += layout.class_size[c] / train_fluid(t, self.task, micro_batch, busy, scoring)
        return t.num_prompts / rate

    cdef double bound_of_equals(self, int micro_batch, bint recompute, double average, int* num_micro_batches) noexcept:
        """The same where all replicas are equal: some replica has at least the average share."""
        cdef Tables t = self.t
        cdef Layout layout = self.layout
        cdef int j, stages = layout.max_stages
        cdef const int* nodes = layout.node + layout.first[layout.representative[0]]
        cdef StageTime[MAX_STAGES] times
        cdef double[MAX_STAGES] sends
        cdef TrainTime time
        for j in range(stages):
            times[j] = stage_time(t, t.node_type[nodes[j]], micro_batch, recompute, self.distinct[j].seconds, self.distinct[j].reduces)
            if j + 1 < stages:
                sends[j] = boundary_seconds(t, self.task, micro_batch, nodes[j], nodes[j + 1])
        time = train_pipeline(t, self.task, micro_batch, stages, times, sends, average, True)
        num_micro_batches[0] = time.num_micro_batches
        return fmax(t.num_prompts / (layout.class_size[0] / time.fluid), time.old_log_probs + t.num_updates * time.pipeline)
