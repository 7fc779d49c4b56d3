# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A whole plan on nodes, and its cost kept up to date while blocks of devices change places.

A block is a set of devices of one node that tensor groups hold together; strategies belong to blocks, and blocks move between
nodes. The cost is that of the readable evaluator: replicas by what they look like (`signatures`), gradient rings
(`train_rings`), transfers and weight syncs (`spread`), memory with the room for KV caches, host RAM, and the shortest
schedule (`orders`). Everything a move writes can be taken back (`undo`), and equals what a new state would hold.
"""

from libc.math cimport INFINITY, ceil, floor

from hetrl_kernels.memory cimport HOST, SHARED
from hetrl_kernels.schedule cimport MAX_GROUPS
from hetrl_kernels.pipelines cimport Pattern, score_seconds, slowest_link, train_seconds
from hetrl_kernels.signatures cimport Entry, mixed
from hetrl_kernels.tables cimport GENERATE, MAX_STAGES, PHASE_OPTIMIZER, PHASE_SYNC, SCORE, TRAIN, fmax, fmin
from hetrl_kernels.timing cimport Replica, StageTime, generate_replica, score_stage, train_stage
from hetrl_kernels.train_rings cimport Rings, change_members, make_rings, nothing_stale, reduce_seconds, refresh_nodes
from hetrl_kernels.undo cimport (
    LOG_ROOM, NumberWrite, WordWrite, highest, lowest_bit, put, put_number, raise_leaf, take_back, tally, top_leaf,
)

cdef enum:
    SIGNATURE_BITS = 16
    SHORT_PIPELINE = 2  # stages; longer ones are worked out only where they may decide

cdef double BOUND_FACTOR = 1.0 + 1e-12
"""Upper bounds stay above the values they bound, whatever the last bits are."""


cdef class PlanState(Arena):
    """A plan as blocks on nodes.

    Parameters
    ----------
    links
        The lowered job's links.
    plan
        Arrays of the plan (see `hetrl.search.plan_arrays.PlanArrays`).
    scale
        Ticks per second; by default such that the given plan's step is about 2^51 ticks.
    """

    def __init__(self, Links links, plan, double scale=0.0):
        cdef Tables t = links.t
        self.t = t
        self.links = links
        self.signatures = Signatures(SIGNATURE_BITS)
        self.orders = Orders()
        self.log.words = <WordWrite*>self.room(LOG_ROOM * sizeof(WordWrite))
        self.log.numbers = <NumberWrite*>self.room(LOG_ROOM * sizeof(NumberWrite))
        self.num_tasks = t.num_tasks
        self.num_kinds = max(t.node_kind) + 1
        self.read_blocks(plan)
        self.read_tasks(plan)
        self.read_replicas(plan)
        self.read_contributions(plan)
        self.scale = scale
        self.place_all(plan.block_node)

    cdef void* copy(self, object values, str kind) except NULL:
        """Values of a sequence as an array of ``int``, ``long long`` or ``double``."""
        cdef Py_ssize_t i, number = len(values)
        cdef size_t width = sizeof(int) if kind == "int" else sizeof(double)
        cdef void* found = self.room(number * width)
        if kind == "int":
            for i in range(number):
                (<int*>found)[i] = values[i]
        elif kind == "word":
            for i in range(number):
                (<long long*>found)[i] = values[i]
        else:
            for i in range(number):
                (<double*>found)[i] = values[i]
        return found

    # --- reading a plan -----------------------------------------------------------------------------------------

    def read_blocks(self, plan):
        self.num_blocks = len(plan.block_node)
        self.node = <int*>self.room(self.num_blocks * sizeof(int))
        self.size = <int*>self.copy(plan.block_size, "int")
        self.group = <int*>self.copy(plan.block_group, "int")
        self.types = <long long*>self.copy(plan.block_types, "word")
        self.need = <double*>self.copy(plan.block_need, "double")
        self.host = <long long*>self.copy(plan.block_host, "word")
        self.num_groups = max(max(plan.block_group), 0) + 1
        self.host_used = <long long*>self.state(self.t.num_nodes * sizeof(long long))
        self.num_over = <long long*>self.state(sizeof(long long))
        self.total = <double*>self.state(sizeof(double))

    def read_tasks(self, plan):
        cdef int task
        cdef TaskState* state
        for task, row in enumerate(plan.task_settings):
            state = self.tasks + task
            state.kind = self.t.task_kind[task]
            (
                state.degree_index, state.degree, state.shape, state.micro_batch, state.recompute, state.sharding, state.weights,
                state.optimizer, state.group, state.area,
            ) = row
            state.rings = state.moved = state.step = -1

    def read_replicas(self, plan):
        """Replicas that span blocks become leaves; those inside one block form units by task."""
        cdef int r, s, b, task, leaf, first = 0
        cdef TaskState* state
        slot_block = [int(block) for block in plan.slot_block]
        layers = [int(number) for number in plan.slot_layers]
        firsts = [int(slot) for slot in plan.first_slot]
        needs, kv = list(plan.slot_need), list(plan.slot_kv)
        self.num_slots, self.num_replicas = len(slot_block), len(firsts) - 1
        self.replica_task = <int*>self.copy(plan.replica_task, "int")
        self.replica_prompts = <int*>self.copy(plan.replica_prompts, "int")
        self.replica_useful = <double*>self.copy(plan.replica_useful, "double")
        self.replica_first = <int*>self.copy(firsts, "int")
        self.slot_layers = <int*>self.copy(layers, "int")
        self.slot_need = <double*>self.copy(needs, "double")
        self.slot_kv = <double*>self.copy(kv, "double")
        self.slot_node = <int*>self.room(self.num_slots * sizeof(int))
        self.slot_key = <long long*>self.state(self.num_slots * sizeof(long long))
        self.replica_hash = <long long*>self.state(self.num_replicas * sizeof(long long))
        self.unresolved = <long long*>self.state(self.num_replicas * sizeof(long long))
        self.touched = <int*>self.room(self.num_replicas * sizeof(int))
        self.stamp = <int*>self.room(self.num_replicas * sizeof(int))
        patterns, looks, look_replicas, first_look = {}, {}, [], [0]
        leaves = [0] * self.num_tasks
        replica_pattern, replica_leaf, slot_replica = [], [-1] * self.num_replicas, [-1] * self.num_slots
        units = [[] for _ in range(self.num_blocks)]
        spanning = [[] for _ in range(self.num_blocks)]
        inside = {}
        for r in range(self.num_replicas):
            task, first, last = self.replica_task[r], firsts[r], firsts[r + 1]
            key = (task, self.replica_prompts[r], *layers[first:last])
            replica_pattern.append(patterns.setdefault(key, len(patterns)))
            if len(set(slot_block[first:last])) == 1:
                inside.setdefault((slot_block[first], task), []).append(r)
                continue
            replica_leaf[r] = leaves[task]
            leaves[task] += 1
            for s in range(first, last):
                slot_replica[s] = r
                spanning[slot_block[s]].append(s)
        for (b, task), members in inside.items():
            key = (task, *[
                (replica_pattern[r], self.replica_useful[r], *needs[firsts[r] : firsts[r + 1]], *kv[firsts[r] : firsts[r + 1]])
                for r in members
            ])
            if key not in looks:
                looks[key] = len(looks)
                look_replicas += list(dict(zip(key[1:], members)).values())  # equal ones once
                first_look.append(len(look_replicas))
            units[b].append((task, leaves[task], looks[key]))
            leaves[task] += 1
        self.replica_pattern = <int*>self.copy(replica_pattern, "int")
        self.patterns = <Pattern*>self.room(len(patterns) * sizeof(Pattern))
        for r in range(self.num_replicas):
            if self.patterns[self.replica_pattern[r]].num_stages == 0:
                self.read_pattern(self.patterns + self.replica_pattern[r], r)
        self.replica_leaf = <int*>self.copy(replica_leaf, "int")
        self.slot_replica = <int*>self.copy(slot_replica, "int")
        self.num_looks = len(looks)
        self.look_replicas = <int*>self.copy(look_replicas, "int")
        self.first_look_replica = <int*>self.copy(first_look, "int")
        self.look_slow = <double*>self.room(self.num_looks * self.num_kinds * sizeof(double))
        self.look_first = <double*>self.room(self.num_looks * self.num_kinds * sizeof(double))
        for leaf in range(self.num_looks * self.num_kinds):
            self.look_slow[leaf] = -1.0
        self.first_unit = self.starts(units)
        self.units = <Unit*>self.copy([number for block in units for unit in block for number in unit], "int")
        self.first_slot = self.starts(spanning)
        self.slots = <int*>self.copy([slot for block in spanning for slot in block], "int")
        for task in range(self.num_tasks):
            state = self.tasks + task
            state.tree = 1
            while state.tree < leaves[task]:
                state.tree *= 2
            state.slow = <double*>self.state(2 * state.tree * sizeof(double))
            if state.kind == TRAIN and self.t.task_role_is_actor[task]:
                state.first = <double*>self.state(2 * state.tree * sizeof(double))
            state.replica_of = <int*>self.copy([-1] * state.tree, "int")
        for r in range(self.num_replicas):
            if replica_leaf[r] >= 0:
                self.tasks[self.replica_task[r]].replica_of[<int>replica_leaf[r]] = r

    cdef void read_pattern(self, Pattern* pattern, int replica) except *:
        """Stage times of training and scoring replicas, on all kinds of nodes."""
        cdef int task = self.replica_task[replica], s, j = 0, node, kind, first = 0, num_slots
        cdef TaskState* state = self.tasks + task
        cdef StageTime time
        cdef double sequences = self.replica_prompts[replica] * self.t.task_sequences[task], fill, hidden
        pattern.num_stages = self.replica_first[replica + 1] - self.replica_first[replica]
        if state.kind == GENERATE or sequences == 0:
            return
        if state.kind == TRAIN:
            sequences /= self.t.num_mini_batches
        pattern.num_micro_batches = <int>ceil(sequences / state.micro_batch)
        if state.kind == TRAIN and self.t.task_role_is_actor[task]:
            pattern.num_scored = pattern.num_micro_batches * self.t.num_mini_batches
        fill = sequences / (pattern.num_micro_batches * state.micro_batch)
        hidden = state.micro_batch * (self.t.prompt_tokens + self.t.mean_response) * self.t.model_hidden_bytes[self.t.task_model[task]]
        num_slots = pattern.num_stages * self.num_kinds
        pattern.forward = <double*>self.room(3 * num_slots * sizeof(double))
        pattern.backward = pattern.forward + num_slots
        pattern.scoring = pattern.backward + num_slots
        pattern.send = <double*>self.room((1 + self.links.num_kinds) * sizeof(double))
        for kind in range(self.links.num_kinds):
            pattern.send[1 + kind] = fill * (
                self.links.latency[self.links.latency_rank[kind]] + hidden / self.links.bandwidth[self.links.bandwidth_rank[kind]]
            )
        for j in range(pattern.num_stages):
            s = self.replica_first[replica] + j
            for node in range(self.t.num_nodes):
                kind = j * self.num_kinds + self.t.node_kind[node]
                if pattern.forward[kind] > 0:
                    continue
                if state.kind == SCORE:
                    pattern.forward[kind] = fill * score_stage(
                        self.t, task, state.degree_index, state.degree, state.shape, state.micro_batch, node, first, self.slot_layers[s]
                    )
                else:
                    time = train_stage(
                        self.t, task, state.degree_index, state.degree, state.shape, state.micro_batch, state.recompute, node, first,
                        self.slot_layers[s],
                    )
                    pattern.forward[kind], pattern.backward[kind] = fill * time.forward, fill * time.backward
                    pattern.scoring[kind] = fill * time.scoring
            first += self.slot_layers[s]

    cdef int* starts(self, list by_block) except NULL:
        """First entry of every block, and the number of all."""
        cdef int number = 0
        firsts = [0]
        for each in by_block:
            number += len(each)
            firsts.append(number)
        return <int*>self.copy(firsts, "int")

    def read_contributions(self, plan):
        """What a block adds to rings, areas, tallies and syncs, wherever it stands."""
        cdef int task, r, s, j, i, first, size = self.t.bytes_per_element
        cdef TaskState* state
        cdef double moved
        replicas = [[] for _ in range(self.num_tasks)]
        for r in range(self.num_replicas):
            replicas[self.replica_task[r]].append(r)
        members = [{} for _ in range(self.num_blocks)]
        areas = [set() for _ in range(self.num_blocks)]
        rows = [set() for _ in range(self.num_blocks)]
        received = [{} for _ in range(self.num_blocks)]
        self.rings = <Rings*>self.room(self.num_tasks * sizeof(Rings))
        tallies = []
        block_of = [int(block) for block in plan.slot_block]
        for task in range(self.num_tasks):
            state = self.tasks + task
            moved_rows = {}
            for r in replicas[task]:
                for j, s in enumerate(range(self.replica_first[r], self.replica_first[r + 1])):
                    areas[block_of[s]].add(state.area)
                    if plan.slot_moved[s] > 0:
                        moved_rows.setdefault(float(plan.slot_moved[s]), set()).add(block_of[s])
                    if state.kind == TRAIN:
                        key = (self.num_rings, j)
                        members[block_of[s]][key] = members[block_of[s]].get(key, 0) + 1
            if moved_rows:
                state.moved = self.add_rows(
                    tallies, rows, moved_rows, lambda each, node: each / self.t.node_host_link[node]
                )
            if state.kind == TRAIN:
                self.read_rings(plan, task, replicas[task], members, tallies, rows)
        pairs, self_syncs = {}, []
        needs = []
        for i in range(self.num_tasks):
            place = 0
            for j in range(i):
                if not self.t.task_needs[i, j]:
                    continue
                if self.tasks[i].area != self.tasks[j].area:
                    pair = pairs.setdefault((self.tasks[j].area, self.tasks[i].area), len(pairs))
                    needs.append((i, place, pair, self.t.transfer_bytes[i, j]))
                place += 1
        local, kinds, activities = [], [], []
        for j in range(self.num_tasks):
            for i in range(self.num_tasks):
                if (
                    self.tasks[j].kind != TRAIN or self.tasks[i].kind == TRAIN or self.t.task_role[i] != self.t.task_role[j]
                    or self.tasks[i].weights == SHARED
                ):
                    continue
                local_rows, all_blocks = {}, set()
                for r in replicas[i]:
                    for s in range(self.replica_first[r], self.replica_first[r + 1]):
                        each = float(plan.slot_bytes[s])
                        local_rows.setdefault(each, set()).add(block_of[s])
                        all_blocks.add(block_of[s])
                        received[block_of[s]][len(self_syncs)] = (
                            received[block_of[s]].get(len(self_syncs), 0.0) + each * self.tasks[i].degree
                        )
                local.append(self.add_rows(
                    tallies, rows, local_rows, lambda each, node: self.t.link_latency[node, node] + each / self.t.link_bandwidth[node, node]
                ))
                kinds.append(self.add_rows(tallies, rows, {0.0: all_blocks}, lambda each, node: self.t.node_type[node]))
                activities.append((j, i))
                self_syncs.append((self.tasks[j].area, self.tasks[i].area, self.t.transfer_weights[i]))
        self.spread = Spread(self.t, self.links, max([0] + [self.tasks[i].area for i in range(self.num_tasks)]) + 1, list(pairs), self_syncs)
        self.sync_local, self.sync_types = <int*>self.copy(local, "int"), <int*>self.copy(kinds, "int")
        self.num_needs = len(needs)
        self.needs = <Need*>self.room(self.num_needs * sizeof(Need))
        for i, (task, place, pair, num_bytes) in enumerate(needs):
            self.needs[i].activity, self.needs[i].position, self.needs[i].pair = task, place, pair
            self.needs[i].num_bytes = num_bytes
        self.read_work(activities)
        self.write_contributions(members, areas, rows, received, tallies)

    cdef int add_rows(self, list tallies, list rows, dict blocks_of, value) except -1:
        """A new tally with a row for every key of ``blocks_of``; ``value`` gives a row's value on a node."""
        cdef int number = len(tallies)
        nodes = {}
        for node in range(self.t.num_nodes - 1, -1, -1):
            nodes[self.t.node_kind[node]] = node
        table = [[value(each, nodes[kind]) if kind in nodes else 0.0 for kind in range(self.num_kinds)] for each in blocks_of]
        tallies.append(table)
        for row, blocks in enumerate(blocks_of.values()):
            for block in blocks:
                rows[block].add((number, row))
        return number

    def read_rings(self, plan, int task, list replicas, list members, list tallies, list rows):
        """Rings of a training task; its optimizer steps as a tally, unless they run on the hosts."""
        cdef TaskState* state = self.tasks + task
        cdef int r, j, most = 0, micro_batches = 0
        cdef Rings* rings
        layers = [self.slot_layers[s] for s in range(self.replica_first[replicas[0]], self.replica_first[replicas[0] + 1])]
        for r in replicas:
            micro_batches = max(micro_batches, self.patterns[self.replica_pattern[r]].num_micro_batches)
        for j in range(self.t.num_nodes):
            most = max(most, self.t.node_devices[j] // state.degree)
        state.rings = self.num_rings
        rings = self.rings + self.num_rings
        self.num_rings += 1
        make_rings(
            rings, self, self.t, self.links, self.t.task_model[task], layers, state.degree, len(replicas), state.sharding, most,
            state.optimizer == HOST,
        )
        rings.num_micro_batches = micro_batches
        if state.optimizer == HOST:
            return
        totals = {}
        for block, counts in enumerate(members):
            for number, j in counts:
                if number == state.rings:
                    total = rings.states[<int>j].weights + rings.states[<int>j].gradients + rings.states[<int>j].optimizer
                    totals.setdefault(total, set()).add(block)
        state.step = self.add_rows(tallies, rows, totals, self.step_seconds)

    def step_seconds(self, double total, int node):
        """Seconds of an optimizer step on a device."""
        cdef int kind = self.t.node_type[node]
        return self.t.calibration[kind, PHASE_OPTIMIZER, 0] * (total / self.t.type_bandwidth[kind]) + self.t.calibration[kind, PHASE_OPTIMIZER, 1]

    def write_contributions(self, list members, list areas, list rows, list received, list tallies):
        cdef int i, j, number
        cdef Values* values
        kinds = {}
        block_kind = []
        for i in range(self.num_blocks):
            key = (
                self.size[i], self.need[i], self.host[i], self.types[i], tuple(sorted(members[i].items())), tuple(sorted(areas[i])),
                tuple(sorted(rows[i])), tuple(sorted(received[i].items())),
            )
            block_kind.append(kinds.setdefault(key, len(kinds)))
        self.kind = <int*>self.copy(block_kind, "int")
        self.first_members = self.starts(members)
        self.members = <Members*>self.copy([each for block in members for (r, j), n in block.items() for each in (r, j, n)], "int")
        self.first_area = self.starts(areas)
        self.areas = <int*>self.copy([area for block in areas for area in sorted(block)], "int")
        self.first_row = self.starts(rows)
        self.rows = <Row*>self.copy([each for block in rows for row in sorted(block) for each in row], "int")
        self.first_bytes = self.starts(received)
        self.bytes_of = <Bytes*>self.room(self.first_bytes[self.num_blocks] * sizeof(Bytes))
        number = 0
        for block in received:
            for sync, num_bytes in block.items():
                self.bytes_of[number].sync, self.bytes_of[number].number = sync, num_bytes
                number += 1
        self.num_values = len(tallies)
        self.values = <Values*>self.room(self.num_values * sizeof(Values))
        for i, table in enumerate(tallies):
            values = self.values + i
            ordered = sorted({value for row in table for value in row})
            place = {value: rank for rank, value in enumerate(ordered)}
            values.value = <double*>self.copy(ordered, "double")
            values.rank = <int*>self.copy([place[value] for row in table for value in row], "int")
            values.tally.words = (len(ordered) + 63) // 64
            values.tally.count = <long long*>self.state(len(ordered) * sizeof(long long))
            values.tally.bits = <long long*>self.state(values.tally.words * sizeof(long long))

    def read_work(self, list syncs):
        """Tasks, then weight syncs, as activities; ``syncs`` are pairs of a training task and a target."""
        cdef int i, j, number
        cdef Orders orders = self.orders
        self.sync_activity = <int*>self.room(len(syncs) * sizeof(int))
        for i in range(self.num_tasks):
            orders.work.first_group[i] = orders.work.second_group[i] = self.tasks[i].group
            orders.work.num_needs[i] = 0
            for j in range(i):
                if self.t.task_needs[i, j]:
                    orders.work.needs[i][orders.work.num_needs[i]] = j
                    orders.work.num_needs[i] += 1
        for number, (source, target) in enumerate(syncs):
            i = self.num_tasks + number
            self.sync_activity[number] = i
            orders.work.first_group[i] = min(self.tasks[<int>source].group, self.tasks[<int>target].group)
            orders.work.second_group[i] = max(self.tasks[<int>source].group, self.tasks[<int>target].group)
            orders.work.num_needs[i] = 2
            orders.work.needs[i][0], orders.work.needs[i][1] = min(source, target), max(source, target)
        orders.work.number = self.num_tasks + len(syncs)
        orders.work.num_groups = self.num_groups
        orders.start()

    # --- moving blocks ------------------------------------------------------------------------------------------

    def place_all(self, nodes):
        """Forget everything, and put every block on a node; the first time also choose the length of a tick."""
        cdef int b, s, r, j
        cdef double seconds = 0.0
        self.log.on = False
        self.wipe()
        self.spread.empty()
        self.signatures.clear()
        for b in range(self.num_rings):
            nothing_stale(self.rings + b)
        for b in range(self.num_blocks):
            self.node[b] = nodes[b]
        self.stale_tasks = (<unsigned int>1 << self.num_tasks) - 1
        self.transfers_stale = self.schedule_stale = True
        self.turn = 1
        for b in range(self.num_blocks):
            self.settle(b, self.node[b], 1)
            for j in range(self.first_unit[b], self.first_unit[b + 1]):
                self.write_unit(self.units + j, self.node[b])
            for j in range(self.first_slot[b], self.first_slot[b + 1]):
                self.slot_node[self.slots[j]] = self.node[b]
        for r in range(self.num_replicas):
            if self.replica_leaf[r] < 0:
                continue
            self.replica_hash[r] = <long long>mixed(self.replica_pattern[r], 1 << 20)
            for s in range(self.replica_first[r], self.replica_first[r + 1]):
                self.slot_key[s] = self.key_of(s, r)
                self.replica_hash[r] ^= <long long>mixed(<unsigned long long>self.slot_key[s], s - self.replica_first[r])
            self.touched[self.num_touched] = r
            self.num_touched += 1
        self.refresh_replicas()
        if self.scale == 0.0:
            for j in range(self.num_tasks):
                seconds += self.task_seconds(j)
            self.scale = 1.0
            while 0 < seconds < INFINITY and seconds * self.scale < <double>(<long long>1 << 51):
                self.scale *= 2.0
        self.unit = 1.0 / self.scale
        self.stale_tasks = (<unsigned int>1 << self.num_tasks) - 1
        self.cost(INFINITY)
        self.log.on = True

    cdef long long key_of(self, int slot, int replica) noexcept nogil:
        """What a stage looks like: the kind of its node, and the link to the next stage."""
        cdef int node = self.slot_node[slot]
        cdef long long link = 0
        if slot + 1 < self.replica_first[replica + 1]:
            link = 1 + self.t.link_kind[node, self.slot_node[slot + 1]]
        return (<long long>self.t.node_kind[node] << 32) | link

    cdef void write_unit(self, const Unit* unit, int node) noexcept nogil:
        cdef TaskState* task = self.tasks + unit.task
        cdef int place = unit.look * self.num_kinds + self.t.node_kind[node]
        if self.look_slow[place] < 0:
            self.fill_look(unit.look, node)
        raise_leaf(&self.log, task.slow, task.tree, unit.leaf, self.look_slow[place])
        if task.first != NULL:
            raise_leaf(&self.log, task.first, task.tree, unit.leaf, self.look_first[place])
        self.stale_tasks |= <unsigned int>1 << unit.task

    cdef void fill_look(self, int look, int node) noexcept nogil:
        """Slowest replica of a unit on nodes of one kind."""
        cdef int place = look * self.num_kinds + self.t.node_kind[node], i, j, r
        cdef int[MAX_STAGES] nodes
        cdef long long[MAX_STAGES] key
        cdef double slow = 0.0, first = 0.0, replica_slow, replica_first
        for i in range(self.first_look_replica[look], self.first_look_replica[look + 1]):
            r = self.look_replicas[i]
            for j in range(self.replica_first[r + 1] - self.replica_first[r]):
                nodes[j] = node
                key[j] = (<long long>self.t.node_kind[node] << 32) | (1 + self.t.link_kind[node, node])
            key[self.replica_first[r + 1] - self.replica_first[r] - 1] = <long long>self.t.node_kind[node] << 32
            self.time_replica(r, nodes, key, self.tokens_of(r, nodes), &replica_slow, &replica_first)
            slow = fmax(slow, replica_slow)
            first = fmax(first, replica_first)
        self.look_slow[place] = slow
        self.look_first[place] = first

    cdef double tokens_of(self, int replica, const int* nodes) noexcept nogil:
        """Tokens in an engine's KV pools: what is useful, or what the fullest device has room for."""
        cdef double fits = self.replica_useful[replica]
        cdef int j, first = self.replica_first[replica]
        if self.tasks[self.replica_task[replica]].kind != GENERATE:
            return 0.0
        for j in range(self.replica_first[replica + 1] - first):
            fits = fmin(fits, (self.t.node_limit[nodes[j]] - self.slot_need[first + j]) / self.slot_kv[first + j])
        return floor(fmax(0.0, fits))

    cdef void time_replica(
        self, int replica, const int* nodes, const long long* key, double tokens, double* slow, double* first) noexcept nogil:
        cdef Replica each
        cdef int number = self.replica_task[replica]
        cdef TaskState* task = self.tasks + number
        if task.kind == TRAIN:
            train_seconds(self.patterns + self.replica_pattern[replica], self.num_kinds, key, slow, first)
            return
        if task.kind == SCORE:
            slow[0] = score_seconds(self.patterns + self.replica_pattern[replica], self.num_kinds, key)
        else:
            each.num_stages = self.replica_first[replica + 1] - self.replica_first[replica]
            each.node = nodes
            each.layers = self.slot_layers + self.replica_first[replica]
            slow[0] = generate_replica(
                self.t, number, task.degree_index, task.degree, task.micro_batch, &each, self.replica_prompts[replica], tokens
            )
        first[0] = slow[0]

    cdef void shift(self, int block, int target) noexcept nogil:
        """Put a block on another node, as far as its own replicas go."""
        cdef int i, r, before = self.node[block]
        self.node[block] = target
        if self.t.node_kind[before] != self.t.node_kind[target]:
            for i in range(self.first_unit[block], self.first_unit[block + 1]):
                self.write_unit(self.units + i, target)
        for i in range(self.first_slot[block], self.first_slot[block + 1]):
            self.slot_node[self.slots[i]] = target

    cdef void settle(self, int block, int node, int sign) noexcept nogil:
        """Add what a block brings to a node, or take it away."""
        cdef int i
        cdef Log* log = &self.log
        cdef Values* values
        cdef bint over = self.host_used[node] > self.t.node_host_ram[node]
        put(log, self.host_used + node, self.host_used[node] + sign * self.host[block])
        if over != (self.host_used[node] > self.t.node_host_ram[node]):
            put(log, self.num_over, self.num_over[0] + (-1 if over else 1))
        if self.need[block] > self.t.node_limit[node]:
            put(log, self.num_over, self.num_over[0] + sign)
        for i in range(self.first_members[block], self.first_members[block + 1]):
            change_members(
                self.t, self.links, self.rings + self.members[i].rings, log, self.members[i].stage, node, sign * self.members[i].number
            )
        for i in range(self.first_area[block], self.first_area[block + 1]):
            self.spread.change(log, self.areas[i], node, sign)
        for i in range(self.first_row[block], self.first_row[block + 1]):
            values = self.values + self.rows[i].tally
            tally(log, &values.tally, values.rank[self.rows[i].row * self.num_kinds + self.t.node_kind[node]], sign)
        for i in range(self.first_bytes[block], self.first_bytes[block + 1]):
            self.spread.receive(log, self.bytes_of[i].sync, node, sign * self.bytes_of[i].number)
        self.transfers_stale = True
        for i in range(self.num_tasks):
            if self.tasks[i].group == self.group[block]:
                self.stale_tasks |= <unsigned int>1 << i

    cdef void touch(self, int block) noexcept nogil:
        """Note the replicas of a block's stages, whose keys change."""
        cdef int i, s, r
        cdef long long key
        for i in range(self.first_slot[block], self.first_slot[block + 1]):
            r = self.slot_replica[self.slots[i]]
            for s in range(self.slots[i], self.slots[i] - 2, -1):
                if s < self.replica_first[r]:
                    break
                key = self.key_of(s, r)
                if key == self.slot_key[s]:
                    continue
                if self.tasks[self.replica_task[r]].kind != SCORE:
                    put(
                        &self.log, self.replica_hash + r,
                        self.replica_hash[r]
                        ^ <long long>(mixed(<unsigned long long>self.slot_key[s], s - self.replica_first[r])
                        ^ mixed(<unsigned long long>key, s - self.replica_first[r])),
                    )
                put(&self.log, self.slot_key + s, key)
                if self.stamp[r] != self.turn:
                    self.stamp[r] = self.turn
                    self.touched[self.num_touched] = r
                    self.num_touched += 1

    cdef void refresh_replicas(self) noexcept nogil:
        """Seconds of the replicas that were touched; of long training pipelines only an upper bound so far."""
        cdef Entry* entry
        cdef TaskState* task
        cdef double seconds
        cdef int i, r, first, link
        for i in range(self.num_touched):
            r = self.touched[i]
            task = self.tasks + self.replica_task[r]
            first = self.replica_first[r]
            self.stale_tasks |= <unsigned int>1 << self.replica_task[r]
            if task.kind == SCORE:  # faster worked out than looked up
                seconds = score_seconds(self.patterns + self.replica_pattern[r], self.num_kinds, self.slot_key + first)
                self.write_leaves(r, seconds, seconds)
                continue
            link = 0
            if task.kind == TRAIN and self.replica_first[r + 1] - first > SHORT_PIPELINE:
                link = slowest_link(self.patterns + self.replica_pattern[r], self.slot_key + first)
            if link:
                entry = self.upper_bound(r, link)
                self.write_leaves(r, entry.seconds * BOUND_FACTOR, entry.first * BOUND_FACTOR)
            else:
                entry = self.entry_of(r, self.tokens_of(r, self.slot_node + first))
                self.write_leaves(r, entry.seconds, entry.first)
            put(&self.log, self.unresolved + r, link > 0)
        self.num_touched = 0

    cdef void write_leaves(self, int replica, double slow, double first) noexcept nogil:
        cdef TaskState* task = self.tasks + self.replica_task[replica]
        raise_leaf(&self.log, task.slow, task.tree, self.replica_leaf[replica], slow)
        if task.first != NULL:
            raise_leaf(&self.log, task.first, task.tree, self.replica_leaf[replica], first)

    cdef Entry* entry_of(self, int replica, double tokens) noexcept nogil:
        """Seconds of a replica, worked out where it looks like none before."""
        cdef int first = self.replica_first[replica]
        cdef Entry* entry = self.signatures.find(
            <unsigned long long>self.replica_hash[replica] ^ mixed(<unsigned long long>tokens, 1 << 21), self.replica_pattern[replica],
            tokens, <unsigned long long*>self.slot_key + first, self.replica_first[replica + 1] - first,
        )
        if not entry.known:
            self.time_replica(replica, self.slot_node + first, self.slot_key + first, tokens, &entry.seconds, &entry.first)
            entry.known = True
        return entry

    cdef Entry* upper_bound(self, int replica, int link) noexcept nogil:
        """Seconds of a training replica if all its links were of the slowest kind: few replicas differ in these."""
        cdef int first = self.replica_first[replica], stages = self.replica_first[replica + 1] - first, j
        cdef long long[MAX_STAGES] key
        cdef unsigned long long hash = mixed(self.replica_pattern[replica], 1 << 20)
        cdef Entry* entry
        for j in range(stages):
            key[j] = ((self.slot_key[first + j] >> 32) << 32) | (link if j < stages - 1 else 0)
            hash ^= mixed(<unsigned long long>key[j], j)
        entry = self.signatures.find(hash ^ mixed(0, 1 << 21), self.replica_pattern[replica], 0.0, <unsigned long long*>key, stages)
        if not entry.known:
            train_seconds(self.patterns + self.replica_pattern[replica], self.num_kinds, key, &entry.seconds, &entry.first)
            entry.known = True
        return entry

    cdef void resolve(self, int task) noexcept nogil:
        """Work out replicas until those that decide are not mere bounds."""
        cdef TaskState* state = self.tasks + task
        cdef Entry* entry
        cdef int r
        while True:
            r = state.replica_of[top_leaf(state.slow, state.tree)]
            if (r < 0 or not self.unresolved[r]) and state.first != NULL:
                r = state.replica_of[top_leaf(state.first, state.tree)]
            if r < 0 or not self.unresolved[r]:
                return
            entry = self.entry_of(r, 0.0)
            self.write_leaves(r, entry.seconds, entry.first)
            put(&self.log, self.unresolved + r, 0)

    # --- the cost -----------------------------------------------------------------------------------------------

    cdef double task_seconds(self, int task) noexcept nogil:
        cdef TaskState* state = self.tasks + task
        cdef double seconds, first
        cdef Rings* rings
        if state.kind == TRAIN:
            self.resolve(task)
        seconds = state.slow[1]
        if state.kind == TRAIN:
            rings = self.rings + state.rings
            refresh_nodes(self.t, rings, &self.log)
            first = state.first[1] if state.first != NULL else seconds
            seconds = first + (self.t.num_updates - 1) * seconds
            seconds += self.t.num_updates * (rings.optimizer[1] if rings.on_host else self.largest(state.step))
            seconds += self.t.num_updates * reduce_seconds(self.t, self.links, rings, &self.log)
        if state.moved >= 0:
            seconds += self.largest(state.moved)
        return seconds

    cdef double largest(self, int number) noexcept nogil:
        cdef int rank = highest(&self.values[number].tally)
        return self.values[number].value[rank] if rank >= 0 else 0.0

    cdef void write_ticks(self, long long* where, double seconds) noexcept nogil:
        cdef long long ticks = <long long>(seconds * self.scale + 0.5)
        if ticks != where[0]:
            put(&self.log, where, ticks)
            self.schedule_stale = True

    cdef double cost(self, double limit) noexcept nogil:
        """Seconds of a step or period after the moves so far; infinite if infeasible or certainly above ``limit``.

        What could not be worked out stays stale.
        """
        cdef int i
        cdef double seconds
        self.outcome = INFEASIBLE
        if self.num_over[0] > 0:
            return INFINITY
        for i in range(self.num_tasks):
            if self.stale_tasks >> i & 1:
                seconds = self.task_seconds(i)
                if not seconds * self.scale < <double>(<long long>1 << 60):
                    return INFINITY
                self.write_ticks(self.orders.work.seconds + i, seconds)
        self.outcome = ABOVE_LIMIT
        # a group's load holds its weight syncs, which a move may shorten: it is a bound only where they are known
        if self.schedule_stale and not self.transfers_stale and self.orders.largest_load() * self.unit > limit:
            return INFINITY
        if self.transfers_stale:
            for i in range(self.num_needs):
                self.write_ticks(
                    &self.orders.work.transfer[self.needs[i].activity][self.needs[i].position],
                    self.spread.transfer(&self.log, self.needs[i].pair, self.needs[i].num_bytes),
                )
            for i in range(self.spread.num_syncs):
                self.write_ticks(self.orders.work.seconds + self.sync_activity[i], self.sync_seconds(i))
        seconds = self.step(limit) if self.schedule_stale else self.total[0]
        if seconds > limit:
            return INFINITY
        self.outcome = COSTED
        put_number(&self.log, self.total, seconds)
        self.stale_tasks = 0
        self.transfers_stale = self.schedule_stale = False
        return seconds

    cdef double sync_seconds(self, int sync) noexcept nogil:
        """A weight sync between nodes and inside them, by the slowest device type that receives."""
        cdef Values* types = self.values + self.sync_types[sync]
        cdef double seconds = self.spread.network(&self.log, sync) + self.largest(self.sync_local[sync]), worst = 0.0
        cdef unsigned long long word
        cdef int i, kind
        for i in range(types.tally.words):
            word = types.tally.bits[i]
            while word:
                kind = <int>types.value[64 * i + lowest_bit(word)]
                word &= word - 1
                worst = fmax(worst, self.t.calibration[kind, PHASE_SYNC, 0] * seconds + self.t.calibration[kind, PHASE_SYNC, 1])
        return worst

    cdef double step(self, double limit) noexcept nogil:
        cdef double load, loop
        if self.t.staleness > 0:
            load = self.orders.largest_load() * self.unit
            loop = self.orders.longest_path() * self.unit / (1 + self.t.staleness)
            return fmax(load, loop)
        if self.orders.bound() * self.unit > limit:
            return INFINITY
        return self.orders.shortest() * self.unit

    # --- proposals ----------------------------------------------------------------------------------------------

    cdef bint fits(self, const int* blocks, int number, int target) noexcept nogil:
        """Whether blocks fit on a node's devices."""
        cdef int i
        for i in range(number):
            if self.need[blocks[i]] > self.t.node_limit[target]:
                return False
        return True

    cdef bint may_hold(self, const int* blocks, int number, int target) noexcept nogil:
        """Whether blocks may stand on a node at all."""
        cdef int i
        for i in range(number):
            if not (self.types[blocks[i]] >> self.t.node_type[target] & 1):
                return False
        return True

    cdef bint exceeds(self, double limit) noexcept nogil:
        """Whether replicas alone make some group's load exceed a limit, whatever else a move changes."""
        cdef double[MAX_GROUPS] load
        cdef double seconds
        cdef TaskState* state
        cdef int i
        for i in range(self.num_groups):
            load[i] = 0.0
        for i in range(self.num_tasks):
            state = self.tasks + i
            if self.stale_tasks >> i & 1:
                if state.kind == TRAIN:
                    self.resolve(i)
                    seconds = (state.first[1] if state.first != NULL else state.slow[1]) + (self.t.num_updates - 1) * state.slow[1]
                else:
                    seconds = state.slow[1]
            else:
                seconds = self.orders.work.seconds[i] * self.unit
            load[state.group] += seconds
        for i in range(self.num_groups):
            if load[i] > limit * (1.0 + 1e-9):
                return True
        return False

    cdef bint move(self, const int* blocks, int from_first, int number, int first, int second, double limit) noexcept nogil:
        """Exchange blocks between two nodes: the leading ``from_first`` go from the first to the second, the others back.

        False, with the work half done, if the cost certainly exceeds ``limit``; such a move must be taken back.
        """
        cdef int i
        self.turn += 1
        for i in range(number):
            self.shift(blocks[i], second if i < from_first else first)
        for i in range(number):
            self.touch(blocks[i])
        self.refresh_replicas()
        if limit < INFINITY and self.exceeds(limit):
            return False
        if number != 2 or from_first != 1 or self.kind[blocks[0]] != self.kind[blocks[1]]:
            for i in range(number):
                self.settle(blocks[i], first if i < from_first else second, -1)
            for i in range(number):
                self.settle(blocks[i], second if i < from_first else first, 1)
        return True

    cdef void undo(self, const int* blocks, int from_first, int number, int first, int second) noexcept nogil:
        """Take a move back, in a state that was feasible before it."""
        cdef int i, j, node
        take_back(&self.log)
        for i in range(number):
            node = first if i < from_first else second
            self.node[blocks[i]] = node
            for j in range(self.first_slot[blocks[i]], self.first_slot[blocks[i] + 1]):
                self.slot_node[self.slots[j]] = node
        self.stale_tasks = 0
        self.transfers_stale = self.schedule_stale = False
        for i in range(self.num_rings):
            nothing_stale(self.rings + i)
        self.spread.nothing_stale()
