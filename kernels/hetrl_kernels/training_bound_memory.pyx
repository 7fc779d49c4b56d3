# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Whether a training task's states and activations may fit, and how long the longest stage is for that."""

from libc.math cimport INFINITY, floor

from hetrl_kernels.training_bound_pipelines cimport PipelineBound
from hetrl_kernels.training_bound_tables cimport (
    DEGREE, FIRST_PARAMETERS, FSDP, KEPT_BYTES, LAST_PARAMETERS, LAYER_PARAMETERS, LOGITS_BYTES, MAX_PIPELINE, NONE,
    largest, least,
)

cdef enum:
    MOST_UNEVEN = 24  # lengths tried for the longest stage


cdef class MemoryBound(PipelineBound):
    """Pipelines and memory."""

    cdef double sharded(self, long sharding, bint on_host, long most) noexcept nogil:
        """Bytes of training state that one replica keeps."""
        cdef double weights = self.weights, gradients = self.gradients, optimizer = self.optimizer
        if sharding == FSDP:
            weights /= most
            gradients /= most
        if sharding != NONE:
            optimizer /= most
        return weights + gradients + (0.0 if on_host else optimizer)

    cdef bint fits(
        self, long q, long sharding, bint on_host, long stages, long fewest, long most, double size, double in_flight,
    ) noexcept nogil:
        """Whether the states of all replicas, and all layers of the busiest one, may fit."""
        cdef double per_replica = self.sharded(sharding, on_host, most), held, most_held = 0.0, layers = 0.0, each, cap
        cdef double state = per_replica / self.parameters * self.setting[q, LAYER_PARAMETERS], kept = self.setting[q, KEPT_BYTES]
        cdef double lean = state + kept, common = 0.0
        cdef long left = most * stages, i, kind, number = 0, until = 0, upper, block = 0
        held = fewest * per_replica / self.setting_degree[q, DEGREE]
        for i in range(self.num_types):
            kind = self.roomiest[i]
            if self.groups[kind] == 0:
                continue
            upper = min(left, self.groups[kind])
            left -= upper
            most_held += upper * self.room[kind]
            until += self.groups[kind]
            while number < stages and number < until:  # the busiest replica on the roomiest groups
                cap = state + kept * size * least(in_flight, number + 1.0)
                layers += self.room[kind] / cap
                number += 1
            while block < stages and (block + 1) * fewest <= until:  # all replicas split layers alike
                common += floor(self.room[kind] / lean * (1 + 1e-12))
                block += 1
        return held <= most_held * (1 + 1e-12) and layers >= self.num_layers * (1 - 1e-12) and common >= self.num_layers

    cdef double longest_stage(
        self, long q, long sharding, bint on_host, long stages, long most, long kind, double size, double in_flight,
    ) noexcept nogil:
        """Seconds of the longest stage where all devices are of one type; stages have whole layers, as memory admits.

        The last has the head besides.
        """
        cdef double per_parameter = self.sharded(sharding, on_host, most) / self.parameters
        cdef double state = per_parameter * self.setting[q, LAYER_PARAMETERS], kept = self.setting[q, KEPT_BYTES]
        cdef double head, length, placed, outside, total = 0.0
        cdef double[MAX_PIPELINE] cap
        cdef long number, turn
        if self.by_layer[q, kind] <= 0.0:
            return 0.0
        head = self.head[q, kind] / self.by_layer[q, kind]
        for number in range(stages):
            outside = 0.0
            if number == 0:
                outside = self.setting[q, LAST_PARAMETERS] * per_parameter + self.setting[q, LOGITS_BYTES] * size
            if number == stages - 1:
                outside += self.setting[q, FIRST_PARAMETERS] * per_parameter
            cap[number] = (self.room[kind] - outside) / (state + kept * size * least(in_flight, number + 1.0))
            cap[number] = largest(0.0, floor(cap[number]))
            total += cap[number]
        if total < self.num_layers:
            return INFINITY
        length = floor(<double>self.num_layers / stages)
        for turn in range(MOST_UNEVEN):
            placed = least(cap[0], floor(length - head + 1e-9))
            for number in range(1, stages):
                placed += least(cap[number], floor(length))
            if placed >= self.num_layers:
                break
            length = least(floor(length) + 1.0, floor(length - head + 1e-9) + 1.0 + head)
        return length * self.by_layer[q, kind]
