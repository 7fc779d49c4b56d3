# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What gradient reduces and optimizer steps add to the pipelines at least."""

from libc.math cimport INFINITY, ceil, floor, sqrt

from hetrl_kernels.training_bound_memory cimport MemoryBound
from hetrl_kernels.training_bound_tables cimport (
    ALL_GATHER, ALL_REDUCE, AMOUNT, DEGREE, FSDP, INDEX, KEPT_BYTES, LAST_PARAMETERS, LAYER_PARAMETERS, LEAST_SHARE,
    MAX_TYPES, MOST_SHARE, NONE, PHI, REDUCE_SCATTER, ZERO1, Slots, largest, least,
)


cdef class UpdateBound(MemoryBound):
    """Pipelines, memory and updates."""

    cdef double placed(
        self, long q, long r, long sharding, bint on_host, long stages, long fewest, long most, long share,
        double pipelined, double limit,
    ) noexcept nogil:
        """Pipeline and gradient reduce. Either every stage's ring lies in one node, or some stages' rings do not.

        Where a ring lies in one node, all replicas have the same type there and are no faster than that stage. Rings
        between nodes hold at most so many layers, each of which has to cross the network.
        """
        cdef long[MAX_TYPES] here
        cdef long i, j, y, num_inside = 0, crossing, flows, most_inside, until = 0
        cdef double state, z, reduce, next_reduce, layers, head, seconds, result = INFINITY
        cdef bint enough
        cdef Slots slots
        if fewest == 1:
            return pipelined
        state = self.sharded(sharding, on_host, most) / self.parameters * self.setting[q, LAYER_PARAMETERS] + self.setting[q, KEPT_BYTES]
        slots.num_types = 0
        for j in range(self.num_types):
            y = self.linked[j]
            if self.groups[y] == 0:
                here[y] = 0
                continue
            i = slots.num_types
            slots.num_types += 1
            here[y] = min(self.slots[self.setting_degree[q, INDEX], r, y], self.groups[y] // fewest)
            num_inside += here[y]
            until += self.groups[y]
            slots.kind[i], slots.inside[i], slots.until[i], slots.between[i] = y, here[y], until // fewest, 0.0
            slots.cap[i] = least(self.num_layers, floor(self.room[y] / state * (1 + 1e-12)))
        slots.crosses = slots.head_between = False
        if num_inside >= stages:
            layers = ceil(<double>self.num_layers / stages)
            reduce = self.updates * self.reduce_inside(
                q, r, sharding, most, here, largest(self.gradients / stages, layers * self.layer_gradients),
                largest(self.weights / stages, layers * self.layer_weights))
            if pipelined + reduce < limit:
                z = self.dealt(q, stages, &slots)
                result = largest(pipelined, self.busiest(q, share, stages, here, 0, False, z, limit - reduce)) + reduce
        y = slots.kind[0]
        if self.bandwidth[y] <= 0.0:
            return result
        slots.crosses = True
        most_inside = min(num_inside, stages - 1)
        flows = stages - most_inside if self.num_nodes == 2 else 1
        for slots.head_between in range(2):
            head = self.setting[q, LAST_PARAMETERS] / self.setting[q, LAYER_PARAMETERS] if slots.head_between else 0.0  # in layers
            next_reduce = self.reduce_between(q, sharding, fewest, most, y, 1 + head, flows)
            for crossing in range(1, self.num_layers + 1):
                reduce = next_reduce
                next_reduce = self.reduce_between(q, sharding, fewest, most, y, crossing + 1 + head, flows)
                enough = crossing * stages >= self.num_layers
                if most_inside == 0 and not (enough and slots.head_between):
                    continue
                if not enough:
                    layers = ceil(crossing + (<double>self.num_layers - crossing * stages) / most_inside)
                    reduce = largest(reduce, self.reduce_inside(
                        q, r, sharding, most, here, layers * self.layer_gradients, layers * self.layer_weights))
                if pipelined + self.updates * reduce >= least(result, limit):
                    if enough:
                        break
                    continue
                for i in range(slots.num_types):  # what other types' rings reduce in less time than one more layer takes
                    slots.between[i] = crossing
                    if self.bandwidth[slots.kind[i]] < self.bandwidth[y] or self.latency[slots.kind[i]] != self.latency[y]:
                        slots.between[i] = self.layers_between(
                            q, sharding, fewest, most, slots.kind[i], flows, largest(reduce, next_reduce))
                    slots.between[i] = least(slots.between[i], slots.cap[i])
                z = self.dealt(q, stages, &slots)
                seconds = pipelined
                if z == INFINITY:
                    seconds = INFINITY
                elif z > 0.0:
                    seconds = largest(seconds, self.busiest(
                        q, share, stages, here, crossing, slots.head_between, z,
                        least(limit, result) - self.updates * reduce))
                result = least(result, seconds + self.updates * reduce)
                if seconds <= pipelined and enough:
                    break
        return result

    cdef double reduce_inside(
        self, long q, long r, long sharding, long most, const long* here, double gradients, double weights) noexcept nogil:
        """One update's gradient reduce of so many bytes of a stage in a ring inside a node."""
        cdef double reduce, best = INFINITY, shard = self.setting_degree[q, DEGREE]
        cdef long kind
        for kind in range(self.num_types):
            if here[kind] > 0:
                reduce = self.ring_inside(
                    r, kind, ALL_REDUCE if sharding == NONE else REDUCE_SCATTER, gradients / shard)
                best = least(best, self.exposed(
                    q, sharding, most, reduce, self.ring_inside(r, kind, ALL_GATHER, weights / shard)))
        return self.reduce_scale * best

    cdef double ring_inside(self, long r, long kind, long operation, double num_bytes) noexcept nogil:
        return (
            self.inside[operation, r, kind, 0]
            + self.inside[operation, r, kind, 1] * sqrt(num_bytes)
            + self.inside[operation, r, kind, 2] * num_bytes
        )

    cdef double reduce_between(
        self, long q, long sharding, long fewest, long most, long kind, double layers, long flows) noexcept nogil:
        """One update's gradient reduce of a stage with so many layers, its ring over the fastest link of a type."""
        cdef double shard = self.setting_degree[q, DEGREE], width = self.bandwidth[kind] / shard / flows
        cdef double gradients = layers * self.layer_gradients / shard, weights = layers * self.layer_weights / shard
        cdef double reduce = (fewest - 1) * (self.latency[kind] + gradients / (fewest * width))
        cdef double gather = (fewest - 1) * (self.latency[kind] + weights / (fewest * width))
        if sharding == NONE:
            reduce = least(2 * reduce, 2 * self.latency[kind] + gradients / width)
        return self.reduce_scale * self.exposed(q, sharding, most, reduce, gather)

    cdef double layers_between(
        self, long q, long sharding, long fewest, long most, long kind, long flows, double seconds) noexcept nogil:
        """Layers of a stage whose ring over the fastest link of a type takes less than so many seconds."""
        cdef long low = 0, high = self.num_layers, middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.reduce_between(q, sharding, fewest, most, kind, middle, flows) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    cdef double exposed(self, long q, long sharding, long most, double reduce, double gather) noexcept nogil:
        """What is not hidden behind computing."""
        cdef double result = reduce * self.gradient_exposed
        if sharding == ZERO1:
            result += gather
        elif sharding == FSDP:
            result += gather * 2.0 * ceil(self.setting[q, AMOUNT] / most) * self.gather_exposed
        return result

    cdef double step(self, long q, long sharding, bint on_host, long stages, long fewest, long most) noexcept nogil:
        """One optimizer step, states spread over ranks or nodes as well as can be."""
        cdef double state = fewest * self.sharded(sharding, False, most), through = 0.0
        cdef long left = most * stages, i, kind, here
        if on_host:
            for i in range(self.num_types):
                through += self.host[i]
            return self.step_scale * state / through
        for i in range(self.num_types):
            kind = self.widest[i]
            here = min(left, self.groups[kind])
            left -= here
            through += here * self.type_bandwidth[kind]
        return self.step_scale * state / self.setting_degree[q, DEGREE] / through

    cdef double joint(self, long q, long stages) noexcept nogil:
        """Pipeline and host optimizer step of a single replica: both depend on which type holds which layers.

        With the fraction x_y of the layers on type y, ``x_y <= z rho_y`` for the pipeline and ``x_y <= u H_y`` for the
        step; ``fill (kappa z + sum_y x_y A_y) + updates u`` is least where a type changes sides and the quickest types
        hold all layers.
        """
        cdef double best = INFINITY, ratio, through, passing, cap, z, number = ceil(self.setting[q, AMOUNT])
        cdef double fill = self.setting[q, AMOUNT] / number
        cdef double by_pass = fill * (self.setting[q, LEAST_SHARE] + (1.0 - self.setting[q, MOST_SHARE]) / self.mini_batches)
        cdef double by_stage = fill * (
            number - self.once(q) - self.setting[q, MOST_SHARE] * (1.0 + self.setting[q, PHI] * (least(number, stages) - 1.0)))
        cdef double[MAX_TYPES] pipe, host
        cdef long i, y, turn
        if self.joint_states <= 0.0:
            return 0.0
        for y in range(self.num_types):
            pipe[y] = host[y] = 0.0
            if self.groups[y] > 0:
                pipe[y] = min(self.groups[y], stages) / (self.by_layer[q, y] * self.num_layers)
                host[y] = self.host[y] / (self.joint_states * self.step_scale * self.updates)
        for turn in range(self.num_types):
            if pipe[turn] <= 0.0 or host[turn] <= 0.0:
                continue
            ratio = pipe[turn] / host[turn]
            through = passing = 0.0
            for i in range(self.num_types):
                y = self.quickest[q, i]
                cap = least(pipe[y], ratio * host[y])
                if cap <= 0.0:
                    continue
                through += cap
                passing += cap * self.by_layer[q, y] * self.num_layers
                z = 1.0 / through
                best = least(best, (by_stage + ratio) * z + by_pass * passing * z)
        return 0.0 if best == INFINITY else best
