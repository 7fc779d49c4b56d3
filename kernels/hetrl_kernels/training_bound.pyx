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
    NUM_HALVINGS = 20  # of the slowest stage's seconds
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


cdef struct Slots:
    # Kinds of stages by the types of their groups, the type with the fastest links first.
    long num_types
    long[MAX_TYPES] kind
    long[MAX_TYPES] inside  # stages that may have their ring in one node of the type
    long[MAX_TYPES] until  # stages that may have groups of the types so far only
    double[MAX_TYPES] cap  # layers that fit into memory
    double[MAX_TYPES] between  # layers that a stage with a ring between nodes may have
    bint crosses  # whether some stage's ring lies between nodes
    bint head_between  # whether the last stage's does


cdef class TrainingBound:
    """The lowered task; arrays as in `hetrl.search.bounds.training.TrainingTables`."""

    cdef public long num_points  # points worked out so far
    cdef long num_types, num_layers, num_prompts, num_nodes, num_pipelines, num_replicas, num_settings
    cdef double updates, mini_batches, weights, gradients, optimizer, parameters, layer_gradients, layer_weights
    cdef double reduce_scale, step_scale, gradient_exposed, gather_exposed, joint_states
    cdef const double[::1] room, type_bandwidth, latency, bandwidth
    cdef const double[:, ::1] host_bandwidth
    cdef const long[::1] roomiest, widest, linked, pipelines
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
        self.updates, self.mini_batches, self.parameters = tables.updates, tables.mini_batches, tables.parameters
        self.weights, self.gradients, self.optimizer = tables.states
        self.layer_gradients, self.layer_weights = tables.layer_states
        self.reduce_scale, self.step_scale = tables.scales
        self.gradient_exposed, self.gather_exposed = tables.exposed
        self.latency, self.bandwidth, self.linked = tables.latency, tables.bandwidth, tables.linked
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
            for r in range(self.num_replicas - 1, -1, -1):  # those with all groups first, they tend to be the best
                fewest = self.replicas[r, 0]
                most = min(self.replicas[r, 1], total // stages)
                if fewest * stages > total or (fewest > amount and micro_batch != 1.0):
                    continue
                if most * stages < needed:
                    break
                best = self.of_class(q, r, stages, fewest, most, alone, best)
        return best

    cdef double of_class(
        self, long q, long r, long stages, long fewest, long most, long alone, double best) noexcept nogil:
        """The least of ``best`` and one P and R."""
        cdef double micro_batch = self.setting[q, 2], prompt = self.setting[q, 3]
        cdef double biggest, size, in_flight, step, z, slowest, pipelined, seconds, rest
        cdef long share = (self.num_prompts + most - 1) // most, sharding, on_host
        pipelined = self.flowing(q, stages, most)
        if pipelined >= best:
            return best
        slowest = self.dealt(q, stages, NULL)
        pipelined = largest(pipelined, self.busiest(q, share, stages, self.groups, 0, False, slowest, best))
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
                    seconds = largest(seconds, self.busiest(q, share, stages, self.groups, 0, False, z, best - step))
                rest = self.placed(q, r, sharding, on_host, stages, fewest, most, share, seconds, best - step)
                seconds = rest + step
                if on_host and most == 1:
                    seconds = largest(seconds, self.joint(q, stages))
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

    cdef double busiest(
        self, long q, long share, long stages, const long* slots, long between, bint head_between, double slowest,
        double limit,
    ) noexcept nogil:
        """Seconds of a replica with at least ``share`` prompts, whose slowest stage takes at least ``slowest``.

        With m micro-batches, ``fill`` full, stage j of A_j seconds needs ``fill (kappa_j A_j + S)``, S being all stages'
        seconds, and kappa_j is smallest for the first stage; old log-probabilities fill the pipeline once. Stages lie on the quickest types of ``slots``, but for
        stages with up to ``between`` layers whose devices are not known. Above ``limit`` less care is taken.
        """
        cdef double prompt = self.setting[q, 3], high = self.setting[q, 5], once = self.once(q)
        cdef double low = self.setting[q, 4] + (1.0 - high) / self.mini_batches
        cdef double phi = self.setting[q, 6], amount, number, fill, rate, k, value, head = INFINITY, best = INFINITY
        cdef double[MAX_TYPES] each
        cdef double[MAX_PIPELINE] kappa
        cdef long[MAX_TYPES] take
        cdef long left = stages, i, j, turn, position, kind, num_kinds = 0
        if self.by_layer[q, self.quickest[q, 0]] <= 0.0:  # layers of several kinds
            amount = share * prompt
            return low * self.setting[q, 9] * amount / (amount + 1.0)
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            take[i] = min(left, self.groups[kind] if between > 0 else slots[kind])
            left -= take[i]
            if take[i] > 0:
                num_kinds = i + 1
                head = least(head, self.head[q, kind])
        for turn in range(min(2 + <long>(stages / prompt), self.num_prompts - share + 1)):
            amount = (share + turn) * prompt
            number = ceil(amount)
            fill = amount / number
            if (amount - once - high * (1.0 + phi * (stages - 1.0))) * slowest >= best:
                break  # more prompts take longer
            for j in range(stages):
                kappa[j] = largest(1e-9, number - once - high * (1.0 + phi * (least(number, stages - j) - 1.0)))
            position, rate = 0, 0.0
            for i in range(num_kinds):  # layers per second of kappa_j A_j
                each[i] = 0.0
                for j in range(take[i]):
                    each[i] += 1.0 / kappa[position] / self.by_layer[q, self.quickest[q, i]]
                    position += 1
                rate += each[i]
            k = largest(kappa[0] * slowest, self.num_layers / rate)
            value = fill * (self.passed(q, num_kinds, each, k, low) + low * head)
            if value < best and value < limit:
                k = self.whole_layers(q, stages, kappa, slots, between, head_between, k)
                value = fill * (self.passed(q, num_kinds, each, k, low) + low * head)
            best = least(best, value)
        return best

    cdef inline double once(self, long q) noexcept nogil:
        """Most of a stage's seconds that one micro-batch of the old log-probabilities takes."""
        return (1.0 - self.setting[q, 4]) / self.mini_batches

    cdef double whole_layers(
        self, long q, long stages, const double* kappa, const long* slots, long between, bint head_between, double low,
    ) noexcept nogil:
        """Least K, at least ``low``, with which stages whose ``kappa_j A_j`` is at most K hold all layers."""
        cdef double high = low, middle
        cdef long turn
        for turn in range(NUM_HALVINGS):
            if self.held_layers(q, stages, kappa, slots, between, head_between, high) >= self.num_layers:
                break
            low = high
            high *= 1.5
        else:
            return low
        if turn == 0:
            return low
        for turn in range(NUM_HALVINGS // 2):
            middle = (low + high) / 2
            if self.held_layers(q, stages, kappa, slots, between, head_between, middle) >= self.num_layers:
                high = middle
            else:
                low = middle
        return low

    cdef double held_layers(
        self, long q, long stages, const double* kappa, const long* slots, long between, bint head_between, double k,
    ) noexcept nogil:
        """Layers that stages with ``kappa_j A_j`` up to K hold, every type on the first positions it may have."""
        cdef double result = between, lost = 0.0 if head_between else INFINITY, most, here
        cdef double[MAX_TYPES] layers
        cdef long[MAX_TYPES] taken
        cdef long left = stages - (1 if between > 0 else 0), y, best
        for y in range(self.num_types):
            taken[y] = 0
            layers[y] = floor(k / kappa[0] / self.by_layer[q, y]) if slots[y] > 0 else 0.0
        while left > 0:
            best, most = -1, between
            for y in range(self.num_types):
                if layers[y] > most:
                    best, most = y, layers[y]
            if best < 0:
                result += <double>left * between
                break
            result += most
            left -= 1
            taken[best] += 1
            layers[best] = 0.0
            if taken[best] < min(slots[best], stages):
                layers[best] = floor(k / kappa[taken[best]] / self.by_layer[q, best])
        for y in range(self.num_types):
            if slots[y] > 0:  # the last stage has the head
                most = floor((k / kappa[stages - 1] - self.head[q, y]) / self.by_layer[q, y] * (1 + 1e-12))
                here = floor(k / kappa[min(taken[y], min(slots[y], stages) - 1)] / self.by_layer[q, y])
                if most >= 1.0:
                    lost = least(lost, largest(0.0, here - most))
        return result - lost

    cdef double passed(self, long q, long num_kinds, const double* each, double slowest, double low) noexcept nogil:
        """Least of K and ``low`` times the seconds of a pass where types take ``each`` layers per second of K.

        The larger K, at least ``slowest``, the more layers may lie on the quickest types; the sum is least at a K where
        these hold all layers.
        """
        cdef double rate = 0.0, k = slowest, best = INFINITY, left, here, through
        cdef long i, j
        for i in range(-1, num_kinds):
            if i >= 0:
                if each[i] == 0.0:
                    continue
                rate += each[i]
                k = self.num_layers / rate
                if k <= slowest:
                    break
            left, through = self.num_layers, 0.0
            for j in range(num_kinds):
                here = least(left, each[j] * k)
                left -= here
                through += here * self.by_layer[q, self.quickest[q, j]]
            best = least(best, k + low * through)
        return best

    cdef double dealt(self, long q, long stages, const Slots* slots) noexcept nogil:
        """Seconds of the slowest stage where whole layers are dealt to P stages so that it is as fast as can be.

        Without ``slots`` to the P quickest groups; else as they say, and infinite if that is not possible.
        """
        cdef double low = 0.0, high = 0.0, middle
        cdef long y, turn
        if self.by_layer[q, self.quickest[q, 0]] <= 0.0:
            return 0.0  # layers of several kinds
        for y in range(self.num_types):
            if self.groups[y] > 0:
                high = largest(high, self.by_layer[q, y] * self.num_layers + self.head[q, y])
        if slots != NULL and self.most_layers(q, stages, slots, high) < self.num_layers:
            return INFINITY
        for turn in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if (self.quickest_layers(q, stages, middle) if slots == NULL else self.most_layers(q, stages, slots, middle)) \
                    >= self.num_layers:
                high = middle
            else:
                low = middle
        return low

    cdef double quickest_layers(self, long q, long stages, double slowest) noexcept nogil:
        """Layers that the P quickest groups hold at most where none takes longer than ``slowest``."""
        cdef double result = 0.0, lost = INFINITY, here
        cdef long left = stages, i, kind, number
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            number = min(left, self.groups[kind])
            left -= number
            here = 0.0
            if number > 0:
                here = floor(slowest / self.by_layer[q, kind])
                result += number * here
            if self.groups[kind] > 0:
                lost = least(lost, self.lost_to_head(q, kind, here, slowest))
        return result - lost

    cdef inline double lost_to_head(self, long q, long kind, double layers, double slowest) noexcept nogil:
        """Fewer layers that a stage on a type holds if it is the last one, which has the head."""
        cdef double most = floor((slowest - self.head[q, kind]) / self.by_layer[q, kind] * (1 + 1e-12))
        return INFINITY if most < 1.0 else largest(0.0, layers - most)

    cdef double most_layers(self, long q, long stages, const Slots* slots, double slowest) noexcept nogil:
        """Layers that P stages hold at most where no stage with its ring in one node takes longer than ``slowest``.

        Kinds of stages are taken by the number of layers. Stages that have no groups but of the types with the fastest
        links up to some type are limited by the number of these groups: sets inside each other, so this is best.
        """
        cdef double result = 0.0, most, lost = 0.0 if slots.head_between else INFINITY
        cdef double[MAX_TYPES] inside
        cdef long[MAX_TYPES] free_inside, free_until
        cdef bint[MAX_TYPES] between
        cdef long left = stages, i, j, best, number, crossing = 0
        cdef bint best_inside
        for i in range(slots.num_types):
            inside[i] = least(slots.cap[i], floor(slowest / self.by_layer[q, slots.kind[i]]))
            free_inside[i], free_until[i], between[i] = slots.inside[i], slots.until[i], slots.between[i] > 0
            if slots.inside[i] > 0 and inside[i] > 0.0:
                lost = least(lost, self.lost_to_head(q, slots.kind[i], inside[i], slowest))
        if slots.crosses:  # at least one stage's ring does
            best = -1
            for i in range(slots.num_types):
                if between[i] and free_until[i] > 0 and (best < 0 or slots.between[i] > slots.between[best]):
                    best = i
            if best < 0:
                return 0.0
            result = slots.between[best]
            left -= 1
            for j in range(best, slots.num_types):
                free_until[j] -= 1
        while left > 0:
            best, most, best_inside = -1, 0.0, False
            for i in range(slots.num_types):
                number = free_until[i]
                for j in range(i + 1, slots.num_types):
                    number = min(number, free_until[j])
                if number <= 0:
                    continue
                if free_inside[i] > 0 and inside[i] > most:
                    best, most, best_inside = i, inside[i], True
                if between[i] and slots.between[i] > most:
                    best, most, best_inside = i, slots.between[i], False
            if best < 0:
                return result - lost
            number = left
            for j in range(best, slots.num_types):
                number = min(number, free_until[j])
            if best_inside:
                number = min(number, free_inside[best])
                free_inside[best] -= number
            for j in range(best, slots.num_types):
                free_until[j] -= number
            result += number * most
            left -= number
        return result - lost

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
        state = self.sharded(sharding, on_host, most) / self.parameters * self.setting[q, 8] + self.setting[q, 7]
        slots.num_types = 0
        for j in range(self.num_types):
            y = self.linked[j]
            if self.groups[y] == 0:
                here[y] = 0
                continue
            i = slots.num_types
            slots.num_types += 1
            here[y] = min(self.slots[self.setting_degree[q, 0], r, y], self.groups[y] // fewest)
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
            head = self.setting[q, 11] / self.setting[q, 8] if slots.head_between else 0.0  # in layers
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
        self, long q, long sharding, long fewest, long most, long kind, double layers, long flows) noexcept nogil:
        """One update's gradient reduce of a stage with so many layers, its ring over the fastest link of a type."""
        cdef double shard = self.setting_degree[q, 1], width = self.bandwidth[kind] / shard / flows
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

    cdef double joint(self, long q, long stages) noexcept nogil:
        """Pipeline and host optimizer step of a single replica: both depend on which type holds which layers.

        With the fraction x_y of the layers on type y, ``x_y <= z rho_y`` for the pipeline and ``x_y <= u H_y`` for the
        step; ``fill (kappa z + sum_y x_y A_y) + updates u`` is least where a type changes sides and the quickest types
        hold all layers.
        """
        cdef double best = INFINITY, ratio, through, passing, cap, z, number = ceil(self.setting[q, 1])
        cdef double fill = self.setting[q, 1] / number
        cdef double by_pass = fill * (self.setting[q, 4] + (1.0 - self.setting[q, 5]) / self.mini_batches)
        cdef double by_stage = fill * (
            number - self.once(q) - self.setting[q, 5] * (1.0 + self.setting[q, 6] * (least(number, stages) - 1.0)))
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
