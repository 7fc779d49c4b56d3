# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Seconds of all replicas of a plan, kept up to date while blocks change nodes.

Replicas inside one block form units, looked up by the kind of node. Of those that span blocks, scoring ones are put together
from tables; training and generating ones are looked up by what their stages look like, and worked out once. The slowest
is the root of a tree of maxima. A long training pipeline enters it with an upper bound until more is known.
"""

from cython cimport final
from libc.math cimport ceil, floor

from hetrl_kernels.links cimport Place, link_of
from hetrl_kernels.maxima cimport change
from hetrl_kernels.pipelines cimport (
    LINK_BITS, LINK_MASK, Bounds, rank_kinds, rank_links, rough_bound, score_seconds, stage_word, train_bounds, train_seconds,
)
from hetrl_kernels.signatures cimport weight
from hetrl_kernels.tables cimport GENERATE, MAX_STAGES, SCORE, TRAIN, fmax, fmin
from hetrl_kernels.timing cimport Replica as Timed
from hetrl_kernels.timing cimport StageTime, generate_replica, score_stage, train_stage
from hetrl_kernels.undo cimport forget, put, put_int, put_number

cdef enum:
    SIGNATURE_BITS = 13
    SHORT_PIPELINE = 2  # stages; longer ones are worked out only where they may decide

cdef double BOUND_FACTOR = 1.0 + 1e-12
"""Upper bounds stay above the values they bound, whatever the last bits are."""


@final
cdef class Replicas(Arena):
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
        self.links = links
        self.t = links.t
        for place in range(MAX_STAGES + 1):
            self.weights[place] = weight(place)
        self.num_tasks = self.t.num_tasks
        self.num_kinds = max(self.t.node_kind) + 1
        self.read_strategies(plan)
        self.read_slots(plan)
        self.read_replicas(plan)
        self.signatures = Signatures(SIGNATURE_BITS, max([self.replicas[place].num_stages for place in range(self.num_replicas)]))

    # --- reading a plan -----------------------------------------------------------------------------------------

    def read_strategies(self, plan):
        cdef int task
        cdef Strategy* strategy
        for task, row in enumerate(plan.task_settings):
            strategy = self.strategies + task
            strategy.kind = self.t.task_kind[task]
            (
                strategy.degree_index, strategy.degree, strategy.shape, strategy.micro_batch, strategy.recompute, strategy.sharding,
                strategy.weights, strategy.optimizer, strategy.group, strategy.area,
            ) = row

    def read_slots(self, plan):
        self.num_blocks, self.num_slots, self.num_replicas = len(plan.block_node), len(plan.slot_block), len(plan.first_slot) - 1
        self.slot_layers = self.ints(plan.slot_layers)
        self.slot_need = self.doubles(plan.slot_need)
        self.slot_kv = self.doubles(plan.slot_kv)
        self.slot_block = self.ints(plan.slot_block)
        self.node = <int*>self.room(self.num_blocks * sizeof(int))
        self.slot_word = <int*>self.state(self.num_slots * sizeof(int))
        self.passages = <Passage*>self.state(self.num_slots * sizeof(Passage))
        self.touched = <int*>self.room(self.num_replicas * sizeof(int))

    def read_replicas(self, plan):
        """Replicas that span blocks become leaves; those inside one block form units by task."""
        cdef int r, s, b, task
        cdef Replica* replica
        block_of = [int(block) for block in plan.slot_block]
        layers = [int(number) for number in plan.slot_layers]
        firsts = [int(slot) for slot in plan.first_slot]
        needs, kv = list(plan.slot_need), list(plan.slot_kv)
        patterns, leaves, inside = {}, [[] for _ in range(self.num_tasks)], {}
        touches = {}
        self.replicas = <Replica*>self.room(self.num_replicas * sizeof(Replica))
        for r in range(self.num_replicas):
            replica = self.replicas + r
            task, replica.first, replica.num_stages = plan.replica_task[r], firsts[r], firsts[r + 1] - firsts[r]
            replica.task, replica.prompts, replica.useful = task, plan.replica_prompts[r], plan.replica_useful[r]
            replica.scores = self.strategies[task].kind == SCORE
            stages = range(firsts[r], firsts[r + 1])
            replica.pattern = patterns.setdefault((task, replica.prompts, *[layers[s] for s in stages]), len(patterns))
            blocks = [block_of[s] for s in stages]
            if len(set(blocks)) == 1:
                replica.leaf = -1
                inside.setdefault((blocks[0], task), []).append(r)
                continue
            replica.leaf = len(leaves[task])
            leaves[task].append(r)
            for s in stages:
                following = block_of[s + 1] if s + 1 < firsts[r + 1] else -1
                touches.setdefault((block_of[s], following), []).append((r, s))
        self.patterns = <Pattern*>self.room(len(patterns) * sizeof(Pattern))
        for r in range(self.num_replicas):
            if self.patterns[self.replicas[r].pattern].num_stages == 0:
                self.read_pattern(self.patterns + self.replicas[r].pattern, self.replicas + r)
        self.read_edges(touches)
        self.read_units(firsts, needs, kv, inside, leaves)
        self.make_maxima(leaves)

    def read_edges(self, dict touches):
        """Edges with their stages; of every block those whose link leaves or enters it, then the others."""
        cdef int e, r, s, number = 0
        cdef Replica* replica
        cdef Pattern* pattern
        cdef Touch* touch
        outer, inner = [[] for _ in range(self.num_blocks)], [[] for _ in range(self.num_blocks)]
        edges = []
        self.edge_word = <int*>self.state(len(touches) * sizeof(int))
        for e, ((block, following), stages) in enumerate(touches.items()):
            edges.append((block, following, e, number, number + len(stages)))
            number += len(stages)
            if following in (-1, block):
                inner[block].append(e)
            else:
                outer[block].append(e)
                outer[following].append(e)
        of_block = [first + second for first, second in zip(outer, inner)]
        self.first_edge = self.starts(of_block)
        self.first_inner = self.ints([self.first_edge[b] + len(first) for b, first in enumerate(outer)])
        self.edges = <Edge*>self.ints([each for block in of_block for e in block for each in edges[e]])
        self.touches = touch = <Touch*>self.room(number * sizeof(Touch))
        for stages in touches.values():
            for r, s in stages:
                replica = self.replicas + r
                pattern = self.patterns + replica.pattern
                touch.replica, touch.slot, touch.scores, touch.unordered = r, s, replica.scores, not pattern.ordered
                if replica.scores:
                    touch.by_kind, touch.by_link = pattern.forward + (s - replica.first) * self.num_kinds, pattern.send
                else:
                    touch.by_kind, touch.by_link = pattern.kind_rank, pattern.link_rank
                touch += 1

    def read_units(self, list firsts, list needs, list kv, dict inside, list leaves):
        """Units of all blocks, and the looks that they share."""
        cdef int i, r
        looks, look_replicas, first_look = {}, [], [0]
        units = [[] for _ in range(self.num_blocks)]
        for (block, task), members in inside.items():
            key = (task, *[
                (
                    self.replicas[<int>r].pattern, self.replicas[<int>r].useful,
                    *needs[firsts[r] : firsts[r + 1]], *kv[firsts[r] : firsts[r + 1]],
                )
                for r in members
            ])
            if key not in looks:
                looks[key] = len(looks)
                look_replicas += list(dict(zip(key[1:], members)).values())  # equal ones once
                first_look.append(len(look_replicas))
            units[block].append((task, len(leaves[task]), looks[key]))
            leaves[task].append(-1)
        self.first_unit = self.starts(units)
        self.units = <Unit*>self.ints([number for block in units for unit in block for number in unit])
        self.num_looks = len(looks)
        self.look_replicas = self.ints(look_replicas)
        self.first_look_replica = self.ints(first_look)
        self.look_slow = <double*>self.room(self.num_looks * self.num_kinds * sizeof(double))
        self.look_first = <double*>self.room(self.num_looks * self.num_kinds * sizeof(double))
        for i in range(self.num_looks * self.num_kinds):
            self.look_slow[i] = -1.0

    def make_maxima(self, list leaves):
        """Maxima of all tasks; ``leaves`` are numbers of replicas, or -1 for units."""
        cdef int task
        cdef Slowest* slowest
        for task in range(self.num_tasks):
            slowest = self.slowest + task
            slowest.slow = self.maxima(len(leaves[task]))
            slowest.scores_first = self.strategies[task].kind == TRAIN and self.t.task_role_is_actor[task]
            if slowest.scores_first:
                slowest.first = self.maxima(len(leaves[task]))
            slowest.replica_of = self.ints(leaves[task])

    cdef Maxima maxima(self, int number) except *:
        """Of numbers that are 0."""
        cdef Maxima made
        made.number = number
        made.values = <double*>self.state(number * sizeof(double))
        made.top = <double*>self.state(sizeof(double))
        made.place = <long long*>self.state(sizeof(long long))
        return made

    cdef void read_pattern(self, Pattern* pattern, const Replica* replica) except *:
        """Stage times of training and scoring replicas, on all kinds of nodes."""
        cdef int task = replica.task, j, node, kind, place, first = 0, num_places, layers
        cdef Strategy* strategy = self.strategies + task
        cdef StageTime time
        cdef double sequences = replica.prompts * self.t.task_sequences[task], fill, hidden
        pattern.num_stages = replica.num_stages
        num_places = pattern.num_stages * self.num_kinds
        pattern.kind_rank = <int*>self.ints(range(self.num_kinds))
        pattern.link_rank = <int*>self.room((1 + self.links.num_kinds) * sizeof(int))
        pattern.forward = <double*>self.room(3 * num_places * sizeof(double))
        pattern.backward = pattern.forward + num_places
        pattern.scoring = pattern.backward + num_places
        pattern.send = <double*>self.room(2 * (1 + self.links.num_kinds) * sizeof(double))
        pattern.ranked_send = pattern.send + 1 + self.links.num_kinds
        if strategy.kind == GENERATE or sequences == 0:
            for kind in range(1 + self.links.num_kinds):
                pattern.link_rank[kind] = kind
            return
        if strategy.kind == TRAIN:
            sequences /= self.t.num_mini_batches
        pattern.num_micro_batches = <int>ceil(sequences / strategy.micro_batch)
        if strategy.kind == TRAIN and self.t.task_role_is_actor[task]:
            pattern.num_scored = pattern.num_micro_batches * self.t.num_mini_batches
        fill = sequences / (pattern.num_micro_batches * strategy.micro_batch)
        hidden = strategy.micro_batch * (self.t.prompt_tokens + self.t.mean_response) * self.t.model_hidden_bytes[self.t.task_model[task]]
        for kind in range(self.links.num_kinds):
            pattern.send[1 + kind] = fill * (
                self.links.latency[self.links.latency_rank[kind]] + hidden / self.links.bandwidth[self.links.bandwidth_rank[kind]]
            )
        for j in range(pattern.num_stages):
            layers = self.slot_layers[replica.first + j]
            for node in range(self.t.num_nodes):
                place = j * self.num_kinds + self.t.node_kind[node]
                if pattern.forward[place] > 0:
                    continue
                if strategy.kind == SCORE:
                    pattern.forward[place] = fill * score_stage(
                        self.t, task, strategy.degree_index, strategy.degree, strategy.shape, strategy.micro_batch, node, first, layers
                    )
                else:
                    time = train_stage(
                        self.t, task, strategy.degree_index, strategy.degree, strategy.shape, strategy.micro_batch, strategy.recompute,
                        node, first, layers,
                    )
                    pattern.forward[place], pattern.backward[place] = fill * time.forward, fill * time.backward
                    pattern.scoring[place] = fill * time.scoring
            first += layers
        rank_links(pattern, self.links.num_kinds)
        if strategy.kind == TRAIN:
            rank_kinds(pattern, self.num_kinds)

    # --- moving blocks ------------------------------------------------------------------------------------------

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
        cdef Replica* replica
        cdef Passage* passage
        # locals, because the compiler must assume that what the log takes might be a pointer of this object
        cdef const int* nodes = self.node
        cdef const Place* places = self.links.places
        cdef const int* between = self.links.between
        cdef const Touch* touches = self.touches
        cdef int* edge_word = self.edge_word
        cdef int* slot_word = self.slot_word
        cdef int* touched = self.touched
        cdef Passage* passages = self.passages
        cdef Replica* replicas = self.replicas
        cdef double work, send
        cdef int num_groups = self.links.num_groups, turn = self.turn, num_touched = self.num_touched
        cdef int node, kind, link, word, before
        cdef bint slower, fresh = self.fresh
        while edge < end:
            node = nodes[edge.block]
            kind = places[node].kind
            link = 1 + link_of(places, between, num_groups, node, nodes[edge.next]) if edge.next >= 0 else 0
            word = stage_word(kind + 1, link)
            if word == edge_word[edge.number]:
                edge += 1
                continue
            put_int(log, edge_word + edge.number, word)
            touch, last = touches + edge.first_touch, touches + edge.end_touch
            edge += 1
            while touch < last:
                if touch.scores:
                    passage = passages + touch.slot
                    work, send = (<const double*>touch.by_kind)[kind], (<const double*>touch.by_link)[link]
                    slower = (work > passage.work) | (send > passage.send)
                    if passage.work != work:
                        put_number(log, &passage.work, work)
                    elif passage.send == send:
                        touch += 1
                        continue
                    put_number(log, &passage.send, send)
                else:
                    word = stage_word((<const int*>touch.by_kind)[kind], (<const int*>touch.by_link)[link])
                    before = slot_word[touch.slot]
                    if word == before:
                        touch += 1
                        continue
                    put_int(log, slot_word + touch.slot, word)
                    slower = touch.unordered | (word >> LINK_BITS > before >> LINK_BITS) | ((word & LINK_MASK) > (before & LINK_MASK))
                replica = replicas + touch.replica
                if replica.stamp != turn:
                    replica.stamp = turn
                    replica.slower = fresh
                    touched[num_touched] = touch.replica
                    num_touched += 1
                replica.slower |= slower
                touch += 1
        self.num_touched = num_touched

    cdef void refresh(self, Log* log) noexcept nogil:
        """Seconds of the replicas that were touched; of long training pipelines only bounds where no more is known."""
        cdef Entry* entry
        cdef Replica* replica
        cdef double seconds, first
        cdef int i
        cdef bint bounded
        for i in range(self.num_tasks):
            self.least[i] = self.least_first[i] = 0.0
        for i in range(self.num_touched):
            replica = self.replicas + self.touched[i]
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
        self.unresolved_tasks |= self.stale_tasks

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
                log, replica, slowest.slow.values[leaf] * BOUND_FACTOR, slowest.first.values[leaf] * BOUND_FACTOR if slowest.scores_first else 0.0
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
        cdef const Slowest* slowest = self.slowest + replica.task
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
            if generates or replica.num_stages <= SHORT_PIPELINE or pattern.num_micro_batches == 0:
                self.seconds_of(replica, nodes, words, tokens, &entry.seconds, &entry.first)
                entry.low = entry.seconds
                return entry
            rough_bound(pattern, self.num_kinds, words, &entry.seconds, &entry.first)
            entry.seconds *= BOUND_FACTOR
            entry.first *= BOUND_FACTOR
            entry.low = 0.0
        if entry.low == 0.0 and (entry.seconds >= slowest.slow.top[0] or (slowest.scores_first and entry.first >= slowest.first.top[0])):
            train_bounds(pattern, self.num_kinds, words, &bounds)
            entry.seconds = bounds.high if bounds.sure else bounds.high * BOUND_FACTOR
            entry.first = entry.seconds + bounds.first
            entry.low = bounds.high if bounds.sure else bounds.low * (2.0 - BOUND_FACTOR)
        return entry

    cdef void resolve(self, Log* log, int task) noexcept nogil:
        """Work out replicas until those that decide are not mere bounds; nothing to do since it was done last."""
        cdef Slowest* slowest = self.slowest + task
        cdef Entry* entry
        cdef double seconds
        cdef int r
        if not (self.unresolved_tasks >> task & 1):
            return
        self.unresolved_tasks &= ~(<unsigned int>1 << task)
        while True:
            r = slowest.replica_of[slowest.slow.place[0]]
            if (r < 0 or not self.replicas[r].unresolved) and slowest.scores_first:
                r = slowest.replica_of[slowest.first.place[0]]
            if r < 0 or not self.replicas[r].unresolved:
                return
            if self.replicas[r].scores:
                seconds = self.scoring_seconds(self.replicas + r)
                self.write_leaves(log, self.replicas + r, seconds, seconds)
            else:
                entry = self.entry_of(self.replicas + r)
                if entry.low < entry.seconds and entry.seconds < slowest.slow.values[self.replicas[r].leaf]:
                    self.write_leaves(log, self.replicas + r, entry.seconds, entry.first)
                    continue  # the bound is sharper than what was known
                if entry.low < entry.seconds:
                    train_seconds(
                        self.patterns + self.replicas[r].pattern, self.num_kinds, self.slot_word + self.replicas[r].first, &entry.seconds,
                        &entry.first,
                    )
                    entry.low = entry.seconds
                self.write_leaves(log, self.replicas + r, entry.seconds, entry.first)
            put(log, &self.replicas[r].unresolved, 0)
