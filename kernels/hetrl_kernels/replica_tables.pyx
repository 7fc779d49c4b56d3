# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Replicas of a plan as tables: stages, the edges between blocks that they form, units inside blocks, times by kind of node."""

from libc.math cimport ceil

from hetrl_kernels.pipelines cimport rank_kinds, rank_links
from hetrl_kernels.tables cimport GENERATE, SCORE, TRAIN
from hetrl_kernels.timing cimport StageTime, score_stage, train_stage


cdef enum:
    SHORT_PIPELINE = 2  # stages; longer ones are worked out only where they may decide


cdef class ReplicaTables(Arena):
    """What stays as it is while blocks move, and zeros where `Replicas`, which documents the parameters, keeps what changes."""

    def __init__(self, Links links, plan):
        self.links = links
        self.t = links.t
        self.num_tasks = self.t.num_tasks
        self.num_kinds = max(self.t.node_kind) + 1
        self.read_strategies(plan)
        self.read_slots(plan)
        self.read_replicas(plan)

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
        self.touched = <Replica**>self.room(self.num_replicas * sizeof(Replica*))

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
            replica.bounded = self.strategies[task].kind == TRAIN and replica.num_stages > SHORT_PIPELINE and replica.prompts > 0
            self.slowest[task].bounded |= replica.bounded
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
        for e, ((block, following), stages) in enumerate(touches.items()):
            scoring = [stage for stage in stages if self.replicas[<int>stage[0]].scores]
            stages[:] = scoring + [stage for stage in stages if stage not in scoring]
            edges.append((block, following, number, number + len(scoring), number + len(stages)))
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
                replica.unordered = not pattern.ordered
                touch.replica = replica
                if replica.scores:
                    touch.where = self.passages + s
                    touch.by_kind, touch.by_link = pattern.forward + (s - replica.first) * self.num_kinds, pattern.send
                else:
                    touch.where = self.slot_word + s
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
