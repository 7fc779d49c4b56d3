# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Lower bound of a training task's seconds on given numbers of devices by type (`hetrl.search.bounds.training`).

All strategy classes are walked: micro-batch, tensor degree and recomputation (a *setting*, whose work and speeds are
lowered), then stages P, replicas R, sharding and place of the optimizer states. The least is the bound, and what the
work alone shows to be slower than the least so far is left out.
"""

from libc.math cimport INFINITY, ceil, floor, sqrt

cdef enum:
    MAX_TYPES = 64
    MAX_PIPELINE = 16
    NUM_FILL_ROUNDS = 3
    NUM_HALVINGS = 24  # of the slowest stage's seconds
    MOST_UNEVEN = 24  # lengths tried for the longest stage
    NONE = 0
    ZERO1 = 1
    FSDP = 2
    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2


cdef inline double least(double a, double b) noexcept nogil:
    return a if a < b else b


cdef inline double largest(double a, double b) noexcept nogil:
    return a if a > b else b


cdef class TrainingBound:
    """The lowered task; arrays as in `hetrl.search.bounds.training.TrainingTables`."""

    cdef public long num_points  # points worked out so far
    cdef long num_types, num_layers, num_prompts, num_nodes, num_pipelines, num_replicas, num_settings
    cdef double updates, weights, gradients, optimizer, parameters, layer_gradients, layer_weights
    cdef double reduce_scale, step_scale, gradient_exposed, gather_exposed, latency, bandwidth, joint_states
    cdef const double[::1] room, type_bandwidth
    cdef const double[:, ::1] host_bandwidth
    cdef const long[::1] roomiest, widest, pipelines
    cdef const long[:, ::1] replicas
    cdef const double[:, :, :, ::1] inside
    cdef const long[:, ::1] most_groups
    cdef const long[:, :, ::1] slots
    cdef const long[:, ::1] setting_degree
    cdef const double[:, ::1] setting
    cdef const double[:, ::1] speed, by_layer, head
    cdef const long[:, ::1] fastest, quickest
    cdef long[MAX_TYPES] count, groups
    cdef double[MAX_TYPES] host

    def __init__(self, tables):
        self.num_layers, self.num_prompts, self.num_nodes = tables.num_layers, tables.num_prompts, tables.num_nodes
        self.updates, self.parameters = tables.updates, tables.parameters
        self.weights, self.gradients, self.optimizer = tables.states
        self.layer_gradients, self.layer_weights = tables.layer_states
        self.reduce_scale, self.step_scale = tables.scales
        self.gradient_exposed, self.gather_exposed = tables.exposed
        self.latency, self.bandwidth = tables.link
        self.joint_states = tables.joint_states
        self.room, self.type_bandwidth, self.host_bandwidth = tables.room, tables.type_bandwidth, tables.host_bandwidth
        self.roomiest, self.widest = tables.roomiest, tables.widest
        self.pipelines, self.replicas, self.inside = tables.pipelines, tables.replicas, tables.inside
        self.most_groups, self.slots = tables.most_groups, tables.slots
        self.setting_degree, self.setting = tables.setting_degree, tables.setting
        self.speed, self.by_layer, self.head = tables.speed, tables.by_layer, tables.head
        self.fastest, self.quickest = tables.fastest, tables.quickest
        self.num_types, self.num_pipelines = self.room.shape[0], self.pipelines.shape[0]
        self.num_replicas, self.num_settings = self.replicas.shape[0], self.setting.shape[0]
        if self.num_types > MAX_TYPES or self.num_pipelines and max(tables.pipelines) > MAX_PIPELINE:
            raise ValueError(f"{self.num_types} device types, pipelines {list(tables.pipelines)}")

    def seconds(self, const long[::1] counts):
        """Seconds that no layout on ``counts`` devices by type undercuts; infinite where nothing fits."""
        cdef long y, q
        cdef double best = INFINITY
        if counts.shape[0] != self.num_types:
            raise ValueError(f"{counts.shape[0]} counts for {self.num_types} types")
        self.num_points += 1
        for y in range(self.num_types):
            self.count[y] = counts[y]
            self.host[y] = self.host_bandwidth[y, min(counts[y], self.host_bandwidth.shape[1] - 1)]
        for q in range(self.num_settings):
            best = self.of_setting(q, best)
        return best

    cdef double of_setting(self, long q, double best) noexcept nogil:
        """The least of ``best`` and all P, R, shardings and places of the states of one setting."""
        cdef long y, i, p, r, stages, fewest, most, total = 0, num_types = 0, alone = -1, degree_index
        cdef long needed = 0, taken
        cdef double work = self.setting[q, 0], amount = self.setting[q, 1], micro_batch = self.setting[q, 2]
        cdef double throughput = 0.0, wanted
        degree_index = self.setting_degree[q, 0]
        for y in range(self.num_types):
            self.groups[y] = min(self.count[y] // self.setting_degree[q, 1], self.most_groups[degree_index, y])
            if self.speed[q, y] <= 0.0:
                self.groups[y] = 0
            total += self.groups[y]
            if self.groups[y] > 0:
                num_types += 1
                alone = y
        if num_types > 1:
            alone = -1
        # fewer groups than these take too long, whatever else they do
        wanted = work * amount / best
        for i in range(self.num_types):
            y = self.fastest[q, i]
            if throughput >= wanted or self.groups[y] == 0:
                continue
            taken = min(self.groups[y], <long>ceil((wanted - throughput) / self.speed[q, y] * (1 - 1e-12)))
            throughput += taken * self.speed[q, y]
            needed += taken
        if throughput < wanted * (1 - 1e-9):
            return best
        for p in range(self.num_pipelines):
            stages = self.pipelines[p]
            if stages > self.num_layers or stages > total:
                break
            for r in range(self.num_replicas):
                fewest = self.replicas[r, 0]
                most = min(self.replicas[r, 1], total // stages)
                if fewest * stages > total:
                    break
                if most * stages < needed or (fewest > amount and micro_batch != 1.0):
                    continue
                best = self.of_class(q, r, stages, fewest, most, alone, best)
        return best

    cdef double of_class(
        self, long q, long r, long stages, long fewest, long most, long alone, double best) noexcept nogil:
        """The least of ``best`` and one P and R."""
        cdef double work = self.setting[q, 0], amount = self.setting[q, 1], micro_batch = self.setting[q, 2]
        cdef double prompt = self.setting[q, 3], flowing, by_stage, by_pass, slowest, pipelined, seconds, rest
        cdef double biggest, size, in_flight, step, z
        cdef long share = (self.num_prompts + most - 1) // most, sharding, on_host, degree_index = self.setting_degree[q, 0]
        flowing = self.flowing(q, stages, most)
        if flowing >= best:
            return best
        self.busiest(q, share, stages, &by_stage, &by_pass)
        slowest = self.dealt(q, stages, NULL, 0, 0.0)
        pipelined = largest(flowing, self.passed(q, stages, self.groups, by_stage, by_pass, slowest))
        if pipelined >= best:
            return best
        biggest = share * prompt
        size = least(micro_batch, largest(1.0, ceil(biggest * micro_batch)))
        in_flight = largest(1.0, ceil(biggest))
        for sharding in range(3):
            if sharding != NONE and most == 1:
                break  # the same as unsharded
            for on_host in range(2):
                step = self.updates * self.step(q, sharding, on_host, stages, fewest, most)
                if pipelined + step >= best:
                    continue
                if not self.fits(q, sharding, on_host, stages, fewest, most, size, in_flight):
                    continue
                seconds = pipelined
                if alone >= 0:
                    z = self.longest_stage(q, sharding, on_host, stages, most, alone, size, in_flight)
                    seconds = largest(seconds, self.passed(q, stages, self.groups, by_stage, by_pass, z))
                rest = self.placed(q, r, sharding, on_host, stages, fewest, most, by_stage, by_pass, seconds, best - step)
                seconds = rest + step
                if on_host and most == 1:
                    seconds = largest(seconds, self.joint(q, stages, by_stage, by_pass))
                best = least(best, seconds)
        return best

    # ---- pipelines

    cdef double flowing(self, long q, long stages, long most) noexcept nogil:
        """Seconds of all micro-batches on the fastest R P groups, each pipeline losing its fill."""
        cdef double work = self.setting[q, 0], amount = self.setting[q, 1]
        cdef double low = self.setting[q, 4], high = self.setting[q, 5], phi = self.setting[q, 6]
        cdef double[MAX_TYPES] take
        cdef double throughput = 0.0, slow = INFINITY, seconds, fill, y, x, handled, full, lost, slope
        cdef long left = most * stages, i, kind, turn, way
        for i in range(self.num_types):
            kind = self.fastest[q, i]
            take[i] = min(left, self.groups[kind])
            left -= <long>take[i]
            throughput += take[i] * self.speed[q, kind]
            if self.groups[kind] > 0:
                slow = least(slow, self.speed[q, kind])
        seconds = work * amount / throughput
        if stages == 1:
            return seconds
        for turn in range(NUM_FILL_ROUNDS):  # the more time there is, the fuller the micro-batches of slow replicas
            if most == 1:
                fill = amount / ceil(amount)
            else:
                y = seconds * stages * slow / work
                x = largest(high * stages, 0.0)
                handled = largest(0.5 * (y - 1.0 - x + sqrt((y - 1.0 - x) * (y - 1.0 - x) + 4.0 * y)), 0.0)
                fill = handled / (handled + 1.0)
            for way in range(2):
                full = high * (1.0 + phi * (stages - 1.0)) if way == 0 else high
                slope = 1.0 if way == 0 else 1.0 - phi
                lost = largest(fill * full, full - (1.0 - fill) * low / slope)
                seconds = largest(seconds, self.spread(q, take, slope * (amount - most * lost), fill * low))
        return seconds

    cdef double spread(self, long q, const double* take, double amount, double per_group) noexcept nogil:
        """Seconds of ``amount`` units of work on groups that each lose ``per_group`` units; any fastest part may work."""
        cdef double work = self.setting[q, 0], number = 0.0, throughput = 0.0, result = INFINITY
        cdef long i
        for i in range(self.num_types):
            if take[i] == 0.0:
                continue
            number += take[i]
            throughput += take[i] * self.speed[q, self.fastest[q, i]]
            result = least(result, work * (amount + per_group * number) / throughput)
        return result

    cdef void busiest(self, long q, long share, long stages, double* by_stage, double* by_pass) noexcept nogil:
        """Numbers (b, c): a replica with at least ``share`` prompts needs ``b z + c S`` seconds.

        The seconds are linear in S / z, which is at most P, and the least of lines over all shares is above the
        chord between its ends.
        """
        cdef double prompt = self.setting[q, 3], least_share = self.setting[q, 4], most_share = self.setting[q, 5]
        cdef double phi = self.setting[q, 6], amount, number, fill, value, low = INFINITY, high = INFINITY
        cdef long i
        if stages == 1:
            by_stage[0], by_pass[0] = share * prompt, 0.0
            return
        for i in range(2 + <long>(stages / prompt)):
            amount = (share + i) * prompt
            number = ceil(amount)
            fill = amount / number
            value = fill * (number - most_share * (1.0 + phi * (least(number, stages) - 1.0)))
            low = least(low, value)
            high = least(high, value + fill * least_share * stages)
            if amount - most_share * (1.0 + phi * (stages - 1.0)) - 1.0 > high:
                break  # more prompts take longer
        by_stage[0], by_pass[0] = low, (high - low) / stages

    cdef double passed(
        self, long q, long stages, const long* slots, double by_stage, double by_pass, double slowest) noexcept nogil:
        """Least of ``by_stage z + by_pass S`` over stages that take z seconds at most, at least ``slowest``, S together.

        The longer the slowest stage, the more layers may lie on the fastest types; the sum is least at a z where these
        types hold all layers.
        """
        cdef double rate = 0.0, seconds, best = INFINITY, head = INFINITY
        cdef double[MAX_TYPES] each
        cdef long left = stages, i, kind, number
        if self.by_layer[q, self.quickest[q, 0]] <= 0.0:
            return by_stage * slowest + by_pass * self.setting[q, 9]
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            number = min(left, slots[kind])
            left -= number
            each[i] = number / self.by_layer[q, kind]
            rate += each[i]
            if number > 0:
                head = least(head, self.head[q, kind])
        slowest = largest(slowest, self.num_layers / rate)
        best = by_stage * slowest + by_pass * self.through(q, each, slowest)
        rate = 0.0
        for i in range(self.num_types):
            if each[i] == 0.0:
                continue
            rate += each[i]
            seconds = self.num_layers / rate
            if seconds <= slowest:
                break
            best = least(best, by_stage * seconds + by_pass * self.through(q, each, seconds))
        return best + by_pass * head

    cdef inline double through(self, long q, const double* each, double slowest) noexcept nogil:
        """Seconds of all layers where types take ``each`` layers per second of the slowest stage, the quickest first."""
        cdef double left = self.num_layers, here, result = 0.0
        cdef long i
        for i in range(self.num_types):
            here = least(left, each[i] * slowest)
            if here > 0.0:
                left -= here
                result += here * self.by_layer[q, self.quickest[q, i]]
        return result

    cdef double dealt(
        self, long q, long stages, const long* slots, long crossing, double state) noexcept nogil:
        """Seconds of the slowest stage where whole layers are dealt to P stages so that it is as fast as can be.

        With ``slots`` so many stages may be on each type, and the others, at least one, hold ``crossing`` layers at
        most; a layer takes ``state`` bytes. Infinite if that is not possible.
        """
        cdef double low = 0.0, high = 0.0, middle
        cdef long i, turn, kind
        cdef double[MAX_TYPES] cap
        if self.by_layer[q, self.quickest[q, 0]] <= 0.0:
            return 0.0  # layers of several kinds
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            cap[kind] = self.num_layers
            if state > 0.0:
                cap[kind] = least(cap[kind], floor(self.room[kind] / state * (1 + 1e-12)))
            if self.groups[kind] > 0:
                high = largest(high, self.by_layer[q, kind] * self.num_layers)
        if self.most_layers(q, stages, slots, crossing, cap, high) < self.num_layers:
            return INFINITY
        for turn in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if self.most_layers(q, stages, slots, crossing, cap, middle) >= self.num_layers:
                high = middle
            else:
                low = middle
        return low

    cdef double most_layers(
        self, long q, long stages, const long* slots, long crossing, const double* cap, double slowest) noexcept nogil:
        """Layers that P stages hold at most where none takes longer than ``slowest``."""
        cdef double result = crossing, most
        cdef double[MAX_TYPES] each
        cdef long left = stages - 1 if crossing > 0 else stages, i, kind, best, number
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            each[i] = 0.0
            if (self.groups[kind] if slots == NULL else slots[kind]) > 0:
                each[i] = least(cap[kind], floor(slowest / self.by_layer[q, kind]))
        while left > 0:
            most, best = crossing, -1
            for i in range(self.num_types):
                if each[i] > most:
                    most, best = each[i], i
            if best < 0:
                return result + <double>left * crossing
            kind = self.quickest[q, best]
            number = min(left, self.groups[kind] if slots == NULL else slots[kind])
            result += number * most
            left -= number
            each[best] = 0.0
        return result

    # ---- memory

    cdef inline double sharded(self, long sharding, bint on_host, long most) noexcept nogil:
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
        cdef double state = per_replica / self.parameters * self.setting[q, 8], kept = self.setting[q, 7]
        cdef double lean = state + kept, common = 0.0
        cdef long left = most * stages, i, kind, number = 0, until = 0, upper, block = 0
        held = fewest * per_replica / self.setting_degree[q, 1]
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
        cdef double state = per_parameter * self.setting[q, 8], kept = self.setting[q, 7]
        cdef double head, length, placed, outside, total = 0.0
        cdef double[MAX_PIPELINE] cap
        cdef long number, turn
        if self.by_layer[q, kind] <= 0.0:
            return 0.0
        head = self.head[q, kind] / self.by_layer[q, kind]
        for number in range(stages):
            outside = 0.0
            if number == 0:
                outside = self.setting[q, 11] * per_parameter + self.setting[q, 12] * size
            if number == stages - 1:
                outside += self.setting[q, 10] * per_parameter
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

    # ---- gradients and optimizer

    cdef double placed(
        self, long q, long r, long sharding, bint on_host, long stages, long fewest, long most, double by_stage,
        double by_pass, double pipelined, double limit,
    ) noexcept nogil:
        """Pipeline and gradient reduce. Either every stage's ring lies in one node, or some stages' rings do not.

        Where a ring lies in one node, all replicas have the same type there and are no faster than that stage. Rings
        between nodes hold at most so many layers, each of which has to cross the network.
        """
        cdef long[MAX_TYPES] here
        cdef long y, num_inside = 0, crossing, flows, most_inside
        cdef double state, z, reduce, layers, seconds, result = INFINITY
        if fewest == 1:
            return pipelined
        for y in range(self.num_types):
            here[y] = min(self.slots[self.setting_degree[q, 0], r, y], self.groups[y] // fewest)
            num_inside += here[y]
        state = self.sharded(sharding, on_host, most) / self.parameters * self.setting[q, 8] + self.setting[q, 7]
        if num_inside >= stages:
            layers = ceil(<double>self.num_layers / stages)
            reduce = self.updates * self.reduce_inside(
                q, r, sharding, most, here, largest(self.gradients / stages, layers * self.layer_gradients),
                largest(self.weights / stages, layers * self.layer_weights))
            if pipelined + reduce < limit:
                z = self.dealt(q, stages, here, 0, state)
                result = largest(pipelined, self.passed(q, stages, here, by_stage, by_pass, z)) + reduce
        if self.bandwidth <= 0.0:
            return result
        most_inside = min(num_inside, stages - 1)
        flows = stages - most_inside if self.num_nodes == 2 else 1
        for crossing in range(1, self.num_layers + 1):
            if most_inside == 0 and crossing * stages < self.num_layers:
                continue
            reduce = self.reduce_between(q, sharding, fewest, most, crossing, flows)
            if crossing * stages < self.num_layers:
                layers = ceil(crossing + (<double>self.num_layers - crossing * stages) / most_inside)
                reduce = largest(reduce, self.reduce_inside(
                    q, r, sharding, most, here, layers * self.layer_gradients, layers * self.layer_weights))
            reduce *= self.updates
            if pipelined + reduce >= least(result, limit):
                if crossing * stages >= self.num_layers:
                    break
                continue
            seconds = pipelined
            if most_inside > 0:
                z = self.dealt(q, stages, here, crossing, state)
                seconds = largest(seconds, self.passed(q, stages, self.groups, by_stage, by_pass, z))
            result = least(result, seconds + reduce)
            if seconds <= pipelined and crossing * stages >= self.num_layers:
                break
        return result

    cdef double reduce_inside(
        self, long q, long r, long sharding, long most, const long* here, double gradients, double weights) noexcept nogil:
        """One update's gradient reduce of so many bytes of a stage in a ring inside a node."""
        cdef double reduce, best = INFINITY, shard = self.setting_degree[q, 1]
        cdef long kind
        for kind in range(self.num_types):
            if here[kind] > 0:
                reduce = self.ring_inside(
                    r, kind, ALL_REDUCE if sharding == NONE else REDUCE_SCATTER, gradients / shard)
                best = least(best, self.exposed(
                    q, sharding, most, reduce, self.ring_inside(r, kind, ALL_GATHER, weights / shard)))
        return self.reduce_scale * best

    cdef inline double ring_inside(self, long r, long kind, long operation, double num_bytes) noexcept nogil:
        return (
            self.inside[operation, r, kind, 0]
            + self.inside[operation, r, kind, 1] * sqrt(num_bytes)
            + self.inside[operation, r, kind, 2] * num_bytes
        )

    cdef double reduce_between(
        self, long q, long sharding, long fewest, long most, long layers, long flows) noexcept nogil:
        """One update's gradient reduce of a stage with so many layers, its ring over the fastest link between nodes."""
        cdef double shard = self.setting_degree[q, 1], width = self.bandwidth / shard / flows
        cdef double gradients = layers * self.layer_gradients / shard, weights = layers * self.layer_weights / shard
        cdef double reduce = (fewest - 1) * (self.latency + gradients / (fewest * width))
        cdef double gather = (fewest - 1) * (self.latency + weights / (fewest * width))
        if sharding == NONE:
            reduce = least(2 * reduce, 2 * self.latency + gradients / width)
        return self.reduce_scale * self.exposed(q, sharding, most, reduce, gather)

    cdef inline double exposed(self, long q, long sharding, long most, double reduce, double gather) noexcept nogil:
        """What is not hidden behind computing."""
        cdef double result = reduce * self.gradient_exposed
        if sharding == ZERO1:
            result += gather
        elif sharding == FSDP:
            result += gather * 2.0 * ceil(self.setting[q, 1] / most) * self.gather_exposed
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
        return self.step_scale * state / self.setting_degree[q, 1] / through

    cdef double joint(self, long q, long stages, double by_stage, double by_pass) noexcept nogil:
        """Pipeline and host optimizer step of a single replica: both depend on which type holds which layers.

        With the fraction x_y of the layers on type y, ``x_y <= z rho_y`` for the pipeline and ``x_y <= u H_y`` for the
        step; ``by_stage z + updates u + by_pass sum_y x_y A_y`` is least where a type changes sides and the quickest
        types hold all layers.
        """
        cdef double best = INFINITY, ratio, through, passing, cap, z
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
