# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What the replicas of a training task share per update: gradient rings and the optimizer step."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc

from hetrl_kernels.tables cimport fmax, fmin
from hetrl_kernels.memory cimport FSDP, NO_SHARDING, ZERO1
from hetrl_kernels.tables cimport ALL_GATHER, ALL_REDUCE, PHASE_OPTIMIZER, PHASE_REDUCE, REDUCE_SCATTER, all_gather, all_reduce


cdef void hop(Tables t, int source, int target, int flows, double* latency, double* bandwidth) noexcept nogil:
    latency[0] = fmax(latency[0], t.link_latency[source, target])
    bandwidth[0] = fmin(bandwidth[0], t.link_bandwidth[source, target] / (1 if source == target else flows))


cdef void stage_rings(Tables t, Layout layout, StageRing* rings):
    """Rings of all stages of a training layout."""
    rings_of_nodes(t, layout.max_stages, layout.num_slots, layout.degree, layout.node, rings)


cdef void rings_of_nodes(Tables t, int stages, int num_slots, int degree, const int* slots, StageRing* rings) noexcept nogil:
    """Rings of all stages in node order; rings that leave a node share its network card.

    ``slots`` are the nodes of all slots, replica by replica.
    """
    cdef int n = t.num_nodes
    cdef int j, slot, node, previous, first, flows, members, most, least
    cdef int* count = <int*>calloc((stages + 1) * n, sizeof(int))
    cdef int* leaving = count + stages * n
    cdef int* nodes = <int*>calloc(stages, sizeof(int))
    for slot in range(num_slots):
        j = slot % stages
        if count[j * n + slots[slot]] == 0:
            nodes[j] += 1
        count[j * n + slots[slot]] += 1
    for j in range(stages):
        if nodes[j] > 1:
            for node in range(n):
                if count[j * n + node]:
                    leaving[node] += degree
    for j in range(stages):
        flows = most = 0
        least = num_slots
        first = previous = -1
        rings[j].slowest_host_link = INFINITY
        rings[j].latency = rings[j].outer_latency = 0.0
        rings[j].bandwidth = rings[j].outer_bandwidth = rings[j].inner_bandwidth = INFINITY
        rings[j].inner_node = -1
        for node in range(n):
            members = count[j * n + node]
            if members == 0:
                continue
            flows = max(flows, leaving[node] if leaving[node] > 0 else 1)
            most, least = max(most, members), min(least, members)
            if t.link_bandwidth[node, node] < rings[j].inner_bandwidth:
                rings[j].inner_bandwidth, rings[j].inner_node = t.link_bandwidth[node, node], node
            rings[j].slowest_host_link = fmin(rings[j].slowest_host_link, t.node_host_link[node])
        for node in range(n):
            if count[j * n + node] == 0:
                continue
            if first < 0:
                first = node
                rings[j].kind = t.node_type[node]
            else:
                hop(t, previous, node, flows, &rings[j].outer_latency, &rings[j].outer_bandwidth)
            if count[j * n + node] > 1:
                hop(t, node, node, flows, &rings[j].latency, &rings[j].bandwidth)
            previous = node
        hop(t, previous, first, flows, &rings[j].outer_latency, &rings[j].outer_bandwidth)
        rings[j].latency = fmax(rings[j].latency, rings[j].outer_latency)
        rings[j].bandwidth = fmin(rings[j].bandwidth, rings[j].outer_bandwidth)
        rings[j].num_nodes = nodes[j]
        rings[j].per_node = most
        rings[j].two_level = nodes[j] > 1 and most == least and most > 1
        rings[j].most_ranks = most * degree
    free(count)
    free(nodes)


cdef inline double collective(Tables t, const StageRing* ring, int operation, int n, double v) noexcept nogil:
    """Flat ring of ``n`` replicas: inside one node what the node's link takes, else the ring's slowest hop decides."""
    if ring.num_nodes == 1:
        return t.inside(ring.inner_node, operation, n, v)
    if operation == ALL_REDUCE:
        return all_reduce(v, n, ring.latency, ring.bandwidth)
    return all_gather(v, n, ring.latency, ring.bandwidth)


cdef double update_seconds(
    Tables t, const StageRing* rings, int num_stages, int num_replicas, int sharding, const State* states, int num_micro_batches) noexcept nogil:
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
    cdef int* ranks = <int*>calloc(t.num_nodes, sizeof(int))
    cdef int slot, node, kind, j
    cdef double worst = 0.0, total, seconds
    for slot in range(layout.num_slots):
        ranks[layout.node[slot]] += layout.degree
    for slot in range(layout.num_slots):
        j = slot % layout.max_stages
        node = layout.node[slot]
        kind = t.node_type[node]
        total = states[j].weights + states[j].gradients + states[j].optimizer
        if on_host:
            seconds = fmax(
                total * ranks[node] / t.node_host_memory[node], (states[j].gradients + states[j].weights) / t.node_host_link[node]
            )
        else:
            seconds = total / t.type_bandwidth[kind]
        worst = fmax(worst, t.calibration[kind, PHASE_OPTIMIZER, 0] * seconds + t.calibration[kind, PHASE_OPTIMIZER, 1])
    free(ranks)
    return worst
