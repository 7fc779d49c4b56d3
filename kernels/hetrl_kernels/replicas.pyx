# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of all replicas of a plan, kept up to date while blocks change nodes.

Replicas inside one block form units, looked up by the kind of node. Of those that span blocks, scoring ones are put together
from tables; training and generating ones are looked up by what their stages look like, and worked out once. A long training
pipeline is known by bounds until more is needed.
"""

from cython cimport final
from libc.math cimport floor

from hetrl_kernels.links cimport Place, link_of
from hetrl_kernels.maxima cimport change
from hetrl_kernels.pipelines cimport (
    LINK_BITS, LINK_MASK, Bounds, Passage, Pattern, score_seconds, stage_word, train_bounds, train_seconds,
)
from hetrl_kernels.replica_tables cimport Edge, Replica, Slowest, Strategy, Touch, Unit
from hetrl_kernels.signatures cimport weight
from hetrl_kernels.tables cimport GENERATE, SCORE, TRAIN, fmax, fmin
from hetrl_kernels.timing cimport Replica as Timed
from hetrl_kernels.timing cimport generate_replica
from hetrl_kernels.undo cimport forget, put, put_int, put_number

cdef enum:
    SIGNATURE_BITS = 13
    MOST_TRUST = 4  # how often an upper bound may fail to show that others are slower until replicas are looked up without it
    MISTRUST = 64  # but for one turn of so many

cdef double BOUND_FACTOR = 1.0 + 1e-12
"""Upper bounds stay above the values they bound, whatever the last bits are."""


@final
cdef class Replicas(ReplicaTables):
    """Replicas of a plan, on no nodes yet.

    Parameters
    ----------
    links
        The lowered job's links.
    plan
        Arrays of the plan (see `hetrl.search.plan_arrays.PlanArrays`).
    """

    def __init__(self, Links links, plan):
        cdef int place
        ReplicaTables.__init__(self, links, plan)
        for place in range(MAX_STAGES + 1):
            self.weights[place] = weight(place)
        self.signatures = Signatures(SIGNATURE_BITS, max([self.replicas[place].num_stages for place in range(self.num_replicas)]))

    cdef void place_all(self, Log* log) noexcept nogil:
        """Work everything out, with every block on its ``node``."""
        cdef int b, i
        cdef Replica* replica
        self.fresh = True
        self.num_touched = 0
        self.turn = 1
        for i in range(self.num_replicas):
            replica = self.replicas + i
            replica.unresolved = 0
            replica.stamp = 0
        for b in range(self.num_blocks):
            for i in range(self.first_unit[b], self.first_unit[b + 1]):
                self.write_unit(log, self.units + i, self.node[b])
            forget(log)
        for b in range(self.num_blocks):
            self.touch(log, b, True)
            forget(log)
        self.refresh(log)
        self.fresh = False

    cdef void write_unit(self, Log* log, const Unit* unit, int node) noexcept nogil:
        cdef Slowest* slowest = self.slowest + unit.task
        cdef int place = unit.look * self.num_kinds + self.t.node_kind[node]
        if self.look_slow[place] < 0:
            self.fill_look(unit.look, node)
        change(log, &slowest.slow, unit.leaf, self.look_slow[place])
        if slowest.scores_first:
            change(log, &slowest.first, unit.leaf, self.look_first[place])
        self.stale_tasks |= <unsigned int>1 << unit.task

    cdef void fill_look(self, int look, int node) noexcept nogil:
        """Slowest replica of a unit on nodes of one kind."""
        cdef int kind = self.t.node_kind[node], i, j, link
        cdef int place = look * self.num_kinds + kind
        cdef int[MAX_STAGES] nodes
        cdef int[MAX_STAGES] words
        cdef double slow = 0.0, first = 0.0, replica_slow, replica_first
        cdef Replica* replica
        cdef Pattern* pattern
        for i in range(self.first_look_replica[look], self.first_look_replica[look + 1]):
            replica = self.replicas + self.look_replicas[i]
            pattern = self.patterns + replica.pattern
            for j in range(replica.num_stages):
                nodes[j] = node
                link = pattern.link_rank[1 + self.links.places[node].own_link] if j + 1 < replica.num_stages else 0
                words[j] = stage_word(pattern.kind_rank[kind], link)
            self.seconds_of(replica, nodes, words, self.tokens_of(replica, nodes), &replica_slow, &replica_first)
            slow = fmax(slow, replica_slow)
            first = fmax(first, replica_first)
        self.look_slow[place] = slow
        self.look_first[place] = first

    cdef double tokens_of(self, const Replica* replica, const int* nodes) noexcept nogil:
        """Tokens in an engine's KV pools: what is useful, or what the fullest device has room for."""
        cdef double fits = replica.useful
        cdef int j
        if self.strategies[replica.task].kind != GENERATE:
            return 0.0
        for j in range(replica.num_stages):
            fits = fmin(fits, (self.t.node_limit[nodes[j]] - self.slot_need[replica.first + j]) / self.slot_kv[replica.first + j])
        return floor(fmax(0.0, fits))

    cdef void seconds_of(
        self, const Replica* replica, const int* nodes, const int* words, double tokens, double* slow, double* first) noexcept nogil:
        """Seconds of a replica on given nodes, from nothing."""
        cdef Timed timed
        cdef Strategy* strategy = self.strategies + replica.task
        cdef Pattern* pattern = self.patterns + replica.pattern
        cdef Passage[MAX_STAGES] passages
        cdef int j
        if strategy.kind == TRAIN:
            train_seconds(pattern, self.num_kinds, words, slow, first)
            return
        if strategy.kind == SCORE:
            for j in range(replica.num_stages):
                passages[j].work = pattern.forward[j * self.num_kinds + (words[j] >> LINK_BITS)]
                passages[j].send = pattern.ranked_send[words[j] & LINK_MASK]
            slow[0] = score_seconds(replica.num_stages, pattern.num_micro_batches, passages)
        else:
            timed.num_stages = replica.num_stages
            timed.node = nodes
            timed.layers = self.slot_layers + replica.first
            slow[0] = generate_replica(
                self.t, replica.task, strategy.degree_index, strategy.degree, strategy.micro_batch, &timed, replica.prompts, tokens
            )
        first[0] = slow[0]

    cdef void shift(self, Log* log, int block, int target) noexcept nogil:
        """Put a block on another node, with its units."""
        cdef int i
        if self.t.node_kind[self.node[block]] != self.t.node_kind[target]:
            for i in range(self.first_unit[block], self.first_unit[block + 1]):
                self.write_unit(log, self.units + i, target)
        self.node[block] = target

    cdef void touch(self, Log* log, int block, bint all_stages) noexcept nogil:
        """What a block's stages look like, and those that send to them; the replicas to which that makes a difference are noted.

        Without ``all_stages`` only those whose link leaves or enters the block: the kind of its node is as before.
        """
        cdef const Edge* edge = self.edges + self.first_edge[block]
        cdef const Edge* end = self.edges + (self.first_edge[block + 1] if all_stages else self.first_inner[block])
        cdef const Touch* touch
        cdef const Touch* last
        cdef Passage* passage
        cdef int* where
        # locals, because the compiler must assume that what the log takes might be a pointer of this object
        cdef const int* nodes = self.node
        cdef const Place* places = self.links.places
        cdef const int* between = self.links.between
        cdef const Touch* touches = self.touches
        cdef double work, send
        cdef int num_groups = self.links.num_groups, node, kind, link, word, before
        cdef bint slower
        while edge < end:
            node = nodes[edge.block]
            kind = places[node].kind
            link = 1 + link_of(places, between, num_groups, node, nodes[edge.next]) if edge.next >= 0 else 0
            touch, last = touches + edge.first_touch, touches + edge.first_other
            while touch < last:
                passage = <Passage*>touch.where
                work, send = (<const double*>touch.by_kind)[kind], (<const double*>touch.by_link)[link]
                slower = (work > passage.work) | (send > passage.send)
                if passage.work != work:
                    put_number(log, &passage.work, work)
                    if passage.send != send:
                        put_number(log, &passage.send, send)
                    self.note(touch.replica, slower)
                elif passage.send != send:
                    put_number(log, &passage.send, send)
                    self.note(touch.replica, slower)
                touch += 1
            last = touches + edge.end_touch
            while touch < last:
                where = <int*>touch.where
                word, before = stage_word((<const int*>touch.by_kind)[kind], (<const int*>touch.by_link)[link]), where[0]
                if word != before:
                    put_int(log, where, word)
                    self.note(
                        touch.replica,
                        touch.replica.unordered | (word >> LINK_BITS > before >> LINK_BITS) | ((word & LINK_MASK) > (before & LINK_MASK)),
                    )
                touch += 1
            edge += 1

    cdef inline void note(self, Replica* replica, bint slower) noexcept nogil:
        """A stage of a replica looks different."""
        if replica.stamp != self.turn:
            replica.stamp = self.turn
            replica.slower = self.fresh
            self.touched[self.num_touched] = replica
            self.num_touched += 1
        replica.slower |= slower

    cdef void refresh(self, Log* log) noexcept nogil:
        """Seconds of the replicas that were touched; of long training pipelines only bounds where no more is known."""
        cdef Entry* entry
        cdef Replica* replica
        cdef Slowest* slowest
        cdef Bounds bounds
        cdef double seconds, first
        cdef int i
        cdef bint bounded
        for i in range(self.num_tasks):
            self.least[i] = self.least_first[i] = 0.0
        for i in range(self.num_touched):
            replica = self.touched[i]
            self.stale_tasks |= <unsigned int>1 << replica.task
            if not replica.slower:
                self.loosen(log, replica)
                continue
            bounded = False
            if replica.scores:
                seconds = self.scoring_seconds(replica)
                first = seconds
                self.write_leaves(log, replica, seconds, seconds)
            else:
                slowest = self.slowest + replica.task
                if replica.bounded and (slowest.trust > 0 or self.turn % MISTRUST == 0):
                    train_bounds(self.patterns + replica.pattern, self.num_kinds, self.slot_word + replica.first, &bounds)
                    seconds = bounds.high * BOUND_FACTOR
                    first = (bounds.high + bounds.first) * BOUND_FACTOR
                    if self.others_decide(replica, seconds, first):
                        slowest.trust = MOST_TRUST
                        self.write_leaves(log, replica, seconds, first)
                        if not replica.unresolved:
                            put(log, &replica.unresolved, 1)
                        continue
                    slowest.trust -= slowest.trust > 0
                entry = self.entry_of(replica)
                seconds = entry.low
                first = seconds + (entry.first - entry.seconds) if entry.first > entry.seconds else seconds
                bounded = seconds < entry.seconds
                self.write_leaves(log, replica, entry.seconds, entry.first)
            self.least[replica.task] = fmax(self.least[replica.task], seconds)
            self.least_first[replica.task] = fmax(self.least_first[replica.task], first)
            if replica.unresolved != bounded:
                put(log, &replica.unresolved, bounded)
        self.num_touched = 0

    cdef bint others_decide(self, const Replica* replica, double slow, double first) noexcept nogil:
        """Whether a replica with these upper bounds is not the slowest of its task."""
        cdef const Slowest* slowest = self.slowest + replica.task
        return slow < slowest.slow.top[0] and (not slowest.scores_first or first < slowest.first.top[0])

    cdef void write_leaves(self, Log* log, const Replica* replica, double slow, double first) noexcept nogil:
        cdef Slowest* slowest = self.slowest + replica.task
        change(log, &slowest.slow, replica.leaf, slow)
        if slowest.scores_first:
            change(log, &slowest.first, replica.leaf, first)

    cdef void loosen(self, Log* log, Replica* replica) noexcept nogil:
        """A replica that became no slower: what it took is an upper bound now."""
        cdef const Slowest* slowest = self.slowest + replica.task
        cdef int leaf = replica.leaf
        if replica.unresolved:
            return
        put(log, &replica.unresolved, 1)
        if not replica.scores:  # whose seconds are in order to the last bit
            self.write_leaves(
                log, replica, slowest.slow.values[leaf] * BOUND_FACTOR,
                slowest.first.values[leaf] * BOUND_FACTOR if slowest.scores_first else 0.0,
            )

    cdef double scoring_seconds(self, const Replica* replica) noexcept nogil:
        """Seconds of a scoring replica: faster worked out than looked up."""
        return score_seconds(replica.num_stages, self.patterns[replica.pattern].num_micro_batches, self.passages + replica.first)

    cdef Entry* find(self, const Replica* replica, double tokens, const int* words) noexcept nogil:
        cdef unsigned long long hash = <unsigned long long>tokens * self.weights[MAX_STAGES]
        cdef int j
        for j in range(replica.num_stages):
            hash += words[j] * self.weights[j]
        return self.signatures.find(hash, replica.pattern, tokens, words, replica.num_stages)

    cdef Entry* entry_of(self, const Replica* replica) noexcept nogil:
        """What is known of a replica; where it looks like none before, bounds of a long training pipeline, else its seconds."""
        cdef const int* words = self.slot_word + replica.first
        cdef const Pattern* pattern = self.patterns + replica.pattern
        cdef int[MAX_STAGES] nodes
        cdef double tokens = 0.0
        cdef Bounds bounds
        cdef Entry* entry
        cdef int j
        cdef bint generates = self.strategies[replica.task].kind == GENERATE
        if generates:
            for j in range(replica.num_stages):
                nodes[j] = self.node[self.slot_block[replica.first + j]]
            tokens = self.tokens_of(replica, nodes)
        entry = self.find(replica, tokens, words)
        if entry.low < 0.0:
            if not replica.bounded:
                self.seconds_of(replica, nodes, words, tokens, &entry.seconds, &entry.first)
                entry.low = entry.seconds
                return entry
            train_bounds(pattern, self.num_kinds, words, &bounds)
            entry.seconds = bounds.high * BOUND_FACTOR
            entry.first = (bounds.high + bounds.first) * BOUND_FACTOR
            entry.low = bounds.low * (2.0 - BOUND_FACTOR)
        return entry

    cdef int loose(self, int task) noexcept nogil:
        """A replica that decides what a task takes but is known by an upper bound only, or -1."""
        cdef const Slowest* slowest = self.slowest + task
        cdef int r = slowest.replica_of[slowest.slow.place[0]]
        if (r < 0 or not self.replicas[r].unresolved) and slowest.scores_first:
            r = slowest.replica_of[slowest.first.place[0]]
        return -1 if r < 0 or not self.replicas[r].unresolved else r

    cdef void sharpen(self, Log* log, int r) noexcept nogil:
        """Know more of a replica: a better bound that was worked out before, else its seconds."""
        cdef Replica* replica = self.replicas + r
        cdef Slowest* slowest = self.slowest + replica.task
        cdef Entry* entry
        cdef double seconds
        if replica.scores:
            seconds = self.scoring_seconds(replica)
            self.write_leaves(log, replica, seconds, seconds)
        else:
            entry = self.entry_of(replica)
            if entry.low < entry.seconds and entry.seconds < slowest.slow.values[replica.leaf]:
                self.write_leaves(log, replica, entry.seconds, entry.first)
                return
            if entry.low < entry.seconds:
                train_seconds(
                    self.patterns + replica.pattern, self.num_kinds, self.slot_word + replica.first, &entry.seconds, &entry.first
                )
                entry.low = entry.seconds
            self.write_leaves(log, replica, entry.seconds, entry.first)
            self.least[replica.task] = fmax(self.least[replica.task], entry.seconds)
            self.least_first[replica.task] = fmax(self.least_first[replica.task], entry.first)
        put(log, &replica.unresolved, 0)

    cdef bint settle(self, Log* log, int task, bint bounds_do) noexcept nogil:
        """Work out replicas until those that decide are not mere bounds, or only bounds of long training pipelines: then False."""
        cdef int r = self.loose(task)
        while r >= 0 and not (bounds_do and self.replicas[r].bounded):
            self.sharpen(log, r)
            r = self.loose(task)
        return r < 0

    cdef void lower_bounds(self, int task, double* slow, double* first) noexcept nogil:
        """What a task's slowest replica takes at least."""
        cdef const Slowest* slowest = self.slowest + task
        cdef int r = self.loose(task)
        cdef Bounds bounds
        if r < 0:
            slow[0] = slowest.slow.top[0]
            first[0] = slowest.first.top[0] if slowest.scores_first else slow[0]
            return
        slow[0] = first[0] = 0.0
        if not self.replicas[r].bounded:  # not worked out, in a state that is infeasible anyway
            return
        train_bounds(self.patterns + self.replicas[r].pattern, self.num_kinds, self.slot_word + self.replicas[r].first, &bounds)
        slow[0] = bounds.low * (2.0 - BOUND_FACTOR)
        first[0] = (bounds.low + bounds.first) * (2.0 - BOUND_FACTOR)
