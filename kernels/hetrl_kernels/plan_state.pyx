# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A whole plan on nodes, and its cost kept up to date while blocks of devices change places.

A block is a set of devices of one node that tensor groups hold together; strategies belong to blocks, and blocks move between
nodes. The cost is that of the readable evaluator: replicas by what they look like (`replicas`), what blocks add to their
nodes (`contributions`: gradient rings, transfers, weight syncs, host RAM), memory with the room for KV caches, and the shortest
schedule (`orders`). Long training pipelines on which the schedule does not depend stay bounds. Everything a move writes can be
taken back (`undo`), and the cost equals that of a new state.
"""

from libc.math cimport INFINITY

from hetrl_kernels.contributions cimport Need
from hetrl_kernels.replica_tables cimport Slowest, Strategy
from hetrl_kernels.tables cimport TRAIN, fmax
from hetrl_kernels.train_rings cimport Rings, reduce_seconds
from hetrl_kernels.undo cimport IntWrite, Write, forget, lowest_bit, put, put_number, take_back

cdef double SLIGHTLY_MORE = 1.0 + 1e-11
"""Bounds do not sharpen what is as it was."""

cdef enum:
    LEAST_ROOM = 1 << 20
    ROOM_PER_REPLICA = 64


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
        self.t = links.t
        self.links = links
        self.num_tasks = self.t.num_tasks
        self.num_blocks = len(plan.block_node)
        self.size = self.ints(plan.block_size)
        self.group = self.ints(plan.block_group)
        self.num_groups = max(max(plan.block_group), 0) + 1
        self.total = <double*>self.state(sizeof(double))
        self.replicas = Replicas(links, plan)
        self.node = self.replicas.node
        self.make_log()
        self.added = Contributions(self.replicas, plan)
        self.read_standing(plan)
        self.read_times()
        self.orders = Orders()
        self.read_work()
        self.scale = scale
        self.place_all(plan.block_node)

    def make_log(self):
        """Room for the writes of one proposal: at most a path to the roots of two trees per replica, and some per block moved."""
        cdef size_t room = LEAST_ROOM + ROOM_PER_REPLICA * self.replicas.num_replicas
        self.log.writes = <Write*>self.room(2 * room * sizeof(Write))
        self.log.ints = <IntWrite*>self.room(room * sizeof(IntWrite))
        forget(&self.log)

    def read_standing(self, plan):
        """On which kinds of nodes blocks may stand: those with equal needs and allowed types of devices have one shape."""
        cdef int node, shape
        shapes = {}
        self.shape = self.ints([shapes.setdefault(each, len(shapes)) for each in zip(plan.block_types, plan.block_need)])
        self.standing = <char*>self.room(len(shapes) * self.replicas.num_kinds)
        for (types, need), shape in shapes.items():
            for node in range(self.t.num_nodes):
                self.standing[shape * self.replicas.num_kinds + self.t.node_kind[node]] = (
                    FORBIDDEN if not int(types) >> self.t.node_type[node] & 1 else TOO_SMALL if need > self.t.node_limit[node] else FITS
                )

    def read_times(self):
        """Where the replicas' part of every task's seconds is found."""
        cdef int task
        cdef TaskTime* time
        cdef const Slowest* slowest
        cdef const Strategy* strategy
        for task in range(self.num_tasks):
            time, slowest, strategy = self.times + task, self.replicas.slowest + task, self.replicas.strategies + task
            time.slow = slowest.slow.top
            time.first = slowest.first.top if slowest.scores_first else slowest.slow.top
            time.more = self.t.num_updates - 1 if strategy.kind == TRAIN else 0
            self.bounded_tasks |= <unsigned int>slowest.bounded << task

    def read_work(self):
        """Tasks, then weight syncs, as activities."""
        cdef int i, j
        for i in range(self.num_tasks):
            group = self.replicas.strategies[i].group
            self.orders.add(group, group, [j for j in range(i) if self.t.task_needs[i, j]])
        syncs = self.added.sync_tasks
        self.sync_activity = self.ints(range(self.num_tasks, self.num_tasks + len(syncs)))
        for source, target in syncs:
            groups = sorted(self.replicas.strategies[<int>task].group for task in (source, target))
            self.orders.add(groups[0], groups[1], sorted((source, target)))
        self.orders.work.num_groups = self.num_groups
        self.orders.arrange()

    def place_all(self, nodes):
        """Forget everything, and put every block on a node; the first time also choose the length of a tick."""
        cdef int b, task
        cdef double seconds = 0.0
        forget(&self.log)
        self.wipe()
        self.replicas.wipe()
        self.replicas.signatures.clear()
        self.added.wipe()
        self.added.spread.empty()
        self.added.nothing_stale()
        for b in range(self.num_blocks):
            self.node[b] = nodes[b]
            self.added.settle(&self.log, b, self.node[b], 1)
            forget(&self.log)
        self.replicas.place_all(&self.log)
        if self.scale == 0.0:
            for task in range(self.num_tasks):
                self.replicas.settle(&self.log, task, False)
                seconds += self.times[task].first[0] + self.times[task].more * self.times[task].slow[0] + self.rest_seconds(task)
            self.scale = 1.0
            while 0 < seconds < INFINITY and seconds * self.scale < <double>(<long long>1 << 51):
                self.scale *= 2.0
        self.unit = 1.0 / self.scale
        self.gather_stale()
        self.stale_tasks = (<unsigned int>1 << self.num_tasks) - 1
        self.transfers_stale = self.schedule_stale = True
        self.cost(INFINITY)
        self.keep((<unsigned int>1 << self.num_tasks) - 1)

    # --- the cost -----------------------------------------------------------------------------------------------

    cdef void gather_stale(self) noexcept nogil:
        """What parts of the state say is not up to date any more."""
        self.stale_tasks |= self.replicas.stale_tasks | self.added.stale_tasks
        self.transfers_stale = self.transfers_stale or self.added.transfers_stale
        self.replicas.stale_tasks = self.added.stale_tasks = 0
        self.added.transfers_stale = False

    cdef double rest_seconds(self, int task) noexcept nogil:
        """What a task takes but for its replicas: optimizers, gradient rings, host traffic."""
        cdef double seconds = 0.0
        cdef Rings* rings
        if self.added.of_task[task].rings >= 0:
            rings = self.added.rings + self.added.of_task[task].rings
            seconds += self.t.num_updates * (rings.optimizer[1] if rings.on_host else self.added.largest(self.added.of_task[task].step))
            seconds += self.t.num_updates * reduce_seconds(self.t, self.links, rings, &self.log)
        if self.added.of_task[task].moved >= 0:
            seconds += self.added.largest(self.added.of_task[task].moved)
        return seconds

    cdef bint write_seconds(self, int task) noexcept nogil:
        """All that a task takes, in ticks; False where that are too many."""
        cdef const TaskTime* time = self.times + task
        cdef double seconds = time.first[0] + time.more * time.slow[0] + time.rest
        if not seconds * self.scale < <double>(<long long>1 << 60):
            return False
        self.write_ticks(self.orders.work.seconds + task, seconds)
        return True

    cdef unsigned int loose_tasks(self) noexcept nogil:
        """Tasks whose slowest replica is known by an upper bound only."""
        cdef unsigned int left = self.bounded_tasks, found = 0
        cdef int i
        while left:
            i = lowest_bit(left)
            left &= left - 1
            found |= <unsigned int>(self.replicas.loose(i) >= 0) << i
        return found

    cdef void sharpen(self, unsigned int tasks) noexcept nogil:
        """Know more of the slowest replicas of some loose tasks."""
        cdef int i
        while tasks:
            i = lowest_bit(tasks)
            tasks &= tasks - 1
            self.replicas.sharpen(&self.log, self.replicas.loose(i))
            self.replicas.settle(&self.log, i, True)

    cdef void write_ticks(self, long long* where, double seconds) noexcept nogil:
        cdef long long ticks = <long long>(seconds * self.scale + 0.5)
        if ticks != where[0]:
            put(&self.log, where, ticks)
            self.schedule_stale = True

    cdef double cost(self, double limit) noexcept nogil:
        """Seconds of a step or period after the moves so far; infinite if infeasible or certainly above ``limit``.

        What could not be worked out stays stale.
        """
        cdef const Need* need
        cdef unsigned int left
        cdef int i
        cdef double seconds
        self.gather_stale()
        self.outcome = INFEASIBLE
        if self.added.num_over[0] > 0:
            return INFINITY
        left = self.stale_tasks
        while left:
            i = lowest_bit(left)
            left &= left - 1
            self.replicas.settle(&self.log, i, not self.deciding_tasks >> i & 1)
            self.times[i].rest = self.rest_seconds(i)
            if not self.write_seconds(i):
                return INFINITY
        self.outcome = ABOVE_LIMIT
        if self.transfers_stale:
            for i in range(self.added.num_needs):
                need = self.added.needs + i
                self.write_ticks(
                    &self.orders.work.arcs[self.orders.work.first_arc[need.activity] + need.position].transfer,
                    self.added.spread.transfer(&self.log, need.pair, need.num_bytes),
                )
            for i in range(self.added.spread.num_syncs):
                self.write_ticks(self.orders.work.seconds + self.sync_activity[i], self.added.sync_seconds(&self.log, i))
        seconds = self.step(limit) if self.schedule_stale else self.total[0]
        if seconds > limit:
            return INFINITY
        self.outcome = COSTED
        put_number(&self.log, self.total, seconds)
        self.stale_tasks = 0
        self.transfers_stale = self.schedule_stale = False
        return seconds

    cdef double step(self, double limit) noexcept nogil:
        """The whole from the ticks of its activities; long training pipelines on which it depends are worked out first."""
        cdef unsigned int loose, wanted
        cdef long long ticks
        cdef bint above, proven
        while True:
            loose = self.loose_tasks()
            above = limit < INFINITY and self.orders.largest_load() > limit * self.scale
            if above and not loose:
                return INFINITY
            proven = self.t.staleness == 0 and not above and self.orders.replayed()
            wanted = loose & self.orders.decides if proven else loose
            if not wanted:
                break
            if not proven and limit < INFINITY and self.certainly_above(limit, loose):
                return INFINITY
            self.work_out(wanted)
        if self.t.staleness > 0:
            return self.period()
        ticks = self.orders.best if proven else self.orders.searched(limit * self.scale)
        return INFINITY if ticks < 0 else ticks * self.unit

    cdef double period(self) noexcept nogil:
        """Seconds from one asynchronous step to the next."""
        return self.unit * fmax(self.orders.largest_load(), self.orders.longest_path() / (1 + self.t.staleness))

    cdef bint certainly_above(self, double limit, unsigned int loose) noexcept nogil:
        """Whether the whole exceeds a limit even if loose tasks take as little as they can."""
        cdef long long[MAX_TASKS] ticks
        cdef const TaskTime* time
        cdef unsigned int left = loose
        cdef double slow, first, less
        cdef bint above
        cdef int i
        while left:
            i = lowest_bit(left)
            left &= left - 1
            time = self.times + i
            ticks[i] = self.orders.work.seconds[i]
            self.replicas.lower_bounds(i, &slow, &first)
            less = time.first[0] - first + time.more * (time.slow[0] - slow)
            self.orders.work.seconds[i] = ticks[i] - <long long>(less * self.scale) - 1
        above = (self.period() if self.t.staleness > 0 else self.orders.bound() * self.unit) > limit
        while loose:
            i = lowest_bit(loose)
            loose &= loose - 1
            self.orders.work.seconds[i] = ticks[i]
        return above

    cdef void work_out(self, unsigned int tasks) noexcept nogil:
        """Sharpen some tasks and write what they take."""
        cdef int i
        self.moved_tasks |= tasks
        self.sharpen(tasks)
        while tasks:
            i = lowest_bit(tasks)
            tasks &= tasks - 1
            if not (self.stale_tasks >> i & 1):
                self.times[i].rest = self.rest_seconds(i)
            self.write_seconds(i)

    # --- proposals ----------------------------------------------------------------------------------------------

    cdef void keep(self, unsigned int tasks) noexcept nogil:
        """Let the last move stand, which changed some tasks."""
        cdef TaskTime* time
        cdef int i
        forget(&self.log)
        self.load_known = False
        self.deciding_tasks = self.orders.decides
        while tasks:
            i = lowest_bit(tasks)
            tasks &= tasks - 1
            time = self.times + i
            time.slow_before = time.slow[0] * SLIGHTLY_MORE
            time.first_before = time.first[0] * SLIGHTLY_MORE
            self.replicas.lower_bounds(i, &time.slow_least, &time.first_least)

    cdef void read_load(self) noexcept nogil:
        """What the tasks and groups took before the move, at least."""
        cdef TaskTime* time
        cdef int i
        for i in range(self.num_groups):
            self.load[i] = 0.0
        for i in range(self.num_tasks):
            time = self.times + i
            time.rest_before = self.orders.work.seconds[i] * self.unit - (time.first_before + time.more * time.slow_before)
            self.least[i] = time.first_least + time.more * time.slow_least + time.rest_before
            self.load[self.replicas.strategies[i].group] += self.least[i]
        self.load_known = True

    cdef bint slower(self) noexcept nogil:
        """Whether a task's slowest replica takes longer than before the move; if not, replicas make no group's load larger."""
        cdef const TaskTime* time
        cdef unsigned int left = self.moved_tasks
        while left:
            time = self.times + lowest_bit(left)
            left &= left - 1
            if (time.slow[0] > time.slow_before) | (time.first[0] > time.first_before):
                return True
        return False

    cdef bint exceeds(self, double limit, unsigned int changed) noexcept nogil:
        """Whether replicas alone make a group's load or a chain of tasks exceed a limit, whatever else a move changes.

        Of long training pipelines a lower bound counts. ``changed`` are the tasks whose rings, optimizers and host traffic the
        move changes: of these only replicas count.
        """
        cdef const TaskTime* time
        cdef double[MAX_TASKS] seconds
        cdef double[MAX_GROUPS] load
        cdef unsigned int left = self.moved_tasks | changed
        cdef double margin = limit * (1.0 + 1e-9), more = 0.0, gain
        cdef int i
        if not self.load_known:
            self.read_load()
        for i in range(self.num_groups):
            load[i] = self.load[i]
        for i in range(self.num_tasks):
            seconds[i] = self.least[i]
        while left:
            i = lowest_bit(left)
            left &= left - 1
            time = self.times + i
            if not (self.moved_tasks >> i & 1):
                seconds[i] = time.first_least + time.more * time.slow_least
            elif self.replicas.settle(&self.log, i, True):
                seconds[i] = time.first[0] + time.more * time.slow[0]
            else:
                seconds[i] = self.replicas.least_first[i] + time.more * self.replicas.least[i]
            if not (changed >> i & 1):
                seconds[i] += time.rest_before
            gain = seconds[i] - self.least[i]
            load[self.replicas.strategies[i].group] += gain
            more += fmax(0.0, gain)
        for i in range(self.num_groups):
            if load[i] > margin:
                return True
        return self.t.staleness == 0 and self.total[0] + more > margin and self.orders.longest_chain(seconds, self.num_tasks) > margin

    cdef bint move(self, const int* blocks, int from_first, int number, int first, int second, double limit) noexcept nogil:
        """Exchange blocks between two nodes: the leading ``from_first`` go from the first to the second, the others back.

        False, with the work half done, if the cost certainly exceeds ``limit``, which the cost before does not; such a move must
        be taken back.
        """
        cdef bint all_stages = self.t.node_kind[first] != self.t.node_kind[second]
        cdef int i
        self.replicas.turn += 1
        for i in range(number):
            self.replicas.shift(&self.log, blocks[i], second if i < from_first else first)
        for i in range(number):
            self.replicas.touch(&self.log, blocks[i], all_stages)
        self.replicas.refresh(&self.log)
        self.moved_tasks = self.replicas.stale_tasks
        if limit < INFINITY and self.slower() and self.exceeds(limit, self.added.changes(blocks, number, all_stages)):
            return False
        if number == 2 and from_first == 1:
            self.added.exchange(&self.log, blocks[0], blocks[1], first, second)
        else:
            self.added.exchange_many(&self.log, blocks, from_first, number, first, second)
        return True

    cdef void undo(self, const int* blocks, int from_first, int number, int first, int second) noexcept nogil:
        """Take a move back, in a state that was feasible before it."""
        cdef int i
        take_back(&self.log)
        for i in range(number):
            self.node[blocks[i]] = first if i < from_first else second
        self.replicas.stale_tasks = 0
        self.added.nothing_stale()
        self.stale_tasks = 0
        self.transfers_stale = self.schedule_stale = False
