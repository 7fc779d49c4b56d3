# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Which nodes every task stands on, and what moves between them: the best links, and weight syncs.

An area is the devices of one task or of several with the same. Sets of nodes are bit sets, and so are the nodes that a
node reaches equally well, so that most questions are answered by a few words. Bytes of weights are whole sixteenths, whose
sums are exact in any order.
"""

from cython cimport final

from hetrl_kernels.links cimport Level
from hetrl_kernels.tables cimport fmax, fmin
from hetrl_kernels.undo cimport lowest_bit, put, put_number

cdef enum:
    NO_RANK = 1 << 30


cdef inline int common(const long long* a, const long long* b, int words) noexcept nogil:
    """Lowest node that is in both sets, or -1."""
    cdef int word
    for word in range(words):
        if a[word] & b[word]:
            return 64 * word + lowest_bit(a[word] & b[word])
    return -1


@final
cdef class Spread(Arena):
    """Areas without nodes.

    Parameters
    ----------
    t, links
        The lowered job and its links.
    num_areas
        Number of areas.
    pairs
        (area, area) between which data move.
    syncs
        (area of the training task, area of the target, bytes of all weights).
    """

    def __init__(self, Tables t, Links links, int num_areas, list pairs, list syncs):
        cdef int i, n = t.num_nodes
        self.t = t
        self.links = links
        self.num_areas, self.num_pairs, self.num_syncs = num_areas, len(pairs), len(syncs)
        self.on_node = <long long*>self.state(num_areas * n * sizeof(long long))
        self.nodes = <long long*>self.state(num_areas * links.words * sizeof(long long))
        self.pairs = <Pair*>self.room(self.num_pairs * sizeof(Pair))
        self.syncs = <Sync*>self.room(self.num_syncs * sizeof(Sync))
        self.received = <double*>self.state(self.num_syncs * n * sizeof(double))
        self.sources = <Sources*>self.room((n + 2) * sizeof(Sources))
        self.source_nodes = <long long*>self.room((n + 2) * links.words * sizeof(long long))
        for i, (source, target) in enumerate(pairs):
            self.pairs[i].source, self.pairs[i].target = source, target
        for i, (source, target, whole) in enumerate(syncs):
            self.syncs[i].source, self.syncs[i].target, self.syncs[i].whole = source, target, whole
        self.empty()

    cdef void empty(self):
        """No area has a node."""
        cdef int i
        self.wipe()
        for i in range(self.num_pairs):
            self.pairs[i].rank, self.pairs[i].a, self.pairs[i].b, self.pairs[i].stale = NO_RANK, -1, -1, 0
        for i in range(self.num_syncs):
            self.syncs[i].stale = True

    cdef void change(self, Log* log, int area, int node, int number) noexcept nogil:
        """``number`` more blocks of an area on a node; fewer if negative."""
        cdef long long* on_node = self.on_node + area * self.t.num_nodes + node
        cdef long long* word = self.nodes + area * self.links.words + (node >> 6)
        cdef long long before = on_node[0]
        cdef int i
        put(log, on_node, before + number)
        if (before > 0) == (before + number > 0):
            return
        put(log, word, word[0] ^ (<long long>1 << (node & 63)))
        for i in range(self.num_syncs):
            if self.syncs[i].source == area or self.syncs[i].target == area:
                self.syncs[i].stale = True
        if before == 0:
            self.enter(log, area, node)
            return
        for i in range(self.num_pairs):
            if (self.pairs[i].source == area and self.pairs[i].a == node) or (self.pairs[i].target == area and self.pairs[i].b == node):
                put(log, &self.pairs[i].stale, 1)

    cdef void enter(self, Log* log, int area, int node) noexcept nogil:
        """A new node of an area may have a better link, or one as good as that which is gone."""
        cdef Pair* pair
        cdef int i, level, found
        for i in range(self.num_pairs):
            pair = self.pairs + i
            if pair.source == area:
                for level in range(self.links.first_to[node], self.links.first_to[node + 1]):
                    if self.links.to[level].rank > pair.rank or (self.links.to[level].rank == pair.rank and not pair.stale):
                        break
                    found = common(
                        self.links.masks + self.links.to[level].mask, self.nodes + pair.target * self.links.words,
                        self.links.words,
                    )
                    if found >= 0:
                        put(log, &pair.rank, self.links.to[level].rank)
                        put(log, &pair.a, node)
                        put(log, &pair.b, found)
                        put(log, &pair.stale, 0)
                        break
            if pair.target == area:
                for level in range(self.links.first_from[node], self.links.first_from[node + 1]):
                    if self.links.source[level].rank > pair.rank or (self.links.source[level].rank == pair.rank and not pair.stale):
                        break
                    found = common(
                        self.links.masks + self.links.source[level].mask, self.nodes + pair.source * self.links.words,
                        self.links.words,
                    )
                    if found >= 0:
                        put(log, &pair.rank, self.links.source[level].rank)
                        put(log, &pair.a, found)
                        put(log, &pair.b, node)
                        put(log, &pair.stale, 0)
                        break

    cdef void receive(self, Log* log, int sync, int node, double num_bytes) noexcept nogil:
        cdef double* received = self.received + sync * self.t.num_nodes + node
        put_number(log, received, received[0] + num_bytes)
        self.syncs[sync].stale = True

    cdef void search(self, Log* log, Pair* pair) noexcept nogil:
        """The best link from nothing; nothing is better than the one that is gone."""
        cdef const long long* sources = self.nodes + pair.source * self.links.words
        cdef const long long* targets = self.nodes + pair.target * self.links.words
        cdef unsigned long long word
        cdef long long least = pair.rank, best = NO_RANK, a = -1, b = -1
        cdef int i, node, level, found
        for i in range(self.links.words):
            word = sources[i]
            while word and best > least:
                node = 64 * i + lowest_bit(word)
                word &= word - 1
                for level in range(self.links.first_to[node], self.links.first_to[node + 1]):
                    if self.links.to[level].rank >= best:
                        break
                    found = common(self.links.masks + self.links.to[level].mask, targets, self.links.words)
                    if found >= 0:
                        best, a, b = self.links.to[level].rank, node, found
                        break
        put(log, &pair.rank, best)
        put(log, &pair.a, a)
        put(log, &pair.b, b)
        put(log, &pair.stale, 0)

    cdef double transfer(self, Log* log, int pair, double num_bytes) noexcept nogil:
        """Seconds over the best link between two areas."""
        if self.pairs[pair].stale:
            self.search(log, self.pairs + pair)
        return self.links.best_latency[self.pairs[pair].rank] + num_bytes / self.links.best_bandwidth[self.pairs[pair].rank]

    cdef double network(self, Log* log, int number) noexcept nogil:
        """Seconds of a weight sync between nodes."""
        cdef Sync* sync = self.syncs + number
        if sync.stale:
            put_number(log, &sync.seconds, self.distribute(sync, self.received + number * self.t.num_nodes))
            sync.stale = False
        return sync.seconds

    cdef double distribute(self, Sync* sync, const double* received) noexcept nogil:
        """Every node that does not train gets one copy, from the node that reaches it fastest and has sent least so far.

        Nodes that have sent equally much form a set; the sets are kept in order of what they have sent.
        """
        cdef int words = self.links.words, number = 1, i, j, k, node, level = 0, source = -1
        cdef const long long* trains = self.nodes + sync.source * words
        cdef const long long* targets = self.nodes + sync.target * words
        cdef unsigned long long word
        cdef double num_bytes, sent, slowest = 0.0
        cdef Sources moved
        cdef bint everywhere = True
        for i in range(words):
            everywhere = everywhere and (targets[i] & ~trains[i]) == 0
        if everywhere:
            return 0.0
        for i in range(self.t.num_nodes + 2):
            self.sources[i].nodes = self.source_nodes + i * words
        self.sources[0].sent = 0.0
        for i in range(words):
            self.sources[0].nodes[i] = trains[i]
        for i in range(words):
            word = targets[i] & ~trains[i]
            while word:
                node = 64 * i + lowest_bit(word)
                word &= word - 1
                num_bytes = fmin(sync.whole, received[node])
                for level in range(self.links.first_fast[node], self.links.first_fast[node + 1]):
                    if common(self.links.masks + self.links.fast[level].mask, trains, words) >= 0:
                        break
                for j in range(number):
                    source = common(self.links.masks + self.links.fast[level].mask, self.sources[j].nodes, words)
                    if source >= 0:
                        break
                sent = self.sources[j].sent + num_bytes
                self.sources[j].nodes[source >> 6] ^= <long long>1 << (source & 63)
                k = j
                while k < number and self.sources[k].sent < sent:
                    k += 1
                if k == number or self.sources[k].sent > sent:
                    moved = self.sources[number]
                    for j in range(number, k, -1):
                        self.sources[j] = self.sources[j - 1]
                    number += 1
                    moved.sent = sent
                    for j in range(words):
                        moved.nodes[j] = 0
                    self.sources[k] = moved
                self.sources[k].nodes[source >> 6] |= <long long>1 << (source & 63)
                slowest = fmax(slowest, self.t.link_latency[source, node] + num_bytes / self.t.link_bandwidth[source, node])
        for j in range(number):
            sent = self.sources[j].sent
            if sent > 0:
                for i in range(words):
                    word = self.sources[j].nodes[i]
                    while word:
                        node = 64 * i + lowest_bit(word)
                        word &= word - 1
                        slowest = fmax(slowest, sent / self.t.node_nic[node])
        return slowest

    cdef void nothing_stale(self) noexcept nogil:
        """After a proposal was taken back."""
        cdef int i
        for i in range(self.num_syncs):
            self.syncs[i].stale = False
