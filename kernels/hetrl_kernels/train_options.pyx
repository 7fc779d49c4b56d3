# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options of training tasks: layouts with micro-batch, recomputation, sharding and residency.

All combinations are checked for memory and given a lower bound of their time; in the order of their bounds those that
no option found so far beats in time and memory are costed exactly.
"""

from libc.math cimport INFINITY
from libc.stdlib cimport free, malloc, qsort, realloc

from hetrl_kernels.memory cimport (
    FSDP, HOST, HOST_WHEN_IDLE, NO_SHARDING, ON_DEVICE, ON_HOST, RESIDENT, ZERO1, Rank, State, activation_bytes,
    gathered_bytes, micro_batch_size, stage_activations, train_activations, train_rank, train_state,
)
from hetrl_kernels.options cimport (
    ALLOW_FSDP, ALLOW_OPTIMIZER_HOST, ALLOW_RECOMPUTE, ALLOW_WEIGHTS_HOST, ALLOW_ZERO1, add_rank, new_option,
    spread_to_replicas,
)
from hetrl_kernels.replica_times cimport ReplicaTimes
from hetrl_kernels.rings cimport optimizer_seconds, stage_rings, update_seconds
from hetrl_kernels.tables cimport MAX_STAGES, TRAIN, Tables, fmax, fmin, micro_batch_of

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


cdef bint dominated(const Candidate* candidate, double seconds, const Candidate* marks, int num_marks) noexcept nogil:
    """Whether one of the marks is as fast as these seconds and nowhere holds more than the candidate."""
    cdef int i
    for i in range(num_marks):
        if (
            marks[i].bound <= seconds and marks[i].active <= candidate.active and marks[i].idle <= candidate.idle
            and marks[i].host <= candidate.host
        ):
            return True
    return False


cdef class TrainOptions(TaskOptions):
    """Options of training tasks."""

    def __init__(self, Tables tables, int[:, ::1] allowed, int max_options, int engine_limit):
        TaskOptions.__init__(self, tables, allowed, max_options, engine_limit)
        self.pipelines = PipelineBounds(tables)

    cdef tuple train_options(self, int task, Devices devices):
        cdef Tables t = self.t
        cdef list found = self.layouts_of(task, devices)
        cdef Candidate* candidates = NULL
        cdef int number = 0, room = 0, l
        cdef double fastest = INFINITY
        for l in range(len(found)):
            fastest = self.train_candidates(task, found[l], l, &candidates, &number, &room, fastest)
        cdef list front = [], ranked = []
        cdef Option option
        cdef Candidate* marks = NULL  # of the front's options, with their seconds as bounds
        cdef double leanest_active = INFINITY, leanest_idle = INFINITY, last = INFINITY  # seconds of the last that the front holds
        cdef int i, num_marks = 0, overflow = 0, beaten = 0
        number = self.below(candidates, number, self.slow_limit(fastest))
        qsort(candidates, number, sizeof(Candidate), compare_candidates)
        for i in range(number):
            if candidates[i].bound > self.slow_limit(fastest):
                self.cut("SLOW_VARIANT", number - i)
                break
            if (
                (candidates[i].bound >= last or num_marks >= 2 * self.max_options)
                and candidates[i].active >= leanest_active
                and candidates[i].idle >= leanest_idle
            ):
                overflow += 1
                continue
            if dominated(&candidates[i], candidates[i].bound, marks, num_marks):
                beaten += 1
                continue
            option = self.train_option(task, found[candidates[i].layout], &candidates[i])
            if dominated(&candidates[i], option.seconds, marks, num_marks):
                beaten += 1
                continue
            fastest = fmin(fastest, option.seconds)
            if num_marks % 64 == 0:
                marks = <Candidate*>realloc(marks, (num_marks + 64) * sizeof(Candidate))
            marks[num_marks] = candidates[i]
            marks[num_marks].bound = option.seconds
            num_marks += 1
            front.append(option)
            insort(ranked, option.seconds)
            if len(ranked) >= self.max_options:
                last = ranked[self.max_options - 1]
            leanest_active = fmin(leanest_active, candidates[i].active)
            leanest_idle = fmin(leanest_idle, candidates[i].idle)
        free(candidates)
        free(marks)
        self.cut("FRONT_OVERFLOW", overflow)
        self.cut("DOMINATED", beaten)
        front.sort(key=attrgetter("seconds"))
        return tuple(front)

    cdef int below(self, Candidate* candidates, int number, double limit):
        """Keep the variants whose bound does not exceed a limit; returns how many."""
        cdef int i, kept = 0
        for i in range(number):
            if candidates[i].bound <= limit:
                candidates[kept] = candidates[i]
                kept += 1
        self.cut("SLOW_VARIANT", number - kept)
        return kept

    cdef double train_candidates(
        self, int task, Layout layout, int number_of_layout, Candidate** candidates, int* number, int* room, double fastest) except? -1.0:
        """Append the variants of a layout that fit, with lower bounds of their time; returns the lowest bound so far.

        Whatever does not depend on the residency is worked out once, so that a variant costs a few operations; the rings
        only where a variant is left whose pipelines are fast enough.
        """
        cdef Tables t = self.t
        cdef int stages = layout.max_stages, replicas = layout.num_replicas, mb, micro_batch, recompute, i, j, m_least = 0
        cdef int residencies = 5 if self.allowed[TRAIN, ALLOW_OPTIMIZER_HOST] and not t.type_is_cpu[t.node_type[layout.node[0]]] else 1
        cdef double sequences = <double>t.num_prompts * t.task_sequences[task]
        cdef StageMemory[MAX_STAGES] memory
        cdef Variants[3] variants  # by sharding
        cdef int[2] shardings
        cdef int num_shardings = self.shardings(replicas, shardings), sharding, residency
        cdef double whole, without, size, num_micro_batches, fraction, pipelines, slow, bound
        cdef double[MAX_STAGES] activations
        cdef bint fits
        cdef Candidate* new
        cdef long long cut_memory = 0, cut_slow = 0, cut_bounded = 0
        if not self.stage_memory(task, layout, memory, variants):
            self.cut("DEVICE_MEMORY")
            return fastest
        slow = self.slow_limit(fastest)
        self.pipelines.start(task, layout)
        for mb in range(5):
            micro_batch = micro_batch_of(mb)
            if mb > 0 and micro_batch * replicas * t.num_mini_batches > sequences:
                break
            self.pipelines.at(mb, micro_batch)
            pipelines = -1.0
            if mb == 0 and self.cutoff < 0:
                pipelines = self.pipelines.bound(micro_batch, False, &m_least)
                if pipelines > 2 * slow:
                    self.cut("SLOW_LAYOUT")
                    return fastest
            size = micro_batch_size(t, task, t.num_prompts, micro_batch, &num_micro_batches) * t.max_sequence
            fits = False
            for recompute in range(2 if self.allowed[TRAIN, ALLOW_RECOMPUTE] else 1):
                if recompute:
                    fraction = 0.0
                    for j in range(stages):
                        fraction = fmax(
                            fraction,
                            activation_bytes(&memory[j].activations, size, num_micro_batches, False) / memory[j].limit,
                        )
                    if fraction < WORTH_FRACTION:
                        continue  # worthless where the activations are small anyway
                for j in range(stages):
                    activations[j] = (
                        activation_bytes(&memory[j].activations, size, num_micro_batches, recompute) * memory[j].spread
                        + memory[j].process
                    )
                if recompute:
                    pipelines = -1.0
                for i in range(num_shardings):
                    sharding = shardings[i]
                    whole = without = 0.0
                    for j in range(stages):
                        bound = variants[sharding].fixed[j] + activations[j] + (memory[j].gathered if sharding == FSDP else 0.0)
                        whole = fmax(whole, (bound + variants[sharding].states[j].optimizer) / memory[j].limit)
                        without = fmax(without, bound / memory[j].limit)
                    if without > 1.0:
                        cut_memory += 5
                        continue
                    fits = True
                    if pipelines < 0:
                        pipelines = self.pipelines.bound(micro_batch, recompute, &m_least)
                    if pipelines > slow:
                        cut_slow += 5
                        break
                    if not variants[sharding].known:
                        self.residencies(layout, memory, sharding, &variants[sharding])
                    if variants[sharding].updated < 0 or (sharding == FSDP and variants[sharding].updated != m_least):
                        variants[sharding].updated = m_least
                        variants[sharding].update = update_seconds(
                            t, layout.rings, stages, replicas, sharding, variants[sharding].states, m_least
                        )
                    for residency in range(residencies):
                        if WEIGHTS_CHOICES[residency] == ON_HOST and not self.allowed[TRAIN, ALLOW_WEIGHTS_HOST]:
                            continue
                        j = OPTIMIZER_CHOICES[residency] == HOST
                        if (without if j else whole) > 1.0:
                            cut_memory += 1
                            continue
                        if variants[sharding].optimizer[j] < 0:
                            variants[sharding].optimizer[j] = optimizer_seconds(t, layout, variants[sharding].states, j)
                        self.num_candidates += 1
                        bound = (
                            pipelines + t.num_updates * (variants[sharding].update + variants[sharding].optimizer[j])
                            + variants[sharding].moved[residency]
                        )
                        if bound <= slow:
                            if number[0] == room[0]:
                                room[0] = max(256, 2 * room[0])
                                candidates[0] = <Candidate*>realloc(candidates[0], room[0] * sizeof(Candidate))
                            new = &candidates[0][number[0]]
                            new.bound, new.active = bound, without if j else whole
                            new.idle, new.host = variants[sharding].idle[residency], variants[sharding].host[residency]
                            new.layout, new.micro_batch, new.recompute = number_of_layout, mb, recompute
                            new.sharding, new.residency = sharding, residency
                            number[0] += 1
                            if bound < fastest:
                                fastest = bound
                                slow = self.slow_limit(fastest)
                        else:
                            cut_bounded += 1
                        if variants[sharding].idle[residency] < WORTH_FRACTION:
                            break  # nothing worth moving to the host
            if not fits:
                break  # a larger micro-batch needs more
        self.cut("DEVICE_MEMORY", cut_memory)
        self.cut("SLOW_LAYOUT", cut_slow)
        self.cut("SLOW_VARIANT", cut_bounded)
        return fastest

    cdef int shardings(self, int replicas, int* shardings) noexcept:
        """Ways to shard the states; ZeRO-1 stands in for unsharded replicas where it is allowed."""
        if replicas == 1 or not self.allowed[TRAIN, ALLOW_ZERO1]:
            shardings[0] = NO_SHARDING
            return 1
        shardings[0], shardings[1] = ZERO1, FSDP
        return 2 if self.allowed[TRAIN, ALLOW_FSDP] else 1

    cdef bint stage_memory(self, int task, Layout layout, StageMemory* memory, Variants* variants) noexcept:
        """What the stages have and hold, whatever the micro-batch; whether the smallest state fits at all."""
        cdef Tables t = self.t
        cdef int model = t.task_model[task], stages = layout.max_stages, sharding, c, j, kind, first = 0
        cdef bint spans = layout.num_slots * layout.degree > 1
        cdef const int* nodes
        for j in range(stages):
            memory[j].limit = INFINITY
        for c in range(layout.num_classes):
            nodes = layout.node + layout.first[layout.representative[c]]
            for j in range(stages):
                memory[j].limit = fmin(memory[j].limit, t.node_limit[nodes[j]])
        for sharding in range(3):
            variants[sharding].known = False
            variants[sharding].updated = -1
        for j in range(stages):
            kind = t.node_type[layout.node[j]]
            memory[j].process = t.type_allowance[kind, 0] + (t.type_allowance[kind, 2] if spans else 0.0)
            memory[j].spread = 1.0 + t.type_allowance[kind, 3]
            memory[j].gathered = gathered_bytes(t, model, layout.degree, first, layout.layers[j])
            memory[j].activations = stage_activations(t, task, layout.degree_index, first, layout.layers[j], stages - j)
            for sharding in range(3):
                variants[sharding].states[j] = train_state(t, model, layout.degree, first, layout.layers[j], layout.num_replicas, sharding)
                variants[sharding].fixed[j] = variants[sharding].states[j].weights + variants[sharding].states[j].gradients
            if variants[FSDP].fixed[j] > memory[j].limit:
                return False
            first += layout.layers[j]
        return True

    cdef void residencies(self, Layout layout, const StageMemory* memory, int sharding, Variants* variants):
        """What a sharding's states hold while idle and on the host, and the seconds of moving them, by residency."""
        cdef Tables t = self.t
        cdef int j
        cdef double w, o, process, whole = 0.0, weights = 0.0, bare = 0.0
        cdef double moved_weights = 0.0, moved_optimizer = 0.0, host_process = 0.0, host_weights = 0.0, host_optimizer = 0.0
        stage_rings(t, layout)
        for j in range(layout.max_stages):
            w, o, process = variants.states[j].weights, variants.states[j].optimizer, memory[j].process
            whole = fmax(whole, (w + o + process) / memory[j].limit)
            weights = fmax(weights, (w + process) / memory[j].limit)
            bare = fmax(bare, process / memory[j].limit)
            moved_weights = fmax(moved_weights, 2 * w / layout.rings[j].slowest_host_link)
            moved_optimizer = fmax(moved_optimizer, 2 * o / layout.rings[j].slowest_host_link)
            host_process = fmax(host_process, t.type_allowance[t.node_type[layout.node[j]], 4] * layout.rings[j].most_ranks)
            host_weights = fmax(host_weights, w * layout.rings[j].most_ranks)
            host_optimizer = fmax(host_optimizer, o * layout.rings[j].most_ranks)
        variants.idle[0], variants.idle[1], variants.idle[2] = whole, weights, bare
        variants.idle[3], variants.idle[4] = weights, bare
        variants.moved[0] = variants.moved[3] = 0.0
        variants.moved[1], variants.moved[2], variants.moved[4] = moved_optimizer, moved_optimizer + moved_weights, moved_weights
        variants.host[0] = host_process
        variants.host[1] = variants.host[3] = host_process + host_optimizer
        variants.host[2] = variants.host[4] = variants.host[1] + host_weights
        variants.optimizer[0] = variants.optimizer[1] = -1.0
        variants.known = True

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
        cdef ReplicaTimes times = self.fill.times_of(
            option.task, option.layout, c, option.shape, option.micro_batch, option.recompute, 0.0
        )
        return times.training(prompts)

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
        stage_rings(t, layout)
        optimizer = optimizer_seconds(t, layout, states, option.optimizer == HOST)
        update = update_seconds(t, layout.rings, stages, replicas, option.sharding, states, m_most)
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
        cdef int stages = layout.max_stages, model = t.task_model[option.task], j, c, slot, node, first = 0
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
            for c in range(layout.num_classes):
                slot = layout.first[layout.representative[c]] + j
                node = layout.node[slot]
                rank = train_rank(t, t.node_type[node], &state, activations, gathered, option.weights, option.optimizer, spans)
                add_rank(option, layout.devices.cell[node], &rank)
                host[slot] = rank.host
                moved = fmax(moved, rank.moved / t.node_host_link[node])
            first += layout.layers[j]
        spread_to_replicas(layout, host)
        self.add_host(option, host)
        free(host)
        return moved
