# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Gradient rings of one training task, kept up to date while tensor groups change nodes.

The ring of a stage visits its nodes in order. It is described by counts: hops by latency and by bandwidth, nodes by
members and by how many rings leave them. A tensor group that changes its node changes a handful of counts of its stage,
and of the stages that share a network card with it.
"""

from hetrl_kernels.memory cimport FSDP, train_state
from hetrl_kernels.rings cimport StageRing, update_seconds
from hetrl_kernels.tables cimport PHASE_OPTIMIZER, fmax, fmin
from hetrl_kernels.undo cimport highest, lowest, next_node, previous_node, put, put_number, raise_leaf, tally


cdef void make_rings(
    Rings* rings, Arena arena, Tables t, Links links, int model, list layers, int degree, int num_replicas, int sharding,
    int most_members, bint on_host) except *:
    """Rings without members; ``arena`` owns their memory."""
    cdef int n = t.num_nodes, stages = len(layers), j, first = 0
    rings.num_stages = stages
    rings.num_replicas = num_replicas
    rings.degree = degree
    rings.sharding = sharding
    rings.on_host = on_host
    rings.states = <State*>arena.room(stages * sizeof(State))
    for j in range(stages):
        rings.states[j] = train_state(t, model, degree, first, layers[j], num_replicas, sharding)
        first += layers[j]
    rings.members = <long long*>arena.room(n * stages * sizeof(long long))
    rings.present = <long long*>arena.room(stages * links.words * sizeof(long long))
    rings.num_nodes = <long long*>arena.room(stages * sizeof(long long))
    rings.leaving = <long long*>arena.room(n * sizeof(long long))
    rings.outer_latency = tallies(arena, stages, links.num_kinds)
    rings.outer_bandwidth = tallies(arena, stages, links.num_kinds)
    rings.inner_latency = tallies(arena, stages, links.num_kinds)
    rings.inner_bandwidth = tallies(arena, stages, links.num_kinds)
    rings.own = tallies(arena, stages, n)
    rings.on_node = tallies(arena, stages, most_members + 1)
    rings.flows = tallies(arena, stages, stages + 1)
    rings.seconds = <double*>arena.room(stages * sizeof(double))
    rings.tree = 1
    while rings.tree < n:
        rings.tree *= 2
    rings.optimizer = <double*>arena.room(2 * rings.tree * sizeof(double))
    rings.stale_nodes = <int*>arena.room(n * sizeof(int))


cdef Tally* tallies(Arena arena, int stages, int ranks) except NULL:
    """One empty tally per stage."""
    cdef Tally* found = <Tally*>arena.room(stages * sizeof(Tally))
    cdef int j, words = (ranks + 63) // 64
    for j in range(stages):
        found[j].count = <long long*>arena.room(ranks * sizeof(long long))
        found[j].bits = <long long*>arena.room(words * sizeof(long long))
        found[j].words = words
    return found


cdef void hop(Tables t, Links links, Rings* rings, Log* log, int stage, int source, int target, int number) noexcept nogil:
    cdef int kind = t.link_kind[source, target]
    tally(log, rings.outer_latency + stage, links.latency_rank[kind], number)
    tally(log, rings.outer_bandwidth + stage, links.bandwidth_rank[kind], number)


cdef void leave(Rings* rings, Log* log, int node, int number) noexcept nogil:
    """One more ring leaves a node, or one less: all rings there share its card with more or fewer flows."""
    cdef long long before = rings.leaving[node]
    cdef int j
    put(log, rings.leaving + node, before + number)
    for j in range(rings.num_stages):
        if rings.members[node * rings.num_stages + j] > 0:
            tally(log, rings.flows + j, <int>before, -1)
            tally(log, rings.flows + j, <int>(before + number), 1)
            rings.stale |= <unsigned long long>1 << j


cdef void change_members(Tables t, Links links, Rings* rings, Log* log, int stage, int node, int number) noexcept nogil:
    """``number`` more tensor groups of a stage on a node; fewer if negative."""
    cdef long long* members = rings.members + node * rings.num_stages + stage
    cdef long long* present = rings.present + stage * links.words
    cdef long long before = members[0], after = before + number, nodes = rings.num_nodes[stage]
    cdef int kind, ahead = node, behind = node
    if rings.on_host and rings.num_stale_nodes < t.num_nodes:
        rings.stale_nodes[rings.num_stale_nodes] = node
        rings.num_stale_nodes += 1
    elif rings.on_host:
        rings.all_nodes_stale = True
    if rings.num_replicas == 1:
        put(log, members, after)
        return
    rings.stale |= <unsigned long long>1 << stage
    if before > 0:
        tally(log, rings.on_node + stage, <int>before, -1)
    if after > 0:
        tally(log, rings.on_node + stage, <int>after, 1)
    if (before > 1) != (after > 1):
        kind = t.link_kind[node, node]
        tally(log, rings.inner_latency + stage, links.latency_rank[kind], 1 if after > 1 else -1)
        tally(log, rings.inner_bandwidth + stage, links.bandwidth_rank[kind], 1 if after > 1 else -1)
    if before == 0:
        if nodes == 0:
            hop(t, links, rings, log, stage, node, node, 1)
        else:
            ahead = next_node(present, links.words, node)
            behind = previous_node(present, links.words, node)
            hop(t, links, rings, log, stage, behind, ahead, -1)
            hop(t, links, rings, log, stage, behind, node, 1)
            hop(t, links, rings, log, stage, node, ahead, 1)
        put(log, rings.num_nodes + stage, nodes + 1)
        put(log, present + (node >> 6), present[node >> 6] | (<long long>1 << (node & 63)))
        tally(log, rings.own + stage, links.own_rank[node], 1)
        put(log, members, after)
        tally(log, rings.flows + stage, <int>rings.leaving[node], 1)
        if nodes > 0:
            leave(rings, log, node, 1)
        if nodes == 1:
            leave(rings, log, ahead, 1)
    elif after == 0:
        if nodes == 2:
            leave(rings, log, next_node(present, links.words, node), -1)
        if nodes > 1:
            leave(rings, log, node, -1)
        tally(log, rings.flows + stage, <int>rings.leaving[node], -1)
        put(log, members, after)
        tally(log, rings.own + stage, links.own_rank[node], -1)
        put(log, present + (node >> 6), present[node >> 6] & ~(<long long>1 << (node & 63)))
        put(log, rings.num_nodes + stage, nodes - 1)
        if nodes == 1:
            hop(t, links, rings, log, stage, node, node, -1)
        else:
            ahead = next_node(present, links.words, node)
            behind = previous_node(present, links.words, node)
            hop(t, links, rings, log, stage, behind, node, -1)
            hop(t, links, rings, log, stage, node, ahead, -1)
            hop(t, links, rings, log, stage, behind, ahead, 1)
    else:
        put(log, members, after)


cdef StageRing ring_of(Tables t, Links links, Rings* rings, int stage) noexcept nogil:
    """What the counts of a stage say of its ring."""
    cdef StageRing ring
    cdef int flows = highest(rings.flows + stage), inner = lowest(rings.inner_bandwidth + stage), own
    cdef bint leaves = rings.num_nodes[stage] > 1
    ring.outer_latency = ring.latency = links.latency[highest(rings.outer_latency + stage)]
    ring.outer_bandwidth = links.bandwidth[lowest(rings.outer_bandwidth + stage)] / (flows * rings.degree if leaves else 1)
    ring.bandwidth = ring.outer_bandwidth
    if inner >= 0:
        ring.latency = fmax(ring.latency, links.latency[highest(rings.inner_latency + stage)])
        ring.bandwidth = fmin(ring.bandwidth, links.bandwidth[inner])
    own = links.own_node[lowest(rings.own + stage)]
    ring.inner_bandwidth = t.link_bandwidth[own, own]
    ring.inner_latency = t.link_latency[own, own]
    ring.per_node = highest(rings.on_node + stage)
    ring.num_nodes = <int>rings.num_nodes[stage]
    ring.two_level = leaves and ring.per_node > 1 and lowest(rings.on_node + stage) == ring.per_node
    ring.most_ranks = ring.per_node * rings.degree
    ring.slowest_host_link = 0.0  # of no interest here
    ring.kind = t.node_type[next_node(rings.present + stage * links.words, links.words, t.num_nodes - 1)]
    return ring


cdef double reduce_seconds(Tables t, Links links, Rings* rings, Log* log) noexcept nogil:
    """Exposed seconds of one update's communication, the slowest stage deciding; 0 with one replica."""
    cdef StageRing ring
    cdef double worst = 0.0
    cdef int j
    if rings.num_replicas == 1:
        return 0.0
    for j in range(rings.num_stages):
        if rings.stale >> j & 1:
            ring = ring_of(t, links, rings, j)
            put_number(
                log, rings.seconds + j,
                update_seconds(t, &ring, 1, rings.num_replicas, rings.sharding, rings.states + j, rings.num_micro_batches),
            )
        worst = fmax(worst, rings.seconds[j])
    rings.stale = 0
    return worst


cdef void nothing_stale(Rings* rings) noexcept nogil:
    """After a proposal was taken back."""
    rings.stale = 0
    rings.num_stale_nodes = 0
    rings.all_nodes_stale = False


cdef double node_optimizer(Tables t, Rings* rings, int node) noexcept nogil:
    """The slowest rank's optimizer step on a host, whose memory all ranks share."""
    cdef long long* members = rings.members + node * rings.num_stages
    cdef State* state
    cdef double worst = 0.0, total, ranks = 0.0
    cdef int j, kind = t.node_type[node]
    for j in range(rings.num_stages):
        ranks += members[j] * rings.degree
    for j in range(rings.num_stages):
        if members[j]:
            state = rings.states + j
            total = state.weights + state.gradients + state.optimizer
            worst = fmax(
                worst,
                fmax(total * ranks / t.node_host_memory[node], (state.gradients + state.weights) / t.node_host_link[node]),
            )
    return t.calibration[kind, PHASE_OPTIMIZER, 0] * worst + t.calibration[kind, PHASE_OPTIMIZER, 1] if ranks else 0.0


cdef double host_optimizer(Tables t, Rings* rings, Log* log) noexcept nogil:
    cdef int i
    if rings.all_nodes_stale:
        for i in range(t.num_nodes):
            raise_leaf(log, rings.optimizer, rings.tree, i, node_optimizer(t, rings, i))
        rings.num_stale_nodes = 0
        rings.all_nodes_stale = False
    for i in range(rings.num_stale_nodes):
        raise_leaf(log, rings.optimizer, rings.tree, rings.stale_nodes[i], node_optimizer(t, rings, rings.stale_nodes[i]))
    rings.num_stale_nodes = 0
    return rings.optimizer[1]
