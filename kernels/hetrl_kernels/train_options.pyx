# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options of training tasks: layouts with micro-batch, recomputation, sharding and residency.

All combinations are checked for memory and given a lower bound of their time; in the order of their bounds those that
no option found so far beats in time and memory are costed exactly.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc, qsort, realloc

from hetrl_kernels.memory cimport (
    FSDP, HOST, HOST_WHEN_IDLE, NO_SHARDING, ON_DEVICE, ON_HOST, RESIDENT, Rank, State, gathered_bytes, train_activations,
    train_rank, train_state,
)
from hetrl_kernels.options cimport (
    ALLOW_FSDP, ALLOW_OPTIMIZER_HOST, ALLOW_RECOMPUTE, ALLOW_WEIGHTS_HOST, ALLOW_ZERO1, add_rank, new_option,
)
from hetrl_kernels.rings cimport StageRing, optimizer_seconds, stage_rings, update_seconds
from hetrl_kernels.tables cimport MAX_STAGES, TRAIN, Tables, fmax, fmin, micro_batch_of
from hetrl_kernels.timing cimport Replica, train_replica

from bisect import insort
from operator import attrgetter

cdef int[5] WEIGHTS_CHOICES = [RESIDENT, RESIDENT, ON_HOST, RESIDENT, ON_HOST]
cdef int[5] OPTIMIZER_CHOICES = [ON_DEVICE, HOST_WHEN_IDLE, HOST_WHEN_IDLE, HOST, HOST]
cdef double WORTH_FRACTION = 0.05  # nothing is offloaded or recomputed where less than this fraction of a device is at stake


cdef int compare_candidates(const void* a, const void* b) noexcept nogil:
    cdef const Candidate* x = <const Candidate*>a
    cdef const Candidate* y = <const Candidate*>b
    if x.bound != y.bound:
        return -1 if x.bound < y.bound else 1
    if x.active != y.active:
        return -1 if x.active < y.active else 1
    if x.idle != y.idle:
        return -1 if x.idle < y.idle else 1
    if x.layout != y.layout:
        return -1 if x.layout < y.layout else 1
    if x.micro_batch != y.micro_batch:
        return x.micro_batch - y.micro_batch
    if x.recompute != y.recompute:
        return x.recompute - y.recompute
    if x.sharding != y.sharding:
        return x.sharding - y.sharding
    return x.residency - y.residency


cdef class TrainOptions(TaskOptions):
    """Options of training tasks."""

    cdef tuple train_options(self, int task, Devices devices):
        cdef Tables t = self.t
        cdef list found = self.layouts_of(task, devices)
        cdef Candidate* candidates = NULL
        cdef int number = 0, room = 0, l
        cdef double fastest = INFINITY
        for l in range(len(found)):
            fastest = self.train_candidates(task, found[l], l, &candidates, &number, &room, fastest)
        qsort(candidates, number, sizeof(Candidate), compare_candidates)
        cdef list front = [], marks = [], ranked = []
        cdef Option option
        cdef double leanest_active = INFINITY, leanest_idle = INFINITY, last = INFINITY  # seconds of the last that the front holds
        cdef int i, dominated, overflow = 0
        for i in range(number):
            if candidates[i].bound > self.slow_limit(fastest):
                self.cut("SLOW_LAYOUT", number - i)
                break
            if (candidates[i].bound >= last or len(front) >= 2 * self.max_options) and candidates[i].active >= leanest_active and candidates[i].idle >= leanest_idle:
                overflow += 1
                continue
            dominated = 0
            for mark in marks:
                if (
                    mark[0] <= candidates[i].bound and mark[1] <= candidates[i].active and mark[2] <= candidates[i].idle
                    and mark[3] <= candidates[i].host
                ):
                    dominated = 1
                    break
            if dominated:
                continue
            option = self.train_option(task, found[candidates[i].layout], &candidates[i])
            for mark in marks:
                if (
                    mark[0] <= option.seconds and mark[1] <= candidates[i].active and mark[2] <= candidates[i].idle
                    and mark[3] <= candidates[i].host
                ):
                    dominated = 1
                    break
            if dominated:
                continue
            fastest = fmin(fastest, option.seconds)
            marks.append((option.seconds, candidates[i].active, candidates[i].idle, candidates[i].host))
            front.append(option)
            insort(ranked, option.seconds)
            if len(ranked) >= self.max_options:
                last = ranked[self.max_options - 1]
            leanest_active = fmin(leanest_active, candidates[i].active)
            leanest_idle = fmin(leanest_idle, candidates[i].idle)
        free(candidates)
        self.cut("FRONT_OVERFLOW", overflow)
        front.sort(key=attrgetter("seconds"))
        return tuple(front)

    cdef double train_candidates(
        self, int task, Layout layout, int number_of_layout, Candidate** candidates, int* number, int* room, double fastest) except? -1.0:
        """Append the variants of a layout that fit, with lower bounds of their time; returns the lowest bound so far.

        Whatever does not depend on the residency is worked out once, so that a variant costs a few operations.
        """
        cdef Tables t = self.t
        cdef int model = t.task_model[task], stages = layout.max_stages, replicas = layout.num_replicas
        cdef int mb, recompute, sharding, residency, j, first, fits, slot, m_least, kind
        cdef int choices = 2 if self.allowed[TRAIN, ALLOW_RECOMPUTE] else 1
        cdef double sequences = <double>t.num_prompts * t.task_sequences[task]
        cdef double[MAX_STAGES] limit, plain, process, spread, activations, gathered
        cdef State[3][MAX_STAGES] states
        cdef StageRing[MAX_STAGES] rings
        cdef double[3][2] optimizer
        cdef double[5] active, idle, moved, host
        cdef double pipelines, update, base, fraction, state_active, weights_idle, bare_idle, whole_idle, w, o
        cdef double moved_weights, moved_optimizer, host_process, host_weights, host_optimizer
        cdef bint spans = layout.num_slots * layout.degree > 1
        cdef bint on_cpu
        cdef Candidate* new
        cdef int* layers = layout.layers
        cdef long long cut_memory = 0, cut_slow = 0
        for j in range(stages):
            limit[j] = INFINITY
        for slot in range(layout.num_slots):
            j = slot % stages
            limit[j] = fmin(limit[j], t.node_limit[layout.node[slot]])
        on_cpu = t.type_is_cpu[t.node_type[layout.node[0]]]
        first = 0
        for j in range(stages):
            kind = t.node_type[layout.node[j]]
            process[j] = t.type_allowance[kind, 0] + (t.type_allowance[kind, 2] if spans else 0.0)
            spread[j] = 1.0 + t.type_allowance[kind, 3]
            for sharding in range(3):
                states[sharding][j] = train_state(t, model, layout.degree, first, layers[j], replicas, sharding)
            gathered[j] = gathered_bytes(t, model, layout.degree, first, layers[j])
            if states[FSDP][j].weights + states[FSDP][j].gradients > limit[j]:  # not even the smallest state fits
                self.cut("DEVICE_MEMORY")
                return fastest
            first += layers[j]
        if self.cutoff < 0 and self.pipelines_bound(task, layout, 0, False, &m_least) > 2 * self.slow_limit(fastest):
            self.cut("SLOW_LAYOUT")
            return fastest
        stage_rings(t, layout, rings)
        for sharding in range(3):
            for j in range(2):
                optimizer[sharding][j] = -1.0
        for mb in range(5):
            if mb > 0 and micro_batch_of(mb) * replicas * t.num_mini_batches > sequences:
                break
            fits = 0
            for recompute in range(choices):
                fraction = 0.0
                first = 0
                for j in range(stages):
                    activations[j] = train_activations(
                        t, task, layout.degree_index, first, layers[j], stages - j, t.num_prompts, micro_batch_of(mb), recompute
                    )
                    if not recompute:
                        plain[j] = activations[j]
                    fraction = fmax(fraction, plain[j] / limit[j])
                    activations[j] = activations[j] * spread[j] + process[j]
                    first += layers[j]
                if recompute and fraction < WORTH_FRACTION:
                    continue  # worthless where the activations are small anyway
                pipelines = -1.0
                for sharding in range(3):
                    if (sharding == NO_SHARDING) != (replicas == 1 or not self.allowed[TRAIN, ALLOW_ZERO1]):
                        continue
                    if sharding == FSDP and not self.allowed[TRAIN, ALLOW_FSDP]:
                        continue
                    active[0] = active[3] = whole_idle = weights_idle = bare_idle = 0.0
                    moved_weights = moved_optimizer = host_process = host_weights = host_optimizer = 0.0
                    for j in range(stages):
                        w, o = states[sharding][j].weights, states[sharding][j].optimizer
                        base = w + states[sharding][j].gradients + activations[j] + (gathered[j] if sharding == FSDP else 0.0)
                        active[0] = fmax(active[0], (base + o) / limit[j])
                        active[3] = fmax(active[3], base / limit[j])
                        whole_idle = fmax(whole_idle, (w + o + process[j]) / limit[j])
                        weights_idle = fmax(weights_idle, (w + process[j]) / limit[j])
                        bare_idle = fmax(bare_idle, process[j] / limit[j])
                        moved_weights = fmax(moved_weights, 2 * w / rings[j].slowest_host_link)
                        moved_optimizer = fmax(moved_optimizer, 2 * o / rings[j].slowest_host_link)
                        host_process = fmax(host_process, t.type_allowance[t.node_type[layout.node[j]], 4] * rings[j].most_ranks)
                        host_weights = fmax(host_weights, w * rings[j].most_ranks)
                        host_optimizer = fmax(host_optimizer, o * rings[j].most_ranks)
                    if active[3] > 1.0:
                        cut_memory += 5
                        continue
                    fits = 1
                    if pipelines < 0:
                        pipelines = self.pipelines_bound(task, layout, mb, recompute, &m_least)
                    if pipelines > self.slow_limit(fastest):
                        cut_slow += 5
                        break
                    active[1] = active[2] = active[0]
                    active[4] = active[3]
                    idle[0], idle[1], idle[2], idle[3], idle[4] = whole_idle, weights_idle, bare_idle, weights_idle, bare_idle
                    moved[0] = moved[3] = 0.0
                    moved[1] = moved_optimizer
                    moved[2] = moved_optimizer + moved_weights
                    moved[4] = moved_weights
                    host[0] = host_process
                    host[1] = host[3] = host_process + host_optimizer
                    host[2] = host[4] = host[1] + host_weights
                    update = update_seconds(t, rings, stages, replicas, sharding, states[sharding], m_least)
                    for residency in range(1 if on_cpu or not self.allowed[TRAIN, ALLOW_OPTIMIZER_HOST] else 5):
                        if WEIGHTS_CHOICES[residency] == ON_HOST and not self.allowed[TRAIN, ALLOW_WEIGHTS_HOST]:
                            continue
                        if active[residency] > 1.0:
                            cut_memory += 1
                            continue
                        j = OPTIMIZER_CHOICES[residency] == HOST
                        if optimizer[sharding][j] < 0:
                            optimizer[sharding][j] = optimizer_seconds(t, layout, states[sharding], j)
                        if number[0] == room[0]:
                            room[0] = max(256, 2 * room[0])
                            candidates[0] = <Candidate*>realloc(candidates[0], room[0] * sizeof(Candidate))
                        self.num_candidates += 1
                        new = &candidates[0][number[0]]
                        new.bound = pipelines + t.num_updates * (update + optimizer[sharding][j]) + moved[residency]
                        new.active, new.idle, new.host = active[residency], idle[residency], host[residency]
                        new.layout, new.micro_batch, new.recompute = number_of_layout, mb, recompute
                        new.sharding, new.residency = sharding, residency
                        if new.bound <= self.slow_limit(fastest):
                            fastest = fmin(fastest, new.bound)
                            number[0] += 1
                        if idle[residency] < WORTH_FRACTION:
                            break  # nothing worth moving to the host
            if not fits:
                break  # a larger micro-batch needs more
        self.cut("DEVICE_MEMORY", cut_memory)
        self.cut("SLOW_LAYOUT", cut_slow)
        return fastest

    cdef double pipelines_bound(self, int task, Layout layout, int mb, bint recompute, int* m_least) noexcept:
        """Lower bound of all updates' pipelines and the old log-probabilities, whatever the shares."""
        cdef Tables t = self.t
        cdef double rate = 0.0, bound, average = (<double>t.num_prompts) / layout.num_replicas
        cdef Replica replica
        cdef TrainTime time
        cdef int c
        for c in range(layout.num_classes):
            replica = layout.replica(layout.representative[c])
            time = train_replica(
                t, task, layout.degree_index, layout.degree, mb, micro_batch_of(mb), recompute, &replica, average, True
            )
            rate += layout.class_size[c] / time.fluid
        m_least[0] = time.num_micro_batches
        bound = t.num_prompts / rate
        if layout.num_classes == 1:
            bound = fmax(bound, time.old_log_probs + t.num_updates * time.pipeline)
        return bound

    cdef Option train_variant(self, int task, Layout layout, const Candidate* candidate):
        """The option that a candidate stands for, neither costed nor with its memory."""
        cdef Option option = new_option(self.t, layout, task, micro_batch_of(candidate.micro_batch))
        option.recompute = candidate.recompute
        option.shape = candidate.micro_batch
        option.sharding = candidate.sharding
        option.weights = WEIGHTS_CHOICES[candidate.residency]
        option.optimizer = OPTIMIZER_CHOICES[candidate.residency]
        return option

    cdef Option train_option(self, int task, Layout layout, const Candidate* candidate):
        """Cost a candidate exactly."""
        cdef Option option = self.train_variant(task, layout, candidate)
        cdef double moved = self.train_memory(option)
        self.train_cost(option, moved)
        return option

    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept:
        cdef Layout layout = option.layout
        cdef Replica replica = layout.replica(layout.representative[c])
        return train_replica(
            self.t, option.task, layout.degree_index, layout.degree, option.shape, option.micro_batch, option.recompute, &replica,
            prompts, False,
        )

    cdef void train_cost(self, Option option, double moved):
        """Shares and seconds."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef int* base = <int*>malloc(2 * layout.num_classes * sizeof(int))
        cdef int* extra = base + layout.num_classes
        cdef int stages = layout.max_stages
        cdef int c, j, first, more, m_most = 0, replicas = layout.num_replicas
        cdef double slowest = 0.0, first_update = 0.0, optimizer, update
        cdef State[MAX_STAGES] states
        cdef StageRing[MAX_STAGES] rings
        cdef TrainTime time
        self.num_costed += 1
        self.shares(option.task, layout, option.shape, option.micro_batch, option.recompute, NULL, base, extra)
        for c in range(layout.num_classes):
            for more in range(2):
                if (more and extra[c] == 0) or (not more and extra[c] == layout.class_size[c]):
                    continue
                time = self.train_time(option, c, base[c] + more)
                slowest = fmax(slowest, time.pipeline)
                first_update = fmax(first_update, time.old_log_probs + time.pipeline)
                m_most = max(m_most, time.num_micro_batches)
        first = 0
        for j in range(stages):
            states[j] = train_state(t, t.task_model[option.task], layout.degree, first, layout.layers[j], replicas, option.sharding)
            first += layout.layers[j]
        stage_rings(t, layout, rings)
        optimizer = optimizer_seconds(t, layout, states, option.optimizer == HOST)
        update = update_seconds(t, rings, stages, replicas, option.sharding, states, m_most)
        self.spread(option, base, extra)
        free(base)
        option.seconds = (
            first_update + (t.num_updates - 1) * slowest + t.num_updates * optimizer + t.num_updates * update + moved
        )

    cdef double train_memory(self, Option option):
        """Bytes of every cell; returns the seconds of moving states around the task's interval."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef double* host = <double*>malloc(layout.num_slots * sizeof(double))
        cdef int stages = layout.max_stages, model = t.task_model[option.task], j, slot, node, first = 0
        cdef double moved = 0.0, activations, gathered
        cdef bint spans = layout.num_slots * layout.degree > 1
        cdef State state
        cdef Rank rank
        for j in range(stages):
            state = train_state(t, model, layout.degree, first, layout.layers[j], layout.num_replicas, option.sharding)
            activations = train_activations(
                t, option.task, layout.degree_index, first, layout.layers[j], stages - j, t.num_prompts, option.micro_batch,
                option.recompute,
            )
            gathered = gathered_bytes(t, model, layout.degree, first, layout.layers[j]) if option.sharding == FSDP else 0.0
            for slot in range(j, layout.num_slots, stages):
                node = layout.node[slot]
                rank = train_rank(t, t.node_type[node], &state, activations, gathered, option.weights, option.optimizer, spans)
                add_rank(option, layout.devices.cell[node], &rank)
                host[slot] = rank.host
                moved = fmax(moved, rank.moved / t.node_host_link[node])
            first += layout.layers[j]
        self.add_host(option, host)
        free(host)
        return moved
