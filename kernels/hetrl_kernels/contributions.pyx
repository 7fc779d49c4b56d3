# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What blocks add to the nodes they stand on: gradient rings, areas, tallies, weight syncs, host RAM.

A block adds the same wherever it stands, times what the kind of its node makes of it; so an exchange of two blocks changes only
that in which they differ.
"""

from cython cimport final

from hetrl_kernels.lanes cimport LANES
from hetrl_kernels.memory cimport HOST, SHARED
from hetrl_kernels.replica_tables cimport Strategy
from hetrl_kernels.tables cimport PHASE_OPTIMIZER, PHASE_SYNC, TRAIN, fmax
from hetrl_kernels.train_rings cimport change_members, make_rings, move_members, nothing_stale
from hetrl_kernels.undo cimport highest, lowest_bit, put, tally


@final
cdef class Contributions(Arena):
    """Nodes without blocks.

    Parameters
    ----------
    replicas
        The replicas of the plan.
    plan
        Arrays of the plan (see `hetrl.search.plan_arrays.PlanArrays`).
    """

    def __init__(self, Replicas replicas, plan):
        cdef int task
        self.replicas = replicas
        self.t, self.links = replicas.t, replicas.links
        self.num_blocks, self.num_kinds = replicas.num_blocks, replicas.num_kinds
        self.need = self.doubles(plan.block_need)
        self.host = self.words(plan.block_host)
        self.host_used = <long long*>self.state(self.t.num_nodes * sizeof(long long))
        self.num_over = <long long*>self.state(sizeof(long long))
        for task in range(self.t.num_tasks):
            self.of_task[task].rings = self.of_task[task].moved = self.of_task[task].step = -1
        self.read(plan)

    # --- reading a plan -----------------------------------------------------------------------------------------

    def read(self, plan):
        cdef int task, r, j, s
        cdef Strategy* strategies = self.replicas.strategies
        replicas = [[] for _ in range(self.t.num_tasks)]
        for r in range(self.replicas.num_replicas):
            replicas[self.replicas.replicas[r].task].append(r)
        members = [{} for _ in range(self.num_blocks)]  # by ring and stage
        areas = [set() for _ in range(self.num_blocks)]
        rows = [set() for _ in range(self.num_blocks)]
        received = [{} for _ in range(self.num_blocks)]
        self.rings = <Rings*>self.room(self.t.num_tasks * sizeof(Rings))
        tallies = []
        block_of = [int(block) for block in plan.slot_block]
        for task in range(self.t.num_tasks):
            moved = {}
            for r in replicas[task]:
                for j, s in enumerate(self.slots_of(r)):
                    areas[block_of[s]].add(strategies[task].area)
                    if plan.slot_moved[s] > 0:
                        moved.setdefault(float(plan.slot_moved[s]), set()).add(block_of[s])
                    if strategies[task].kind == TRAIN:
                        key = (self.num_rings, j)
                        members[block_of[s]][key] = members[block_of[s]].get(key, 0) + 1
            if moved:
                self.of_task[task].moved = self.add_rows(
                    tallies, rows, moved, lambda each, node: each / self.t.node_host_link[node]
                )
            if strategies[task].kind == TRAIN:
                self.read_rings(task, replicas[task], members, tallies, rows)
        self.read_transfers(plan, replicas, block_of, tallies, rows, received)
        self.write_blocks(plan, members, areas, rows, received)
        self.write_tallies(tallies)

    def slots_of(self, int replica):
        cdef int first = self.replicas.replicas[replica].first
        return range(first, first + self.replicas.replicas[replica].num_stages)

    def read_rings(self, int task, list replicas, list members, list tallies, list rows):
        """Rings of a training task; its optimizer steps as a tally, unless they run on the hosts."""
        cdef Strategy* strategy = self.replicas.strategies + task
        cdef int r, s, j, most = 0, micro_batches = 0
        cdef Rings* rings = self.rings + self.num_rings
        layers = [self.replicas.slot_layers[<int>s] for s in self.slots_of(replicas[0])]
        for r in replicas:
            micro_batches = max(micro_batches, self.replicas.patterns[self.replicas.replicas[r].pattern].num_micro_batches)
        for j in range(self.t.num_nodes):
            most = max(most, self.t.node_devices[j] // strategy.degree)
        make_rings(
            rings, self, self.t, self.links, task, layers, strategy.degree, len(replicas), strategy.sharding, most,
            strategy.optimizer == HOST,
        )
        rings.num_micro_batches = micro_batches
        self.of_task[task].rings = self.num_rings
        self.num_rings += 1
        if strategy.optimizer == HOST:
            return
        totals = {}
        for block, counts in enumerate(members):
            for number, j in counts:
                if number == self.of_task[task].rings:
                    total = rings.states[j].weights + rings.states[j].gradients + rings.states[j].optimizer
                    totals.setdefault(total, set()).add(block)
        self.of_task[task].step = self.add_rows(tallies, rows, totals, self.step_seconds)

    def step_seconds(self, double total, int node):
        """Seconds of an optimizer step on a device."""
        cdef int kind = self.t.node_type[node]
        cdef double seconds = total / self.t.type_bandwidth[kind]
        return self.t.calibration[kind, PHASE_OPTIMIZER, 0] * seconds + self.t.calibration[kind, PHASE_OPTIMIZER, 1]

    def read_transfers(self, plan, list replicas, list block_of, list tallies, list rows, list received):
        """Data between tasks on different devices, and weight syncs from training tasks to others of their role."""
        cdef int i, j
        cdef Strategy* strategies = self.replicas.strategies
        pairs, needs, syncs, local, kinds = {}, [], [], [], []
        for i in range(self.t.num_tasks):
            place = 0
            for j in range(i):
                if not self.t.task_needs[i, j]:
                    continue
                if strategies[i].area != strategies[j].area:
                    pair = pairs.setdefault((strategies[j].area, strategies[i].area), len(pairs))
                    needs.append((i, place, pair, self.t.transfer_bytes[i, j]))
                place += 1
        self.sync_tasks = []
        for j in range(self.t.num_tasks):
            for i in range(self.t.num_tasks):
                if (
                    strategies[j].kind != TRAIN or strategies[i].kind == TRAIN or self.t.task_role[i] != self.t.task_role[j]
                    or strategies[i].weights == SHARED
                ):
                    continue
                local_rows, all_blocks = {}, set()
                for s in [s for r in replicas[i] for s in self.slots_of(r)]:
                    each = float(plan.slot_bytes[s])
                    local_rows.setdefault(each, set()).add(block_of[s])
                    all_blocks.add(block_of[s])
                    received[block_of[s]].setdefault(len(syncs), 0.0)
                    received[block_of[s]][len(syncs)] += each * strategies[i].degree
                local.append(self.add_rows(
                    tallies, rows, local_rows, lambda each, node: self.t.link_latency[node, node] + each / self.t.link_bandwidth[node, node]
                ))
                kinds.append(self.add_rows(tallies, rows, {0.0: all_blocks}, lambda each, node: self.t.node_type[node]))
                self.sync_tasks.append((j, i))
                syncs.append((strategies[j].area, strategies[i].area, self.t.transfer_weights[i]))
        num_areas = max([strategies[i].area for i in range(self.t.num_tasks)]) + 1
        self.spread = Spread(self.t, self.links, num_areas, list(pairs), syncs)
        self.sync_local, self.sync_types = self.ints(local), self.ints(kinds)
        self.num_needs = len(needs)
        self.needs = <Need*>self.room(self.num_needs * sizeof(Need))
        for i, (task, place, pair, num_bytes) in enumerate(needs):
            self.needs[i].activity, self.needs[i].position, self.needs[i].pair = task, place, pair
            self.needs[i].num_bytes = num_bytes

    cdef int add_rows(self, list tallies, list rows, dict blocks_of, value) except -1:
        """A new tally with a row for every key of ``blocks_of``; ``value`` gives a row's value on a node.

        Only the largest value of a tally is ever asked for: a block has no row that another of its rows exceeds everywhere.
        """
        cdef int number = len(tallies)
        nodes = {}
        for node in range(self.t.num_nodes - 1, -1, -1):
            nodes[self.t.node_kind[node]] = node
        table = [[value(each, nodes[kind]) if kind in nodes else 0.0 for kind in range(self.num_kinds)] for each in blocks_of]
        tallies.append(table)
        rows_of = {}
        for row, blocks in enumerate(blocks_of.values()):
            for block in blocks:
                rows_of.setdefault(block, []).append(row)
        for block, mine in rows_of.items():
            for row in mine:
                above = [each for each in mine if all([a >= b for a, b in zip(table[each], table[row])])]
                if above[0] == row and all([table[each] == table[row] for each in above]):
                    rows[block].add(self.num_rows + row)
        self.num_rows += len(table)
        return number

    def write_blocks(self, plan, list members, list areas, list rows, list received):
        cdef int i, task, ring, stage, lane, sync, num_syncs = self.spread.num_syncs
        cdef Py_ssize_t number
        known = {}
        first_lane = [0]
        for ring in range(self.num_rings):
            first_lane.append(first_lane[ring] + self.rings[ring].num_lanes)
        self.num_lanes = first_lane[self.num_rings]
        self.alike = <Alike*>self.room(self.num_blocks * sizeof(Alike))
        self.stale_of = <unsigned int*>self.room(self.num_blocks * sizeof(int))
        self.members = <long long*>self.room(self.num_blocks * self.num_lanes * sizeof(long long))
        self.net = <long long*>self.room(self.num_lanes * sizeof(long long))
        self.areas = <unsigned int*>self.room(self.num_blocks * sizeof(int))
        self.row_words = (self.num_rows + 63) // 64
        self.of_rows = <long long*>self.room(self.num_blocks * self.row_words * sizeof(long long))
        self.received = <double*>self.room(self.num_blocks * num_syncs * sizeof(double))
        for i in range(self.num_blocks):
            for (ring, stage), number in members[i].items():
                if self.rings[ring].num_lanes > 0:
                    lane = first_lane[ring] + stage // LANES
                    self.members[i * self.num_lanes + lane] += <long long>number << 8 * (stage % LANES)
            for area in areas[i]:
                self.areas[i] |= <unsigned int>1 << <int>area
            for row in rows[i]:
                self.of_rows[i * self.row_words + <int>row // 64] |= <long long>1 << <int>row % 64
            for sync, num_bytes in received[i].items():
                self.received[i * num_syncs + sync] = num_bytes
            here = [self.members[i * self.num_lanes + lane] for lane in range(self.num_lanes)]
            self.alike[i].members = known.setdefault(("members", *here), len(known))
            self.alike[i].areas = known.setdefault(("areas", *sorted(areas[i])), len(known))
            self.alike[i].rows = known.setdefault(("rows", *sorted(rows[i])), len(known))
            self.alike[i].bytes = known.setdefault(("bytes", *sorted(received[i].items())), len(known))
            for task in range(self.t.num_tasks):
                if self.replicas.strategies[task].group == plan.block_group[i]:
                    self.stale_of[i] |= <unsigned int>1 << task

    def write_tallies(self, list tallies):
        cdef int i, task, number = 0
        cdef Values* values
        of_syncs = {self.sync_local[i] for i in range(len(self.sync_tasks))} | {self.sync_types[i] for i in range(len(self.sync_tasks))}
        self.values = <Values*>self.room(len(tallies) * sizeof(Values))
        self.rows = <Row*>self.room(self.num_rows * sizeof(Row))
        for i, table in enumerate(tallies):
            values = self.values + i
            values.of_sync = i in of_syncs
            for task in range(self.t.num_tasks):
                if i in (self.of_task[task].moved, self.of_task[task].step):
                    values.of_tasks |= <unsigned int>1 << task
            ordered = sorted({value for row in table for value in row})
            place = {value: rank for rank, value in enumerate(ordered)}
            values.value = self.doubles(ordered)
            for row in table:
                self.rows[number].values = values
                self.rows[number].rank = self.ints([place[value] for value in row])
                number += 1
            values.tally.words = (len(ordered) + 63) // 64
            values.tally.count = <long long*>self.state(len(ordered) * sizeof(long long))
            values.tally.bits = <long long*>self.state(values.tally.words * sizeof(long long))

    # --- moving blocks ------------------------------------------------------------------------------------------

    cdef void change_host(self, Log* log, int node, long long num_bytes) noexcept nogil:
        cdef bint over = self.host_used[node] > self.t.node_host_ram[node]
        put(log, self.host_used + node, self.host_used[node] + num_bytes)
        if over != (self.host_used[node] > self.t.node_host_ram[node]):
            put(log, self.num_over, self.num_over[0] + (-1 if over else 1))

    cdef void change_limits(self, Log* log, int block, int node, int sign) noexcept nogil:
        if self.need[block] > self.t.node_limit[node]:
            put(log, self.num_over, self.num_over[0] + sign)

    cdef void move_rings(self, Log* log, int source, int target) noexcept nogil:
        """Tensor groups that leave a node for another, as `net` says."""
        cdef const long long* net = self.net
        cdef Rings* rings
        cdef long long some
        cdef int i, lane
        for i in range(self.num_rings):
            rings = self.rings + i
            some = 0
            for lane in range(rings.num_lanes):
                some |= net[lane]
            if some:
                move_members(self.t, self.links, rings, log, source, target, net)
                self.stale_tasks |= <unsigned int>1 << rings.task
            net += rings.num_lanes

    cdef void change_areas(self, Log* log, unsigned int areas, int node, int number) noexcept nogil:
        while areas:
            self.spread.change(log, lowest_bit(areas), node, number)
            areas &= areas - 1
        self.transfers_stale = True

    cdef inline void note(self, const Values* values) noexcept nogil:
        """A tally has changed."""
        self.stale_tasks |= values.of_tasks
        self.transfers_stale |= values.of_sync

    cdef void change_rows(self, Log* log, int block, int node, int number) noexcept nogil:
        cdef unsigned long long left
        cdef const Row* row
        cdef int i
        for i in range(self.row_words):
            left = self.of_rows[block * self.row_words + i]
            while left:
                row = self.rows + 64 * i + lowest_bit(left)
                left &= left - 1
                tally(log, &row.values.tally, row.rank[self.t.node_kind[node]], number)
                self.note(row.values)

    cdef void change_bytes(self, Log* log, int sync, int node, double num_bytes) noexcept nogil:
        self.spread.receive(log, sync, node, num_bytes)
        self.transfers_stale = True

    cdef void settle(self, Log* log, int block, int node, int sign) noexcept nogil:
        """Add what a block brings to a node, or take it away."""
        cdef const long long* members = self.members + block * self.num_lanes
        cdef int i
        self.change_host(log, node, sign * self.host[block])
        self.change_limits(log, block, node, sign)
        for i in range(self.num_rings):
            change_members(self.t, self.links, self.rings + i, log, node, members, sign)
            self.stale_tasks |= <unsigned int>1 << self.rings[i].task
            members += self.rings[i].num_lanes
        self.change_areas(log, self.areas[block], node, sign)
        self.change_rows(log, block, node, sign)
        for i in range(self.spread.num_syncs):
            self.change_bytes(log, i, node, sign * self.received[block * self.spread.num_syncs + i])

    cdef unsigned int changes(self, const int* blocks, int number, bint other_kind) noexcept nogil:
        """Tasks whose rings or tallies may change when blocks are exchanged, between nodes of different kinds or of one."""
        cdef const Alike* mine = self.alike + blocks[0]
        cdef const Alike* theirs = self.alike + blocks[1]
        cdef unsigned int found = 0
        cdef int i
        if number == 2 and mine.members == theirs.members and (mine.rows == theirs.rows or not other_kind):
            return 0
        for i in range(number):
            found |= self.stale_of[blocks[i]]
        return found

    cdef void exchange(self, Log* log, int block, int other, int node, int target) noexcept nogil:
        """A block leaves a node for another, from which a second block comes."""
        cdef const Alike* mine = self.alike + block
        cdef const Alike* theirs = self.alike + other
        cdef double limit = self.t.node_limit[node], target_limit = self.t.node_limit[target]
        cdef long long more = self.host[block] - self.host[other]
        cdef unsigned int only_mine, only_theirs
        cdef int over, i
        if more != 0:
            self.change_host(log, node, -more)
            self.change_host(log, target, more)
        over = (
            (self.need[block] > target_limit) - (self.need[block] > limit)
            + (self.need[other] > limit) - (self.need[other] > target_limit)
        )
        if over != 0:
            put(log, self.num_over, self.num_over[0] + over)
        if mine.members != theirs.members:
            for i in range(self.num_lanes):
                self.net[i] = self.members[block * self.num_lanes + i] - self.members[other * self.num_lanes + i]
            self.move_rings(log, node, target)
        if mine.areas != theirs.areas:
            only_mine, only_theirs = self.areas[block] & ~self.areas[other], self.areas[other] & ~self.areas[block]
            self.change_areas(log, only_mine, node, -1)
            self.change_areas(log, only_theirs, target, -1)
            self.change_areas(log, only_mine, target, 1)
            self.change_areas(log, only_theirs, node, 1)
        if mine.rows != theirs.rows and self.t.node_kind[node] != self.t.node_kind[target]:
            self.exchange_rows(log, block, other, node, target)
        if mine.bytes != theirs.bytes:
            for i in range(self.spread.num_syncs):
                self.move_bytes(
                    log, i, node, target,
                    self.received[block * self.spread.num_syncs + i] - self.received[other * self.spread.num_syncs + i],
                )

    cdef void move_bytes(self, Log* log, int sync, int source, int target, double num_bytes) noexcept nogil:
        if num_bytes != 0:
            self.change_bytes(log, sync, source, -num_bytes)
            self.change_bytes(log, sync, target, num_bytes)

    cdef void exchange_rows(self, Log* log, int block, int other, int node, int target) noexcept nogil:
        """Rows that only one of two blocks has."""
        cdef const long long* mine = self.of_rows + block * self.row_words
        cdef const long long* theirs = self.of_rows + other * self.row_words
        cdef int kind = self.t.node_kind[node], target_kind = self.t.node_kind[target], place, i, rank, target_rank
        cdef unsigned long long left
        cdef const Row* row
        for i in range(self.row_words):
            left = mine[i] ^ theirs[i]
            while left:
                place = lowest_bit(left)
                left &= left - 1
                row = self.rows + 64 * i + place
                rank, target_rank = row.rank[kind], row.rank[target_kind]
                if rank == target_rank:
                    continue
                if theirs[i] >> place & 1:
                    rank, target_rank = target_rank, rank
                tally(log, &row.values.tally, rank, -1)
                tally(log, &row.values.tally, target_rank, 1)
                self.note(row.values)

    cdef void exchange_many(self, Log* log, const int* blocks, int from_first, int number, int first, int second) noexcept nogil:
        """The leading ``from_first`` blocks go from the first node to the second, the others back."""
        cdef int i, j, sign
        cdef double num_bytes
        self.hand_over(log, blocks, from_first, first, second)
        self.hand_over(log, blocks + from_first, number - from_first, second, first)
        # what goes one way and back leaves rings and weight syncs as they were
        for j in range(self.num_lanes):
            self.net[j] = 0
            for i in range(number):
                self.net[j] += (1 if i < from_first else -1) * self.members[blocks[i] * self.num_lanes + j]
        self.move_rings(log, first, second)
        for j in range(self.spread.num_syncs):
            num_bytes = 0.0
            for i in range(number):
                num_bytes += (1 if i < from_first else -1) * self.received[blocks[i] * self.spread.num_syncs + j]
            self.move_bytes(log, j, first, second, num_bytes)

    cdef void hand_over(self, Log* log, const int* blocks, int number, int source, int target) noexcept nogil:
        """Blocks leave a node for another, rings and syncs aside; those in a row that add the same do so at once."""
        cdef const Alike* alike = self.alike
        cdef bint differ = self.t.node_kind[source] != self.t.node_kind[target]  # else limits and tallies come out as they were
        cdef int i, areas = 0, others = 0
        cdef long long host = 0
        for i in range(number):
            host += self.host[blocks[i]]
            areas += 1
            if i + 1 == number or alike[blocks[i]].areas != alike[blocks[i + 1]].areas:
                self.change_areas(log, self.areas[blocks[i]], source, -areas)
                self.change_areas(log, self.areas[blocks[i]], target, areas)
                areas = 0
            if not differ:
                continue
            self.change_limits(log, blocks[i], source, -1)
            self.change_limits(log, blocks[i], target, 1)
            others += 1
            if i + 1 == number or alike[blocks[i]].rows != alike[blocks[i + 1]].rows:
                self.change_rows(log, blocks[i], source, -others)
                self.change_rows(log, blocks[i], target, others)
                others = 0
        if host != 0:
            self.change_host(log, source, -host)
            self.change_host(log, target, host)

    # --- what it comes to ---------------------------------------------------------------------------------------

    cdef double largest(self, int number) noexcept nogil:
        """Largest value of a tally, or 0."""
        cdef int rank = highest(&self.values[number].tally)
        return self.values[number].value[rank] if rank >= 0 else 0.0

    cdef double sync_seconds(self, Log* log, int sync) noexcept nogil:
        """A weight sync between nodes and inside them, by the slowest device type that receives."""
        cdef Values* types = self.values + self.sync_types[sync]
        cdef double seconds = self.spread.network(log, sync) + self.largest(self.sync_local[sync]), worst = 0.0
        cdef unsigned long long word
        cdef int i, kind
        for i in range(types.tally.words):
            word = types.tally.bits[i]
            while word:
                kind = <int>types.value[64 * i + lowest_bit(word)]
                word &= word - 1
                worst = fmax(worst, self.t.calibration[kind, PHASE_SYNC, 0] * seconds + self.t.calibration[kind, PHASE_SYNC, 1])
        return worst

    cdef void nothing_stale(self) noexcept nogil:
        """After a proposal was taken back."""
        cdef int i
        self.stale_tasks = 0
        self.transfers_stale = False
        for i in range(self.num_rings):
            nothing_stale(self.rings + i)
        self.spread.nothing_stale()
