# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What the replicas of a training task share per update: gradient rings and the optimizer step."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc, realloc

from hetrl_kernels.layouts cimport Stepper
from hetrl_kernels.memory cimport FSDP, NO_SHARDING, ZERO1
from hetrl_kernels.tables cimport (
    ALL_GATHER, ALL_REDUCE, PHASE_OPTIMIZER, PHASE_REDUCE, REDUCE_SCATTER, all_gather, all_reduce, fmax, fmin,
)
from hetrl_kernels.undo cimport lowest_bit


cdef void hop(Tables t, int source, int target, int flows, double* latency, double* bandwidth) noexcept nogil:
    latency[0] = fmax(latency[0], t.link_latency[source, target])
    bandwidth[0] = fmin(bandwidth[0], t.link_bandwidth[source, target] / (1 if source == target else flows))


cdef void stage_rings(Tables t, Layout layout):
    """Work out the rings and steppers of a training layout, once.

    A ring visits its stage's nodes in order; rings that leave a node share its network card.
    """
    if layout.rings != NULL:
        return
    layout.rings = <StageRing*>malloc(layout.max_stages * sizeof(StageRing))
    layout.steppers = <Stepper*>malloc(layout.num_slots * sizeof(Stepper))
    cdef int n = t.num_nodes, words = (n + 63) // 64, stages = layout.max_stages
    cdef int j, slot, word, node
    cdef unsigned long long left, bit
    cdef unsigned long long* present = <unsigned long long*>calloc(stages * words + n, sizeof(unsigned long long))  # nodes of a stage
    cdef int* leaving = <int*>(present + stages * words)  # [N]
    cdef int* ranks = leaving + n  # [N]
    cdef int* members = <int*>malloc(stages * n * sizeof(int))  # of a stage on a node, where it is present
    cdef unsigned long long* here
    cdef int* on_node
    cdef bint alone
    for j in range(stages):
        here, on_node = present + j * words, members + j * n
        slot = j
        while slot < layout.num_slots:
            node = layout.node[slot]
            bit = <unsigned long long>1 << (node & 63)
            if here[node >> 6] & bit:
                on_node[node] += 1
            else:
                here[node >> 6] |= bit
                on_node[node] = 1
            slot += stages
    for j in range(stages):
        alone = one_bit(present + j * words, words)
        for word in range(words):
            left = present[j * words + word]
            while left:
                node = 64 * word + lowest_bit(left)
                left &= left - 1
                ranks[node] += members[j * n + node] * layout.degree
                if not alone:
                    leaving[node] += layout.degree
    for j in range(stages):
        ring_of_stage(t, present + j * words, words, members + j * n, leaving, layout.degree, &layout.rings[j])
        add_steppers(t, layout, j, present + j * words, words, ranks)
    layout.steppers = <Stepper*>realloc(layout.steppers, layout.num_steppers * sizeof(Stepper))  # layouts may live long
    free(present)
    free(members)


cdef inline bint one_bit(const unsigned long long* bits, int words) noexcept nogil:
    cdef int word, number = 0
    for word in range(words):
        if bits[word]:
            if number or bits[word] & (bits[word] - 1):
                return False
            number = 1
    return number == 1


cdef void ring_of_stage(
    Tables t, const unsigned long long* present, int words, const int* members, const int* leaving, int degree,
    StageRing* ring) noexcept nogil:
    cdef int word, node, previous = -1, first = -1, flows = 1, most = 0, least = 1 << 30, num_nodes = 0
    cdef unsigned long long left
    ring.slowest_host_link = INFINITY
    ring.latency = ring.outer_latency = 0.0
    ring.bandwidth = ring.outer_bandwidth = ring.inner_bandwidth = INFINITY
    ring.inner_node = -1
    for word in range(words):
        left = present[word]
        while left:
            node = 64 * word + lowest_bit(left)
            left &= left - 1
            num_nodes += 1
            flows = max(flows, leaving[node])
            most, least = max(most, members[node]), min(least, members[node])
            if t.link_bandwidth[node, node] < ring.inner_bandwidth:
                ring.inner_bandwidth, ring.inner_node = t.link_bandwidth[node, node], node
            ring.slowest_host_link = fmin(ring.slowest_host_link, t.node_host_link[node])
    for word in range(words):
        left = present[word]
        while left:
            node = 64 * word + lowest_bit(left)
            left &= left - 1
            if first < 0:
                first = node
                ring.kind = t.node_type[node]
            else:
                hop(t, previous, node, flows, &ring.outer_latency, &ring.outer_bandwidth)
            if members[node] > 1:
                hop(t, node, node, flows, &ring.latency, &ring.bandwidth)
            previous = node
    hop(t, previous, first, flows, &ring.outer_latency, &ring.outer_bandwidth)
    ring.latency = fmax(ring.latency, ring.outer_latency)
    ring.bandwidth = fmin(ring.bandwidth, ring.outer_bandwidth)
    ring.num_nodes = num_nodes
    ring.per_node = most
    ring.two_level = num_nodes > 1 and most == least and most > 1
    ring.most_ranks = most * degree


cdef void add_steppers(Tables t, Layout layout, int stage, const unsigned long long* present, int words, const int* ranks) noexcept nogil:
    """One of the stage's nodes of every kind with equally many ranks of the task."""
    cdef int word, node, i, start = layout.num_steppers
    cdef unsigned long long left
    for word in range(words):
        left = present[word]
        while left:
            node = 64 * word + lowest_bit(left)
            left &= left - 1
            for i in range(start, layout.num_steppers):
                if layout.steppers[i].num_ranks == ranks[node] and t.node_kind[layout.steppers[i].node] == t.node_kind[node]:
                    break
            else:
                layout.steppers[layout.num_steppers].stage = stage
                layout.steppers[layout.num_steppers].node = node
                layout.steppers[layout.num_steppers].num_ranks = ranks[node]
                layout.num_steppers += 1


cdef inline double collective(Tables t, const StageRing* ring, int operation, int n, double v) noexcept nogil:
    """Flat ring of ``n`` replicas: inside one node what the node's link takes, else the ring's slowest hop decides."""
    if ring.num_nodes == 1:
        return t.inside(ring.inner_node, operation, n, v)
    if operation == ALL_REDUCE:
        return all_reduce(v, n, ring.latency, ring.bandwidth)
    return all_gather(v, n, ring.latency, ring.bandwidth)


cdef double update_seconds(
    Tables t, const StageRing* rings, int num_stages, int num_replicas, int sharding, const State* states,
    int num_micro_batches) noexcept nogil:
    """Exposed seconds of one update's data-parallel communication, the slowest stage deciding."""
    cdef double worst = 0.0, seconds, gradients, weights
    cdef int j
    if num_replicas == 1:
        return 0.0
    for j in range(num_stages):
        gradients, weights = states[j].gradients, states[j].weights
        if sharding == FSDP:
            gradients *= num_replicas
            weights *= num_replicas
        if sharding == NO_SHARDING:
            seconds = collective(t, &rings[j], ALL_REDUCE, num_replicas, gradients)
            if rings[j].two_level:
                seconds = fmin(
                    seconds,
                    t.inside(rings[j].inner_node, ALL_REDUCE, rings[j].per_node, gradients)
                    + all_reduce(gradients, rings[j].num_nodes, rings[j].outer_latency, rings[j].outer_bandwidth),
                )
        else:
            seconds = collective(t, &rings[j], REDUCE_SCATTER, num_replicas, gradients)
        seconds *= 1.0 - t.gradient_overlap
        if sharding == ZERO1:
            seconds += collective(t, &rings[j], ALL_GATHER, num_replicas, weights)
        elif sharding == FSDP:
            seconds += 2 * num_micro_batches * collective(t, &rings[j], ALL_GATHER, num_replicas, weights) * (1.0 - t.gather_overlap)
        worst = fmax(
            worst, t.calibration[rings[j].kind, PHASE_REDUCE, 0] * seconds + t.calibration[rings[j].kind, PHASE_REDUCE, 1]
        )
    return worst


cdef double optimizer_seconds(Tables t, Layout layout, const State* states, bint on_host):
    """One optimizer step, the slowest rank deciding; on the host a node's ranks share its memory bandwidth."""
    cdef int i, node, kind, j
    cdef double worst = 0.0, total, seconds
    for i in range(layout.num_steppers):
        j, node = layout.steppers[i].stage, layout.steppers[i].node
        kind = t.node_type[node]
        total = states[j].weights + states[j].gradients + states[j].optimizer
        if on_host:
            seconds = fmax(
                total * layout.steppers[i].num_ranks / t.node_host_memory[node],
                (states[j].gradients + states[j].weights) / t.node_host_link[node],
            )
        else:
            seconds = total / t.type_bandwidth[kind]
        worst = fmax(worst, t.calibration[kind, PHASE_OPTIMIZER, 0] * seconds + t.calibration[kind, PHASE_OPTIMIZER, 1])
    return worst
