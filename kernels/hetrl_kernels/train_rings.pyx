# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Gradient rings of one training task, kept up to date while tensor groups change nodes.

The ring of a stage visits its nodes in order. It is described by counts: hops by kind of link, nodes by members and by how
many rings leave them. A tensor group that changes its node changes a handful of counts of its stage, and of the stages
that share a network card with it.
"""

from hetrl_kernels.layouts cimport StageRing
from hetrl_kernels.links cimport Place, link_of
from hetrl_kernels.memory cimport FSDP, train_state
from hetrl_kernels.rings cimport update_seconds
from hetrl_kernels.tables cimport PHASE_OPTIMIZER, fmax, fmin
from hetrl_kernels.undo cimport (
    first_bit, highest, last_bit, lowest, lowest_bit, next_node, previous_node, put, put_number, raise_leaf, tally,
)


cdef enum:
    FEW_MEMBERS = 16  # rings of up to so many are read off node by node, larger ones from counts


cdef void make_rings(
    Rings* rings, Arena arena, Tables t, Links links, int task, list layers, int degree, int num_replicas, int sharding,
    int most_members, bint on_host) except *:
    """Rings without members; ``arena`` owns their memory."""
    cdef int n = t.num_nodes, stages = len(layers), j, first = 0
    rings.task = task
    rings.num_stages = stages
    rings.num_replicas = num_replicas
    rings.degree = degree
    rings.sharding = sharding
    rings.on_host = on_host
    rings.few = num_replicas <= FEW_MEMBERS
    rings.states = <State*>arena.room(stages * sizeof(State))
    for j in range(stages):
        rings.states[j] = train_state(t, t.task_model[task], degree, first, layers[j], num_replicas, sharding)
        first += layers[j]
    rings.members = <long long*>arena.state(n * stages * sizeof(long long))
    rings.stages = <long long*>arena.state(n * sizeof(long long))
    rings.present = <long long*>arena.state(stages * links.words * sizeof(long long))
    rings.own = <long long*>arena.state(stages * links.words * sizeof(long long))
    rings.num_nodes = <long long*>arena.state(stages * sizeof(long long))
    rings.hop_words = (links.num_kinds + 63) // 64
    rings.outer = hops(arena, stages, links.num_kinds)
    rings.inner = hops(arena, stages, links.num_kinds)
    rings.on_node = tallies(arena, stages, most_members + 1)
    rings.flows = tallies(arena, stages, stages + 1)
    rings.leaving = <long long*>arena.state(n * sizeof(long long))
    rings.counted = <long long*>arena.state(n * sizeof(long long))
    rings.looks = <Look*>arena.state(stages * sizeof(Look))
    rings.seconds = <double*>arena.state(stages * sizeof(double))
    rings.worst = <double*>arena.state(sizeof(double))
    rings.tree = 1
    while rings.tree < n:
        rings.tree *= 2
    rings.optimizer = <double*>arena.state(2 * rings.tree * sizeof(double))
    rings.touched = <int*>arena.room(n * sizeof(int))
    rings.noted = <char*>arena.room(n)


cdef Hops* hops(Arena arena, int stages, int kinds) except NULL:
    cdef Hops* found = <Hops*>arena.room(stages * sizeof(Hops))
    cdef int j, words = (kinds + 63) // 64
    for j in range(stages):
        found[j].count = <long long*>arena.state(kinds * sizeof(long long))
        found[j].by_latency = <long long*>arena.state(2 * words * sizeof(long long))
        found[j].by_bandwidth = found[j].by_latency + words
    return found


cdef Tally* tallies(Arena arena, int stages, int ranks) except NULL:
    """One empty tally per stage."""
    cdef Tally* found = <Tally*>arena.room(stages * sizeof(Tally))
    cdef int j, words = (ranks + 63) // 64
    for j in range(stages):
        found[j].count = <long long*>arena.state(ranks * sizeof(long long))
        found[j].bits = <long long*>arena.state(words * sizeof(long long))
        found[j].words = words
    return found


cdef inline bint hop(Links links, Hops* hops, Log* log, int kind, int number) noexcept nogil:
    """Count a kind of link more often, or less; whether it occurs and did not, or the other way round."""
    cdef long long before = hops.count[kind]
    cdef long long* word
    put(log, hops.count + kind, before + number)
    if (before > 0) == (before + number > 0):
        return False
    word = hops.by_latency + (links.latency_rank[kind] >> 6)
    put(log, word, word[0] ^ (<long long>1 << (links.latency_rank[kind] & 63)))
    word = hops.by_bandwidth + (links.bandwidth_rank[kind] >> 6)
    put(log, word, word[0] ^ (<long long>1 << (links.bandwidth_rank[kind] & 63)))
    return True


cdef inline void detour(Links links, Hops* hops, Log* log, int behind, int node, int ahead, int number) noexcept nogil:
    """A ring visits one more node between two others, or one less."""
    cdef const Place* places = links.places
    cdef int straight = link_of(places, links.between, links.num_groups, behind, ahead)
    cdef int first = link_of(places, links.between, links.num_groups, behind, node)
    cdef int second = link_of(places, links.between, links.num_groups, node, ahead)
    if first == straight:
        hop(links, hops, log, second, number)
    elif second == straight:
        hop(links, hops, log, first, number)
    else:
        hop(links, hops, log, straight, -number)
        hop(links, hops, log, first, number)
        hop(links, hops, log, second, number)


cdef inline void touch(Rings* rings, int node) noexcept nogil:
    if not rings.noted[node]:
        rings.noted[node] = 1
        rings.touched[rings.num_touched] = node
        rings.num_touched += 1


cdef inline void leave(Rings* rings, Log* log, int node, int number) noexcept nogil:
    """One more ring leaves a node, or one less."""
    put(log, rings.leaving + node, rings.leaving[node] + number)
    touch(rings, node)


cdef inline void enter_or_leave(Links links, Rings* rings, Log* log, int stage, int node, bint enters) noexcept nogil:
    """The ring of a stage visits a node more, or one less; of rings of few members no more is kept than where they are."""
    cdef long long* present = rings.present + stage * links.words
    cdef long long nodes = rings.num_nodes[stage], others = nodes if enters else nodes - 1
    put(log, rings.stages + node, rings.stages[node] ^ (<long long>1 << stage))
    put(log, rings.num_nodes + stage, others + enters)
    if not enters:
        put(log, present + (node >> 6), present[node >> 6] ^ (<long long>1 << (node & 63)))
    if others > 0:
        leave(rings, log, node, 1 if enters else -1)
        if others == 1:
            leave(rings, log, first_bit(present, links.words), 1 if enters else -1)
    if enters:
        put(log, present + (node >> 6), present[node >> 6] ^ (<long long>1 << (node & 63)))


cdef void change_members(Tables t, Links links, Rings* rings, Log* log, int stage, int node, int number) noexcept nogil:
    """``number`` more tensor groups of a stage on a node; fewer if negative."""
    cdef long long* members = rings.members + node * rings.num_stages + stage
    cdef long long* present = rings.present + stage * links.words
    cdef long long* own = rings.own + stage * links.words + (links.own_rank[node] >> 6)
    cdef long long before = members[0], after = before + number, nodes = rings.num_nodes[stage]
    cdef int ahead = node, behind = node
    put(log, members, after)
    if rings.on_host:
        touch(rings, node)
    if rings.num_replicas == 1:
        return
    if rings.few:
        rings.stale |= <unsigned long long>1 << stage
        if (before > 0) != (after > 0):
            enter_or_leave(links, rings, log, stage, node, after > 0)
        return
    # only what changes the ring's look makes its seconds stale: the counts behind it change with nearly every move
    if before > 0 and tally(log, rings.on_node + stage, <int>before, -1):
        rings.stale |= <unsigned long long>1 << stage
    if after > 0 and tally(log, rings.on_node + stage, <int>after, 1):
        rings.stale |= <unsigned long long>1 << stage
    if (before > 1) != (after > 1) and hop(links, rings.inner + stage, log, links.places[node].own_link, 1 if after > 1 else -1):
        rings.stale |= <unsigned long long>1 << stage
    if (before > 0) == (after > 0):
        return
    rings.stale |= <unsigned long long>1 << stage
    put(log, rings.stages + node, rings.stages[node] ^ (<long long>1 << stage))
    put(log, own, own[0] ^ (<long long>1 << (links.own_rank[node] & 63)))
    tally(log, rings.flows + stage, <int>rings.counted[node], 1 if after > 0 else -1)
    if before > 0:
        put(log, present + (node >> 6), present[node >> 6] ^ (<long long>1 << (node & 63)))
        nodes -= 1
    if nodes > 0:
        ahead = next_node(present, links.words, node)
        behind = previous_node(present, links.words, node)
        # a ring on one node has a hop from the node to itself, whose kind a second node replaces
        detour(links, rings.outer + stage, log, behind, node, ahead, 1 if after > 0 else -1)
        leave(rings, log, node, 1 if after > 0 else -1)
        if nodes == 1:
            leave(rings, log, ahead, 1 if after > 0 else -1)
    else:
        hop(links, rings.outer + stage, log, links.places[node].own_link, 1 if after > 0 else -1)
    if after > 0:
        put(log, present + (node >> 6), present[node >> 6] ^ (<long long>1 << (node & 63)))
        nodes += 1
    put(log, rings.num_nodes + stage, nodes)


cdef void refresh_nodes(Tables t, Rings* rings, Log* log) noexcept nogil:
    """Bring up to date what depends on all stages of a node: flows through its card, and an optimizer on its host."""
    cdef unsigned long long stages
    cdef int i, j, node
    for i in range(rings.num_touched):
        node = rings.touched[i]
        rings.noted[node] = 0
        if rings.few:
            if rings.leaving[node] != rings.counted[node]:
                stages = rings.stages[node]
                while stages:
                    j = lowest_bit(stages)
                    stages &= stages - 1
                    if rings.leaving[node] > rings.looks[j].flows or rings.counted[node] >= rings.looks[j].flows:
                        rings.stale |= <unsigned long long>1 << j
                put(log, rings.counted + node, rings.leaving[node])
        elif rings.leaving[node] != rings.counted[node]:
            stages = rings.stages[node]
            while stages:
                j = lowest_bit(stages)
                stages &= stages - 1
                if tally(log, rings.flows + j, <int>rings.counted[node], -1) | tally(log, rings.flows + j, <int>rings.leaving[node], 1):
                    rings.stale |= <unsigned long long>1 << j
            put(log, rings.counted + node, rings.leaving[node])
        if rings.on_host:
            raise_leaf(log, rings.optimizer, rings.tree, node, node_optimizer(t, rings, node))
    rings.num_touched = 0


cdef inline int higher(int a, int b) noexcept nogil:
    return a if a > b else b


cdef inline int lower(int a, int b) noexcept nogil:
    return a if a < b else b


cdef inline void read_look(Tables t, Links links, const Rings* rings, int stage, Look* look) noexcept nogil:
    """What the counts of a stage say of its ring."""
    cdef const Hops* outer = rings.outer + stage
    cdef const Hops* inner = rings.inner + stage
    look.latency = last_bit(outer.by_latency, rings.hop_words)
    look.bandwidth = first_bit(outer.by_bandwidth, rings.hop_words)
    look.inner_latency = last_bit(inner.by_latency, rings.hop_words)
    look.inner_bandwidth = first_bit(inner.by_bandwidth, rings.hop_words)
    look.num_nodes = <int>rings.num_nodes[stage]
    look.flows = highest(rings.flows + stage) if look.num_nodes > 1 else 0
    look.own = first_bit(rings.own + stage * links.words, links.words)
    look.most, look.least = highest(rings.on_node + stage), lowest(rings.on_node + stage)
    look.kind = t.node_type[first_bit(rings.present + stage * links.words, links.words)]


cdef inline void read_nodes(Tables t, Links links, const Rings* rings, int stage, Look* look) noexcept nogil:
    """The same of a ring of few members, node by node."""
    cdef const long long* present = rings.present + stage * links.words
    cdef const long long* members = rings.members + stage
    cdef const long long* leaving = rings.leaving
    cdef const Place* places = links.places
    cdef const int* own_rank = links.own_rank
    cdef int num_groups = links.num_groups, num_stages = rings.num_stages, words = links.words
    cdef const int* between = NULL  # links from the node before
    cdef unsigned long long word
    cdef int i, node = -1, kind, number, before = -1, first = -1, own = 1 << 30
    cdef int latency = -1, bandwidth = 1 << 30, inner_latency = -1, inner_bandwidth = 1 << 30
    cdef int most = 0, least = 1 << 30, flows = 0
    for i in range(words):
        word = present[i]
        while word:
            node = 64 * i + lowest_bit(word)
            word &= word - 1
            if between == NULL:
                first = node
            else:
                kind = between[places[node].group]
                latency = higher(latency, links.latency_rank[kind])
                bandwidth = lower(bandwidth, links.bandwidth_rank[kind])
            between = links.between + places[node].group * num_groups
            number = <int>members[node * num_stages]
            if number > 1:
                kind = places[node].own_link
                inner_latency = higher(inner_latency, links.latency_rank[kind])
                inner_bandwidth = lower(inner_bandwidth, links.bandwidth_rank[kind])
            most = higher(most, number)
            least = lower(least, number)
            own = lower(own, own_rank[node])
            flows = higher(flows, <int>leaving[node])
    kind = link_of(places, links.between, num_groups, node, first)
    look.latency = higher(latency, links.latency_rank[kind])
    look.bandwidth = lower(bandwidth, links.bandwidth_rank[kind])
    look.inner_latency = inner_latency
    look.inner_bandwidth = inner_bandwidth if inner_latency >= 0 else -1
    look.num_nodes = <int>rings.num_nodes[stage]
    look.flows = flows if first != node else 0
    look.own = own
    look.most, look.least = most, least
    look.kind = t.node_type[first]


cdef double ring_seconds(Tables t, Links links, const Rings* rings, int stage, const Look* look) noexcept nogil:
    cdef StageRing ring
    ring.outer_latency = ring.latency = links.latency[look.latency]
    ring.outer_bandwidth = links.bandwidth[look.bandwidth] / (look.flows * rings.degree if look.num_nodes > 1 else 1)
    ring.bandwidth = ring.outer_bandwidth
    if look.inner_bandwidth >= 0:
        ring.latency = fmax(ring.latency, links.latency[look.inner_latency])
        ring.bandwidth = fmin(ring.bandwidth, links.bandwidth[look.inner_bandwidth])
    ring.inner_node = links.own_node[look.own]
    ring.inner_bandwidth = t.link_bandwidth[ring.inner_node, ring.inner_node]
    ring.per_node = look.most
    ring.num_nodes = look.num_nodes
    ring.two_level = look.num_nodes > 1 and look.most > 1 and look.least == look.most
    ring.most_ranks = look.most * rings.degree
    ring.slowest_host_link = 0.0  # of no interest here
    ring.kind = look.kind
    return update_seconds(t, &ring, 1, rings.num_replicas, rings.sharding, rings.states + stage, rings.num_micro_batches)


cdef double reduce_seconds(Tables t, Links links, Rings* rings, Log* log) noexcept nogil:
    """Exposed seconds of one update's communication, the slowest stage deciding; 0 with one replica.

    Most moves leave a ring with the look that it had, though its counts have changed.
    """
    cdef Look look
    cdef const long long* words = <const long long*>&look
    cdef long long* before
    cdef unsigned long long stale = rings.stale
    cdef double worst = 0.0
    cdef int j, i
    cdef bint changed = False
    while stale:
        j = lowest_bit(stale)
        stale &= stale - 1
        if rings.few:
            read_nodes(t, links, rings, j, &look)
        else:
            read_look(t, links, rings, j, &look)
        before = <long long*>(rings.looks + j)
        if (
            before[0] == words[0] and before[1] == words[1] and before[2] == words[2] and before[3] == words[3]
            and before[4] == words[4]
        ):
            continue
        for i in range(5):
            put(log, before + i, words[i])
        put_number(log, rings.seconds + j, ring_seconds(t, links, rings, j, &look))
        changed = True
    rings.stale = 0
    if changed:
        for j in range(rings.num_stages):
            worst = fmax(worst, rings.seconds[j])
        if worst != rings.worst[0]:
            put_number(log, rings.worst, worst)
    return rings.worst[0]


cdef double node_optimizer(Tables t, Rings* rings, int node) noexcept nogil:
    """The slowest rank's optimizer step on a host, whose memory all ranks share."""
    cdef long long* members = rings.members + node * rings.num_stages
    cdef State* state
    cdef double worst = 0.0, total
    cdef int j, kind = t.node_type[node]
    cdef long long ranks = 0
    for j in range(rings.num_stages):
        ranks += members[j] * rings.degree
    if ranks == 0:
        return 0.0
    for j in range(rings.num_stages):
        if members[j]:
            state = rings.states + j
            total = state.weights + state.gradients + state.optimizer
            worst = fmax(
                worst, fmax(total * ranks / t.node_host_memory[node], (state.gradients + state.weights) / t.node_host_link[node])
            )
    return t.calibration[kind, PHASE_OPTIMIZER, 0] * worst + t.calibration[kind, PHASE_OPTIMIZER, 1]


cdef void nothing_stale(Rings* rings) noexcept nogil:
    """After a proposal was taken back."""
    cdef int i
    rings.stale = 0
    for i in range(rings.num_touched):
        rings.noted[rings.touched[i]] = 0
    rings.num_touched = 0
