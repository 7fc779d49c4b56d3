# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Gradient rings of one training task, kept up to date while tensor groups change nodes.

The ring of a stage visits its nodes in order, and shares a node's network card with the rings of other stages that leave it.
Members are counted in words, all stages of a node at once. Rings of few members are read node by node; for larger ones hops
are counted by kind of link, so that a tensor group that changes its node changes a handful of counts. Rings that look alike
take equally long, and few looks are ever seen: their seconds are looked up.
"""

from hetrl_kernels.lanes cimport (
    LANES, Maxima, below, bits_of, count_at, count_sum, high_word, larger, low_word, maxima_of, num_flags, occupied,
)
from hetrl_kernels.layouts cimport StageRing
from hetrl_kernels.links cimport Place, link_of
from hetrl_kernels.memory cimport FSDP, NO_SHARDING, train_state
from hetrl_kernels.rings cimport update_seconds
from hetrl_kernels.tables cimport PHASE_OPTIMIZER, fmax, fmin
from hetrl_kernels.undo cimport (
    first_bit, highest, last_bit, lowest, lowest_bit, next_node, previous_node, put, put_number, raise_leaf, tally,
)


cdef inline int higher(int a, int b) noexcept nogil:
    return a if a > b else b


cdef inline int lower(int a, int b) noexcept nogil:
    return a if a < b else b


cdef enum:
    NO_RANK = 4096  # more than any link or node has
    FEW_MEMBERS = 16  # rings of up to so many are read off node by node, larger ones from counts
    MOST_MEMBERS = 127  # of a stage on a node, as `lanes` counts
    KNOWN_BITS = 10  # looks whose seconds are kept, as a power of two


cdef void make_rings(
    Rings* rings, Arena arena, Tables t, Links links, int task, list layers, int degree, int num_replicas, int sharding,
    int most_members, bint on_host) except *:
    """Rings without members; ``arena`` owns their memory."""
    cdef int n = t.num_nodes, stages = len(layers), j, first = 0, own, kind
    rings.task = task
    rings.num_stages = stages
    rings.num_lanes = (stages + LANES - 1) // LANES if num_replicas > 1 or on_host else 0
    rings.num_replicas = num_replicas
    rings.all = lower(num_replicas, MOST_MEMBERS + 1)
    rings.degree = degree
    rings.sharding = sharding
    rings.on_host = on_host
    rings.few = num_replicas <= FEW_MEMBERS
    rings.two_levels = sharding == NO_SHARDING
    rings.states = <State*>arena.room(stages * sizeof(State))
    for j in range(stages):
        rings.states[j] = train_state(t, t.task_model[task], degree, first, layers[j], num_replicas, sharding)
        first += layers[j]
    rings.members = <long long*>arena.state(n * rings.num_lanes * sizeof(long long))
    rings.present = <long long*>arena.state(stages * links.words * sizeof(long long))
    rings.leaving = <long long*>arena.state(n * sizeof(long long))
    rings.with_leaving = <long long*>arena.state((stages + 1) * links.words * sizeof(long long))
    rings.flows = <long long*>arena.state(rings.num_lanes * sizeof(long long))
    rings.hop_words = (links.num_kinds + 63) // 64
    rings.outer = hops(arena, stages, links.num_kinds)
    rings.inner = hops(arena, stages, links.num_kinds)
    rings.own = <long long*>arena.state(stages * links.words * sizeof(long long))
    rings.on_node = tallies(arena, stages, most_members + 1)
    rings.of_hop = <Maxima*>arena.room(links.num_kinds * sizeof(Maxima))
    for j in range(links.num_kinds):
        rings.of_hop[j] = maxima_of(four(links.latency_rank[j] + 1, NO_RANK - links.bandwidth_rank[j], 0, 0), 0)
    rings.of_node = <Maxima*>arena.room(2 * n * sizeof(Maxima))
    for j in range(n):
        own, kind = NO_RANK - links.own_rank[j] if rings.two_levels else 0, links.places[j].own_link
        rings.of_node[2 * j] = maxima_of(0, four(0, own, 0, 0))
        rings.of_node[2 * j + 1] = maxima_of(
            four(0, 0, links.latency_rank[kind] + 1, NO_RANK - links.bandwidth_rank[kind]), four(0, own, 0, 0)
        )
    rings.known = <Known*>arena.room((1 << KNOWN_BITS) * sizeof(Known))
    for j in range(1 << KNOWN_BITS):
        rings.known[j].look.rest = ~<unsigned long long>0  # no ring looks like this
    rings.seconds = <double*>arena.state(stages * sizeof(double))
    rings.worst = <double*>arena.state(sizeof(double))
    rings.by_state = heavy(arena, [
        rings.states[j].weights + rings.states[j].gradients + rings.states[j].optimizer for j in range(stages)
    ])
    rings.by_transfer = heavy(arena, [rings.states[j].gradients + rings.states[j].weights for j in range(stages)])
    rings.tree = 1
    while rings.tree < n:
        rings.tree *= 2
    rings.optimizer = <double*>arena.state(2 * rings.tree * sizeof(double))


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


cdef Heavy* heavy(Arena arena, list sizes) except NULL:
    """Stages by the bytes of their ranks, the most first."""
    cdef Heavy* found = <Heavy*>arena.room(len(sizes) * sizeof(Heavy))
    cdef int place, j
    for place, size in enumerate(sorted(set(sizes), reverse=True)):
        found[place].bytes = size
        for j in range(len(sizes)):
            if sizes[j] == size:
                found[place].stages |= <unsigned long long>1 << j
    return found


# --- tensor groups come and go --------------------------------------------------------------------------------------

cdef inline void flip(Log* log, long long* bits, int place) noexcept nogil:
    put(log, bits + (place >> 6), bits[place >> 6] ^ (<long long>1 << (place & 63)))


cdef inline void hop(Links links, Hops* hops, Log* log, int kind, int number) noexcept nogil:
    """Count a kind of link more often, or less."""
    cdef long long before = hops.count[kind]
    put(log, hops.count + kind, before + number)
    if (before > 0) != (before + number > 0):
        flip(log, hops.by_latency, links.latency_rank[kind])
        flip(log, hops.by_bandwidth, links.bandwidth_rank[kind])


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


cdef void count_members(Links links, Rings* rings, Log* log, int stage, int node, int before, int after) noexcept nogil:
    """What changes in the counts of a stage with the number of its members on a node."""
    cdef long long* present = rings.present + stage * links.words
    cdef int ahead, number = 1 if after > 0 else -1
    if (before > 1) != (after > 1):
        hop(links, rings.inner + stage, log, links.places[node].own_link, 1 if after > 1 else -1)
    if rings.two_levels:
        if before > 0:
            tally(log, rings.on_node + stage, before, -1)
        if after > 0:
            tally(log, rings.on_node + stage, after, 1)
    if (before > 0) == (after > 0):
        return
    if rings.two_levels:
        flip(log, rings.own + stage * links.words, links.own_rank[node])
    ahead = next_node(present, links.words, node)
    if ahead >= 0 and ahead != node:
        detour(links, rings.outer + stage, log, previous_node(present, links.words, node), node, ahead, number)
    else:  # a ring on one node has a hop from the node to itself, whose kind a second node replaces
        hop(links, rings.outer + stage, log, links.places[node].own_link, number)
    flip(log, present, node)


cdef inline int change_lane(Links links, Rings* rings, Log* log, int node, int lane, long long added) noexcept nogil:
    """More tensor groups of eight stages on a node; how many more rings leave it."""
    cdef long long* members = rings.members + node * rings.num_lanes + lane
    cdef unsigned long long before = members[0], after = before + added, left
    cdef int j
    put(log, members, after)
    if rings.num_replicas == 1:
        return 0
    if rings.few:
        left = bits_of(occupied(before) ^ occupied(after))
        while left:
            flip(log, rings.present + (LANES * lane + lowest_bit(left)) * links.words, node)
            left &= left - 1
    else:
        left = bits_of(occupied(before ^ after))
        while left:
            j = lowest_bit(left)
            left &= left - 1
            count_members(links, rings, log, LANES * lane + j, node, count_at(before, j), count_at(after, j))
    rings.stale |= bits_of(occupied(before ^ after)) << LANES * lane
    return num_flags(leaving(rings, after)) - num_flags(leaving(rings, before))


cdef inline void change_node(Tables t, Links links, Rings* rings, Log* log, int node, int more) noexcept nogil:
    """What depends on all stages of a node, which more rings leave than before, or fewer."""
    if more != 0:
        change_leaving(links, rings, log, node, more)
    if rings.on_host:
        raise_leaf(log, rings.optimizer, rings.tree, node, node_optimizer(t, rings, node))


cdef void change_members(Tables t, Links links, Rings* rings, Log* log, int node, const long long* added, int sign) noexcept nogil:
    """More tensor groups of all stages on a node, or fewer with a negative sign."""
    cdef int lane, more = 0
    for lane in range(rings.num_lanes):
        more += change_lane(links, rings, log, node, lane, sign * added[lane])
    change_node(t, links, rings, log, node, more)


cdef void move_members(Tables t, Links links, Rings* rings, Log* log, int source, int target, const long long* moved) noexcept nogil:
    """Tensor groups of all stages leave a node for another; negative numbers come from there."""
    cdef int lane, less = 0, more = 0
    for lane in range(rings.num_lanes):
        if moved[lane]:
            less += change_lane(links, rings, log, source, lane, -moved[lane])
            more += change_lane(links, rings, log, target, lane, moved[lane])
    change_node(t, links, rings, log, source, less)
    change_node(t, links, rings, log, target, more)


cdef inline unsigned long long leaving(const Rings* rings, unsigned long long members) noexcept nogil:
    """Flags of the stages that stand on a node, and on others too."""
    return occupied(members) & below(members, rings.all)


cdef inline void change_leaving(Links links, Rings* rings, Log* log, int node, int more) noexcept nogil:
    """More rings leave a node, or fewer; those that shared its card with the most others, or do now, are stale."""
    cdef const long long* members = rings.members + node * rings.num_lanes
    cdef long long before = rings.leaving[node], after = before + more
    cdef int lane
    put(log, rings.leaving + node, after)
    rings.most_leaving = higher(rings.most_leaving, <int>after)
    if not rings.few:
        flip(log, rings.with_leaving + before * links.words, node)
        flip(log, rings.with_leaving + after * links.words, node)
    for lane in range(rings.num_lanes):
        rings.stale |= bits_of(
            leaving(rings, members[lane]) & below(rings.flows[lane], higher(<int>after, <int>before + 1))
        ) << LANES * lane


# --- seconds --------------------------------------------------------------------------------------------------------

cdef inline double heaviest(const Heavy* heavy, unsigned long long stages) noexcept nogil:
    while not heavy.stages & stages:
        heavy += 1
    return heavy.bytes


cdef double node_optimizer(Tables t, const Rings* rings, int node) noexcept nogil:
    """The slowest rank's optimizer step on a host, whose memory all ranks share."""
    cdef unsigned long long stages = 0
    cdef int lane, kind = t.node_type[node], ranks = 0
    cdef long long members
    for lane in range(rings.num_lanes):
        members = rings.members[node * rings.num_lanes + lane]
        stages |= bits_of(occupied(members)) << LANES * lane
        ranks += count_sum(members) * rings.degree
    if stages == 0:
        return 0.0
    return t.calibration[kind, PHASE_OPTIMIZER, 0] * fmax(
        heaviest(rings.by_state, stages) * ranks / t.node_host_memory[node],
        heaviest(rings.by_transfer, stages) / t.node_host_link[node],
    ) + t.calibration[kind, PHASE_OPTIMIZER, 1]


# --- seconds of a ring ----------------------------------------------------------------------------------------------

cdef double ring_seconds(Tables t, Links links, const Rings* rings, const Look* look) noexcept nogil:
    """Seconds of a ring from what it looks like."""
    cdef StageRing ring
    cdef int inner_latency = look.links >> 32 & 65535, flows = look.nodes & 65535, own = look.nodes >> 16 & 65535
    ring.kind = look.rest >> 6 & 63
    ring.num_nodes = look.rest >> 12
    ring.inner_node = links.own_node[NO_RANK - own] if own > 0 else -1
    ring.two_level = False
    if ring.num_nodes > 1:
        ring.outer_latency = ring.latency = links.latency[(look.links & 65535) - 1]
        ring.outer_bandwidth = ring.bandwidth = links.bandwidth[NO_RANK - (look.links >> 16 & 65535)] / (flows * rings.degree)
        if inner_latency > 0:
            ring.latency = fmax(ring.latency, links.latency[inner_latency - 1])
            ring.bandwidth = fmin(ring.bandwidth, links.bandwidth[NO_RANK - (look.links >> 48)])
        ring.per_node = look.nodes >> 32 & 65535
        ring.two_level = ring.per_node > 1 and ring.per_node == NO_RANK - <int>(look.nodes >> 48)
    return update_seconds(
        t, &ring, 1, rings.num_replicas, rings.sharding, rings.states + (look.rest & 63), rings.num_micro_batches
    )


# The numbers of a look are chosen such that larger ones decide and 0 stands for none: ranks of latencies plus 1, and what
# ranks of bandwidths and fewest members lack to `NO_RANK`. Those of links are latency and bandwidth between nodes, then inside
# those with several members; those of nodes are rings that leave, the own link, most members, and fewest.

cdef inline long long four(int first, int second, int third, int fourth) noexcept nogil:
    return first | second << 16 | <long long>third << 32 | <long long>fourth << 48


cdef inline Look look_of(Maxima most, int num_nodes, int stage, int kind) noexcept nogil:
    """``num_nodes`` only tells one from several, unless all nodes have equally many members; ``kind`` is the first node's."""
    cdef Look look
    look.links, look.nodes = low_word(most), high_word(most)
    look.rest = stage | kind << 6 | num_nodes << 12
    return look


cdef inline Look look_of_node(Tables t, Links links, int stage, int node) noexcept nogil:
    """Of a ring inside one node."""
    return look_of(maxima_of(0, four(0, NO_RANK - links.own_rank[node], 0, 0)), 1, stage, t.node_type[node])


cdef inline bint meet(const long long* a, const long long* b, int words) noexcept nogil:
    cdef int i
    for i in range(words):
        if a[i] & b[i]:
            return True
    return False


cdef inline Look read_counts(Tables t, Links links, const Rings* rings, int stage) noexcept nogil:
    """What the counts of a stage say of its ring."""
    cdef const Hops* outer = rings.outer + stage
    cdef const Hops* inner = rings.inner + stage
    cdef const long long* present = rings.present + stage * links.words
    cdef int first = first_bit(present, links.words), flows, num_nodes = 2, own = NO_RANK, most = 0, least = NO_RANK
    if count_at(rings.members[first * rings.num_lanes + stage // LANES], stage % LANES) == rings.all:
        return look_of_node(t, links, stage, first)
    # no more than before leave the nodes that have not changed
    flows = higher(count_at(rings.flows[stage // LANES], stage % LANES), rings.most_leaving)
    while not meet(present, rings.with_leaving + flows * links.words, links.words):
        flows -= 1
    if rings.two_levels:
        own = first_bit(rings.own + stage * links.words, links.words)
        most, least = highest(rings.on_node + stage), lowest(rings.on_node + stage)
        if most == least:
            num_nodes = <int>rings.on_node[stage].count[most]
    return look_of(
        maxima_of(
            four(
                last_bit(outer.by_latency, rings.hop_words) + 1, NO_RANK - first_bit(outer.by_bandwidth, rings.hop_words),
                last_bit(inner.by_latency, rings.hop_words) + 1, NO_RANK - first_bit(inner.by_bandwidth, rings.hop_words),
            ),
            four(flows, NO_RANK - own, most, NO_RANK - least),
        ),
        num_nodes, stage, t.node_type[first],
    )


cdef inline Look read_nodes(Tables t, Links links, const Rings* rings, int stage) noexcept nogil:
    """The same of a ring of few members, node by node."""
    cdef const long long* present = rings.present + stage * links.words
    cdef const long long* members = rings.members + stage // LANES
    cdef const int* between  # links from the node before
    cdef unsigned long long word
    cdef int i, lane = stage % LANES, first = first_bit(present, links.words), node, number, group, num_nodes = 2
    cdef Maxima most
    if count_at(members[first * rings.num_lanes], lane) == rings.all:
        return look_of_node(t, links, stage, first)
    most = maxima_of(0, 0)
    between = NULL
    for i in range(links.words):
        word = present[i]
        while word:
            node = 64 * i + lowest_bit(word)
            word &= word - 1
            group = links.places[node].group
            number = count_at(members[node * rings.num_lanes], lane)
            if between != NULL:
                most = larger(most, rings.of_hop[between[group]])
            between = links.between + group * links.num_groups
            most = larger(most, rings.of_node[2 * node + (number > 1)])
            most = larger(most, maxima_of(0, rings.leaving[node]))
            if rings.two_levels:
                most = larger(most, maxima_of(0, four(0, 0, number, NO_RANK - number)))
                num_nodes += 1
    most = larger(most, rings.of_hop[between[links.places[first].group]])
    return look_of(most, num_nodes - 2 if rings.two_levels else num_nodes, stage, t.node_type[first])


cdef inline double known_seconds(Tables t, Links links, Rings* rings, const Look* look) noexcept nogil:
    """Seconds of a ring, looked up by what it looks like."""
    cdef unsigned long long place = (
        look.links * <unsigned long long>0x9E3779B97F4A7C15 ^ look.nodes * <unsigned long long>0xC2B2AE3D27D4EB4F
        ^ look.rest * <unsigned long long>0x165667B19E3779F9
    )
    cdef Known* known = rings.known + (place >> (64 - KNOWN_BITS))
    if known.look.links != look.links or known.look.nodes != look.nodes or known.look.rest != look.rest:
        known.seconds = ring_seconds(t, links, rings, look)
        known.look = look[0]
    return known.seconds


cdef double reduce_seconds(Tables t, Links links, Rings* rings, Log* log) noexcept nogil:
    """Exposed seconds of one update's communication, the slowest stage deciding; 0 with one replica."""
    cdef Look look
    cdef long long* flows
    cdef double seconds, worst = 0.0
    cdef int j, differ
    cdef bint changed = False
    while rings.stale:
        j = lowest_bit(rings.stale)
        rings.stale &= rings.stale - 1
        look = read_nodes(t, links, rings, j) if rings.few else read_counts(t, links, rings, j)
        flows = rings.flows + j // LANES
        differ = count_at(flows[0], j % LANES) ^ <int>(look.nodes & 65535)
        if differ:
            put(log, flows, flows[0] ^ <long long>differ << 8 * (j % LANES))
        seconds = known_seconds(t, links, rings, &look)
        if seconds != rings.seconds[j]:
            put_number(log, rings.seconds + j, seconds)
            changed = True
    rings.most_leaving = 0
    if changed:
        for j in range(rings.num_stages):
            worst = fmax(worst, rings.seconds[j])
        if worst != rings.worst[0]:
            put_number(log, rings.worst, worst)
    return rings.worst[0]


cdef void nothing_stale(Rings* rings) noexcept nogil:
    """After a proposal was taken back."""
    rings.stale = 0
    rings.most_leaving = 0
