# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Options of one task on given devices: layouts with micro-batch, recomputation, sharding and residency.

All combinations are checked for memory and given a lower bound of their time; in the order of their bounds those that
no option found so far beats in time and memory are costed exactly.
"""

from libc.math cimport INFINITY, ceil, floor
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy

from hetrl_kernels.tables cimport fmax, fmin
from hetrl_kernels.layouts cimport Devices, Layout, given_layout, layouts
from hetrl_kernels.memory cimport (
    DROPPED, FSDP, HOST, HOST_WHEN_IDLE, NO_SHARDING, ON_DEVICE, ON_HOST, RESIDENT, SHARED, ZERO1, Rank, State, gathered_bytes,
    generate_rank, kv_bytes, score_rank, train_activations, train_rank, train_state,
)
from hetrl_kernels.rings cimport StageRing, optimizer_seconds, stage_rings, update_seconds
from hetrl_kernels.shares cimport Shares
from hetrl_kernels.tables cimport GENERATE, MAX_STAGES, SCORE, TRAIN, Tables
from hetrl_kernels.timing cimport Replica, TrainTime, generate_replica, score_fluid, score_replica, train_replica

from bisect import insort

import cython
import numpy as np

cdef enum:  # columns of `allowed`: features that plans may use, per task kind
    ALLOW_PIPELINE = 0
    ALLOW_TENSOR = 1
    ALLOW_ZERO1 = 2
    ALLOW_FSDP = 3
    ALLOW_RECOMPUTE = 4
    ALLOW_OPTIMIZER_HOST = 5
    ALLOW_WEIGHTS_HOST = 6
    ALLOW_DROPPED = 7

cdef int[5] TRAIN_MICRO_BATCHES = [1, 2, 4, 8, 16]
cdef int[3] SCORE_SHAPES = [0, 2, 4]
cdef int[5] WEIGHTS_CHOICES = [RESIDENT, RESIDENT, ON_HOST, RESIDENT, ON_HOST]
cdef int[5] OPTIMIZER_CHOICES = [ON_DEVICE, HOST_WHEN_IDLE, HOST_WHEN_IDLE, HOST, HOST]
cdef enum:
    NUM_COMPARED = 48  # candidates that a new one is compared with before it is kept
cdef int EXACT_FILL_DEVICES = 32  # in larger fleets shares are exact in the plans that are placed only
cdef double SLOW_RATIO = 2.5  # options slower than this times the fastest are cut
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


@cython.no_gc
cdef class Option:
    def __dealloc__(self):
        free(self.prompts)
        free(self.used)
        free(self.kv)
        free(self.need)
        free(self.active)

    def shares(self):
        """Prompts of every replica."""
        return [self.prompts[i] for i in range(self.layout.num_replicas)]

    def stages(self):
        """Per replica its stages as (node, layers); a stage has as many devices as the tensor degree."""
        cdef int i, s
        return [
            [(self.layout.node[s], self.layout.layers[s]) for s in range(self.layout.first[i], self.layout.first[i + 1])]
            for i in range(self.layout.num_replicas)
        ]

    def kv_tokens(self):
        """Tokens of every replica's KV pool; empty unless this is an engine."""
        if self.kv == NULL:
            return []
        return [self.kv[self.layout.class_of[i]] for i in range(self.layout.num_replicas)]

    def node_bytes(self):
        """Per node in use the largest active, idle and sync bytes of a device, and the host bytes."""
        cdef int s, cell
        found = {}
        for s in range(self.layout.num_slots):
            cell = self.layout.devices.cell[self.layout.node[s]]
            found[self.layout.node[s]] = (self.active[cell], self.idle[cell], self.sync[cell], self.host[cell])
        return found

    @property
    def degree(self):
        """Tensor degree."""
        return self.layout.degree


cdef Option new_option(Tables t, Layout layout, int task, int micro_batch):
    cdef Option option = Option.__new__(Option)
    cdef int slot, cells = layout.devices.num_cells
    option.used = <int*>calloc(t.num_nodes, sizeof(int))
    for slot in range(layout.num_slots):
        option.used[layout.node[slot]] += layout.degree
    option.layout = layout
    option.task = task
    option.micro_batch = micro_batch
    option.prompts = <int*>malloc(layout.num_replicas * sizeof(int))
    option.active = <double*>calloc(4 * cells, sizeof(double))
    option.idle = option.active + cells
    option.sync = option.idle + cells
    option.host = option.sync + cells
    return option


cdef void add_rank(Option option, int cell, const Rank* rank) noexcept nogil:
    option.active[cell] = fmax(option.active[cell], rank.active)
    option.idle[cell] = fmax(option.idle[cell], rank.idle)
    option.sync[cell] = fmax(option.sync[cell], rank.sync)


cdef void spread_to_replicas(Layout layout, double* values) noexcept nogil:
    """Copy what the slots of each class's representative hold to its other replicas."""
    cdef int i, j, source
    for i in range(layout.num_replicas):
        source = layout.first[layout.representative[layout.class_of[i]]]
        for j in range(layout.first[i + 1] - layout.first[i]):
            values[layout.first[i] + j] = values[source + j]


cdef bint beaten(const Candidate* candidates, int number, const Candidate* new) noexcept nogil:
    """Whether one of the latest candidates is faster by bound, and as lean."""
    cdef int i
    for i in range(number - 1, max(-1, number - 1 - NUM_COMPARED), -1):
        if (
            candidates[i].bound <= new.bound and candidates[i].active <= new.active and candidates[i].idle <= new.idle
            and candidates[i].host <= new.host
        ):
            return True
    return False


cdef class Finder:
    """Finds and keeps the options of every task on every set of devices it is asked for.

    Parameters
    ----------
    tables
        The lowered job.
    allowed
        int32 ``[3, 8]``: which features plans may use, by task kind (train, score, generate): pipelines, tensor
        parallelism, ZeRO-1, FSDP, recomputation, optimizer states on the host, weights on the host, dropped weights.
    max_options
        Length at which a front is cut.
    engine_limit
        Sequences that an engine runs at once at most.
    """

    def __init__(self, Tables tables, int[:, ::1] allowed, int max_options, int engine_limit):
        self.t = tables
        self.allowed = allowed
        self.max_options = max_options
        self.engine_limit = engine_limit
        self.known = {}
        self.shared = {}
        self.kept = {}
        self.cuts = {}
        self.cutoff = -1.0
        self.exact_fill = sum(tables.node_devices) <= EXACT_FILL_DEVICES
        self.fill = Shares(tables)
        self.refiller = Refiller(tables)
        self.refills = self.exact_fill

    cdef double slow_limit(self, double fastest) noexcept nogil:
        """Seconds above which an option is cut, given the fastest so far; the exact solver's limit is absolute."""
        return SLOW_RATIO * fastest if self.cutoff < 0 else self.cutoff

    cdef Devices devices(self, bytes key):
        return Devices(self.t, np.frombuffer(key, dtype=np.int32))

    cdef cut(self, str reason, long long number=1):
        if number:
            self.cuts[reason] = self.cuts.get(reason, 0) + number

    cpdef tuple options(self, int task, Devices devices):
        """Undominated options with the devices to themselves, fastest first."""
        key = (task, devices.key)
        found = self.known.get(key)
        if found is None:
            if self.t.task_kind[task] == TRAIN:
                found = self.train_options(task, devices)
            elif self.t.task_kind[task] == SCORE:
                found = self.score_options(task, self.layouts_of(task, devices), self.score_residencies(devices))
            else:
                found = self.engine_options(task, devices)
            self.known[key] = found
        return found

    cdef bint knows(self, int task, bytes counts):
        """Whether a task's options on these devices have been worked out."""
        return (task, counts) in self.known

    cdef list layouts_of(self, int task, Devices devices):
        cdef int kind = self.t.task_kind[task]
        if task in self.kept:
            degree, replicas = self.kept[task]
            layout = given_layout(self.t, task, devices, degree, replicas)
            return [] if layout is None else [layout]
        found = layouts(self.t, task, devices, self.allowed[kind, ALLOW_PIPELINE], self.allowed[kind, ALLOW_TENSOR])
        return self.refiller.with_refills(task, found) if self.refills else found

    # --- shares ------------------------------------------------------------------------------------------------

    cdef double class_seconds(self, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, int prompts, const double* kv) noexcept:
        cdef Replica replica = layout.replica(layout.representative[c])
        cdef TrainTime time
        cdef int kind = self.t.task_kind[task]
        if kind == TRAIN:
            time = train_replica(
                self.t, task, layout.degree_index, layout.degree, shape, micro_batch, recompute, &replica, prompts, False
            )
            return time.old_log_probs + self.t.num_updates * time.pipeline
        if kind == SCORE:
            return score_replica(self.t, task, layout.degree_index, layout.degree, shape, micro_batch, &replica, prompts)
        return generate_replica(self.t, task, layout.degree_index, layout.degree, micro_batch, &replica, prompts, kv[c])

    cdef double shares(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, int* base, int* extra) except? -1.0:
        return self.fill.share(task, layout, shape, micro_batch, recompute, kv, self.exact_fill or self.cutoff >= 0, base, extra)

    cdef double seconds_of(self, Option option, int c, int prompts) noexcept:
        """Seconds of a replica of class ``c`` with a share."""
        if prompts == 0:
            return 0.0
        return self.class_seconds(
            option.task, option.layout, c, option.shape, option.micro_batch, option.recompute, prompts, option.kv
        )

    cdef int most_prompts(self, Option option, int c, double threshold) noexcept:
        """Most prompts that a replica of class ``c`` handles in ``threshold`` seconds."""
        cdef int low = 0, high = self.t.num_prompts, middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds_of(option, c, middle) <= threshold:
                low = middle
            else:
                high = middle - 1
        return low

    def exact_shares(self, Option option):
        """Shares that minimise the slowest replica's seconds, as a list; those of the option where these are no better.

        The smallest threshold at which all prompts find room, by bisection; the surplus is taken from the replicas that
        would finish last.
        """
        cdef Layout layout = option.layout
        cdef int c, last, i, turn, classes = layout.num_classes, total = self.t.num_prompts
        cdef long long room
        cdef double low = 0.0, high = 0.0, middle, seconds, slowest
        cdef list most, given, old = option.shares()
        cdef dict held = {}
        if classes == 1:
            return old
        for i in range(layout.num_replicas):
            held[(layout.class_of[i], old[i])] = None
        for c, i in held:
            high = fmax(high, self.seconds_of(option, c, i))
        slowest = high
        for turn in range(40):
            middle = (low + high) / 2
            room = 0
            for c in range(classes):
                room += <long long>layout.class_size[c] * self.most_prompts(option, c, middle)
            if room >= total:
                high = middle
            else:
                low = middle
            if high - low <= 1e-9 * high:
                break
        most = [self.most_prompts(option, c, high) for c in range(classes)]
        room = sum([layout.class_size[c] * <int>most[c] for c in range(classes)])
        if room < total or high >= slowest:
            return old
        given = [most[layout.class_of[i]] for i in range(layout.num_replicas)]
        fewer = [0] * classes
        while room > total:
            # one prompt less for every replica of the class that would finish last, or for as many as there is surplus
            last = max(range(classes), key=lambda c: (self.seconds_of(option, c, most[c] - fewer[c]), c))
            fewer[last] += 1
            for i in range(layout.num_replicas - 1, -1, -1):
                if layout.class_of[i] == last and room > total:
                    given[i] -= 1
                    room -= 1
        return given

    cdef void spread(self, Option option, const int* base, const int* extra) noexcept:
        """Write the shares of all replicas, the remainder to the first of each class."""
        cdef Layout layout = option.layout
        cdef int i, c
        cdef int* given = <int*>calloc(layout.num_classes, sizeof(int))
        for i in range(layout.num_replicas):
            c = layout.class_of[i]
            option.prompts[i] = base[c] + (given[c] < extra[c])
            given[c] += 1
        free(given)

    cdef void add_host(self, Option option, const double* host) noexcept:
        """Host bytes of the fullest node of every cell, from those of one rank in every slot."""
        cdef Layout layout = option.layout
        cdef double* total = <double*>calloc(self.t.num_nodes, sizeof(double))
        cdef int s, node
        for s in range(layout.num_slots):
            total[layout.node[s]] += layout.degree * host[s]
        for s in range(layout.num_slots):
            node = layout.node[s]
            option.host[layout.devices.cell[node]] = fmax(option.host[layout.devices.cell[node]], total[node])
        free(total)

    # --- training ----------------------------------------------------------------------------------------------

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
            if candidates[i].bound > SLOW_RATIO * fastest:
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
        front.sort(key=_seconds_of)
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
        if self.cutoff < 0 and self.pipelines_bound(task, layout, 0, False, &m_least) > 2 * SLOW_RATIO * fastest:
            self.cut("SLOW_LAYOUT")
            return fastest
        stage_rings(t, layout, rings)
        for sharding in range(3):
            for j in range(2):
                optimizer[sharding][j] = -1.0
        for mb in range(5):
            if mb > 0 and TRAIN_MICRO_BATCHES[mb] * replicas * t.num_mini_batches > sequences:
                break
            fits = 0
            for recompute in range(choices):
                fraction = 0.0
                first = 0
                for j in range(stages):
                    activations[j] = train_activations(
                        t, task, layout.degree_index, first, layers[j], stages - j, t.num_prompts, TRAIN_MICRO_BATCHES[mb], recompute
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
                        if new.bound <= self.slow_limit(fastest) and (self.cutoff >= 0 or not beaten(candidates[0], number[0], new)):
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
                t, task, layout.degree_index, layout.degree, mb, TRAIN_MICRO_BATCHES[mb], recompute, &replica, average, True
            )
            rate += layout.class_size[c] / time.fluid
        m_least[0] = time.num_micro_batches
        bound = t.num_prompts / rate
        if layout.num_classes == 1:
            bound = fmax(bound, time.old_log_probs + t.num_updates * time.pipeline)
        return bound

    cdef Option train_variant(self, int task, Layout layout, const Candidate* candidate):
        """The option that a candidate stands for, neither costed nor with its memory."""
        cdef Option option = new_option(self.t, layout, task, TRAIN_MICRO_BATCHES[candidate.micro_batch])
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

    # --- scoring -----------------------------------------------------------------------------------------------

    cdef tuple score_residencies(self, Devices devices):
        if self.allowed[SCORE, ALLOW_WEIGHTS_HOST] and not self.t.type_is_cpu[self.t.node_type[devices.cell_node[0]]]:
            return (RESIDENT, ON_HOST)
        return (RESIDENT,)

    cdef tuple shared_options(self, int task, Option trainer):
        """Scoring with the weights of the role's train task: the same stages on the same devices."""
        if trainer.sharding == FSDP or trainer.weights != RESIDENT:
            return ()
        if task in self.kept and self.kept[task] != self.kept.get(trainer.task):
            return ()
        key = (task, id(trainer.layout))
        if key not in self.shared:
            self.shared[key] = (self.score_options(task, [trainer.layout], (SHARED,)), trainer.layout)
        return self.shared[key][0]

    cdef tuple score_options(self, int task, list found, tuple residencies):
        cdef Layout layout
        cdef list bounds = []
        cdef int s, l, c
        cdef double rate
        cdef Replica replica
        for l in range(len(found)):
            layout = found[l]
            for s in range(3):
                rate = 0.0
                for c in range(layout.num_classes):
                    replica = layout.replica(layout.representative[c])
                    rate += layout.class_size[c] / score_fluid(
                        self.t, task, layout.degree_index, layout.degree, SCORE_SHAPES[s], TRAIN_MICRO_BATCHES[SCORE_SHAPES[s]], &replica
                    )
                bounds.append((self.t.num_prompts / rate, l, s))
        bounds.sort()
        self.num_candidates += len(bounds) * len(residencies)
        cdef list front = [], marks = []
        cdef double fastest = INFINITY, active, idle, host
        cdef Option option
        cdef int weights
        for bound, l, s in bounds:
            if bound > self.slow_limit(fastest) or len(front) >= 2 * self.max_options:
                self.cut("SLOW_LAYOUT" if bound > self.slow_limit(fastest) else "FRONT_OVERFLOW")
                continue
            for weights in residencies:
                option = self.score_option(task, found[l], SCORE_SHAPES[s], weights, marks, bound, &active, &idle, &host)
                if option is None:
                    continue
                if any([mark[0] <= option.seconds and mark[1] <= active and mark[2] <= idle and mark[3] <= host for mark in marks]):
                    continue
                marks.append((option.seconds, active, idle, host))
                front.append(option)
                fastest = fmin(fastest, option.seconds)
        front.sort(key=_seconds_of)
        return tuple(front[: self.max_options])

    cdef Option score_option(
        self, int task, Layout layout, int shape, int weights, list marks, double bound, double* active, double* idle, double* host):
        """Memory first; costed only if it fits and nothing found so far beats it."""
        cdef Tables t = self.t
        cdef int micro_batch = TRAIN_MICRO_BATCHES[shape]
        cdef Option option = new_option(t, layout, task, micro_batch)
        cdef double* hosts = <double*>malloc(layout.num_slots * sizeof(double))
        cdef double moved = 0.0
        cdef int c, slot, first, node, cell
        cdef bint spans = layout.num_slots * layout.degree > 1
        cdef Rank rank
        option.weights = weights
        option.shape = shape
        active[0] = idle[0] = host[0] = 0.0
        for c in range(layout.num_classes):
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                rank = score_rank(
                    t, task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot], micro_batch, weights, spans
                )
                first += layout.layers[slot]
                add_rank(option, layout.devices.cell[node], &rank)
                hosts[slot] = rank.host
                active[0] = fmax(active[0], rank.active / t.node_limit[node])
                idle[0] = fmax(idle[0], rank.idle / t.node_limit[node])
                moved = fmax(moved, rank.moved / t.node_host_link[node])
        if active[0] > 1.0:
            self.cut("DEVICE_MEMORY")
            free(hosts)
            return None
        spread_to_replicas(layout, hosts)
        self.add_host(option, hosts)
        free(hosts)
        for cell in range(layout.devices.num_cells):
            host[0] = fmax(host[0], option.host[cell])
        for mark in marks:
            if mark[0] <= bound + moved and mark[1] <= active[0] and mark[2] <= idle[0] and mark[3] <= host[0]:
                return None
        self.num_costed += 1
        cdef int* base = <int*>malloc(2 * layout.num_classes * sizeof(int))
        option.seconds = self.shares(task, layout, shape, micro_batch, False, NULL, base, base + layout.num_classes) + moved
        self.spread(option, base, base + layout.num_classes)
        free(base)
        return option

    # --- engines -----------------------------------------------------------------------------------------------

    cdef tuple engine_options(self, int task, Devices devices):
        """Engines with all memory to themselves, fastest first: lower bounds of their time with neighbours."""
        cdef double* nothing = <double*>calloc(devices.num_cells, sizeof(double))
        cdef Option option
        cdef list found = []
        cdef double fastest = INFINITY
        for layout in self.layouts_of(task, devices):
            self.num_candidates += 1
            if fastest < INFINITY and self.engine_guess(task, layout) > 2 * SLOW_RATIO * fastest:
                self.cut("SLOW_LAYOUT")
                continue
            option = self.engine(task, layout, RESIDENT, nothing, INFINITY, None)
            if option is not None:
                self.smallest_need(option)
                found.append(option)
                fastest = fmin(fastest, option.seconds)
        free(nothing)
        found.sort(key=_seconds_of)
        self.cut("FRONT_OVERFLOW", max(0, len(found) - self.max_options))
        return tuple(found[: self.max_options])

    cdef double engine_guess(self, int task, Layout layout) noexcept:
        """Seconds if all replicas were as fast as those of the largest class, with full KV pools."""
        cdef int c, largest = 0
        cdef double useful = fmax(self.engine_limit * self.t.task_in_flight[task], self.t.max_sequence)
        cdef Replica replica
        for c in range(layout.num_classes):
            if layout.class_size[c] > layout.class_size[largest]:
                largest = c
        replica = layout.replica(layout.representative[largest])
        return generate_replica(
            self.t, task, layout.degree_index, layout.degree, self.engine_limit, &replica,
            max(1, self.t.num_prompts // layout.num_replicas), useful,
        )

    cdef void smallest_need(self, Option option):
        """Work out ``need``: bytes beside the other tasks' without which an engine cannot run."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef int c, slot, first, node, cell
        cdef Rank rank
        cdef double needed
        option.need = <double*>calloc(layout.devices.num_cells, sizeof(double))
        for c in range(layout.num_classes):
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                cell = layout.devices.cell[node]
                rank = generate_rank(
                    t, option.task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot], t.num_prompts,
                    RESIDENT, layout.num_slots * layout.degree > 1,
                )
                needed = kv_bytes(t, t.task_model[option.task], layout.degree_index, first, layout.layers[slot]) * t.max_sequence
                option.need[cell] = fmax(option.need[cell], rank.active + needed)
                first += layout.layers[slot]

    cdef Option engine(self, int task, Layout layout, int weights, const double* taken, double cutoff, Option alone):
        """An engine with its KV pools in the room beside ``taken`` bytes per cell; None if there is too little.

        ``alone`` is the same engine with all memory to itself, or None: where its pools are as large, so is its time.
        """
        cdef Tables t = self.t
        cdef int c, slot, first, node, model = t.task_model[task]
        cdef bint spans = layout.num_slots * layout.degree > 1, fits = True, full = True
        cdef double useful = fmax(self.engine_limit * t.task_in_flight[task], t.max_sequence)
        cdef double held, room
        cdef Rank rank
        cdef double* kv = <double*>malloc((layout.num_classes + layout.num_slots) * sizeof(double))
        cdef double* hosts = kv + layout.num_classes
        cdef Option option
        for c in range(layout.num_classes):
            kv[c] = useful
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                rank = generate_rank(
                    t, task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot], t.num_prompts, weights, spans
                )
                room = t.node_limit[node] - taken[layout.devices.cell[node]] - rank.active
                held = kv_bytes(t, model, layout.degree_index, first, layout.layers[slot])
                if room < 0:
                    fits = False
                elif held > 0:
                    kv[c] = fmin(kv[c], floor(room / held))
                first += layout.layers[slot]
                hosts[slot] = rank.host
            fits = fits and kv[c] >= t.max_sequence
            full = full and kv[c] == useful
            if not fits:
                break
        if not fits or (full and alone is not None and alone.full and alone.seconds >= cutoff):
            if not fits:
                self.cut("KV_ROOM")
            free(kv)
            return None
        option = new_option(t, layout, task, self.engine_limit)
        option.weights = weights
        option.full = full
        if full and alone is not None and alone.full:
            option.seconds = alone.seconds
            memcpy(option.prompts, alone.prompts, layout.num_replicas * sizeof(int))
        else:
            self.engine_shares(option, alone, kv)
        if option.seconds >= cutoff:
            free(kv)
            return None
        for c in range(layout.num_classes):
            first = 0
            for slot in range(layout.first[layout.representative[c]], layout.first[layout.representative[c] + 1]):
                node = layout.node[slot]
                rank = generate_rank(
                    t, task, t.node_type[node], layout.degree_index, layout.degree, first, layout.layers[slot], t.num_prompts, weights, spans
                )
                first += layout.layers[slot]
                add_rank(option, layout.devices.cell[node], &rank)
        spread_to_replicas(layout, hosts)
        self.add_host(option, hosts)
        option.kv = kv
        return option

    cdef void engine_shares(self, Option option, Option alone, const double* kv):
        """Shares and seconds of an engine with these KV pools; those with room for as many sequences are worked out once."""
        cdef Tables t = self.t
        cdef Layout layout = option.layout
        cdef int c
        cdef int* base
        cdef bytes shares
        key = tuple([<int>fmin(self.engine_limit, floor(kv[c] / t.task_in_flight[option.task])) for c in range(layout.num_classes)])
        if alone is not None:
            if alone.beside is None:
                alone.beside = {}
            found = alone.beside.get(key)
            if found is not None:
                option.seconds, shares = found
                memcpy(option.prompts, <char*>shares, layout.num_replicas * sizeof(int))
                return
        self.num_costed += 1
        base = <int*>malloc(2 * layout.num_classes * sizeof(int))
        option.seconds = self.shares(option.task, layout, 0, self.engine_limit, False, kv, base, base + layout.num_classes)
        self.spread(option, base, base + layout.num_classes)
        free(base)
        if alone is not None:
            alone.beside[key] = (option.seconds, (<char*>option.prompts)[: layout.num_replicas * sizeof(int)])


def _seconds_of(Option option):
    return option.seconds
