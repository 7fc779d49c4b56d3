# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All ways to run a group of tasks on its devices of which none replaces another."""

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free

from hetrl_kernels.fronts cimport ExactFinder
from hetrl_kernels.transfers cimport sync_from
from hetrl_kernels.layouts cimport Devices
from hetrl_kernels.memory cimport DROPPED, RESIDENT, SHARED
from hetrl_kernels.options cimport Option
from hetrl_kernels.tables cimport GENERATE, MAX_TASKS, SCORE, TRAIN, Tables, fmax, fmin

from time import monotonic

cdef enum:
    ALLOW_DROPPED = 7


cdef class GroupColumns:
    """Depth-first search over the options of a group's tasks: training first, the engine last, in the room that is left.

    Parameters
    ----------
    tasks
        The group.
    counts
        Its devices per node, int32.
    fronts
        Task -> options, fastest first.
    pairs
        (train task, score task) -> pairs of options, the second scoring with the first's weights.
    phase_of
        ``[A]`` phase of every task.
    limits
        ``[K, 2 P + 2]``: a column is of use if it keeps any of these limits. Per phase the least seconds of other groups,
        and the price of this group's; then what the phases, each as long as its slower part, and what the priced
        seconds must stay below.
    max_columns
        Columns, and a thousand times as many visits, after which the search gives up.
    deadline
        Of `time.monotonic`.
    """

    cdef ExactFinder finder
    cdef Tables t
    cdef Devices devices
    cdef int cells, number, phases, last_phase
    cdef list tasks, lists, chosen
    cdef dict pairs
    cdef int[MAX_TASKS] trainer  # position of the task that trains this role and may lend its weights, -1 for none
    cdef int[MAX_TASKS] source  # position of the task whose weights are synced into this one, -1 for none in the group
    cdef bint[MAX_TASKS] outside  # whether weights are synced between this task and another group
    cdef int num_trainers
    cdef int[::1] phase_of
    cdef double[:, ::1] limits
    cdef double* least  # [number + 1, cells] idle bytes that the tasks from here on hold at least
    cdef double* least_host  # [number + 1, cells] host bytes that they hold at least
    cdef double* ahead  # [number + 1, phases] seconds that they take at least
    cdef double fastest_engine
    cdef double* room  # [cells]
    cdef double* spent  # [phases]
    cdef double[MAX_TASKS] sync  # [number] syncs of what is chosen, inside the group
    cdef list covering  # per position: whether an option covers every option of the position's list, by id
    cdef list least_syncs  # per position: least sync by the nodes of the train task
    cdef list syncs  # of the columns in `found`
    cdef readonly list found
    cdef readonly bint overflow, stopped
    cdef readonly long long visits
    cdef long long max_columns
    cdef double deadline

    def __cinit__(
        self, ExactFinder finder, tuple tasks, bytes counts, dict fronts, dict pairs, int[::1] phase_of, double[:, ::1] limits,
        long long max_columns, double deadline):
        cdef int i, j, cell, task, other, phase, kind
        cdef Option option
        cdef double smallest, floor
        self.finder, self.t = finder, finder.t
        self.devices = finder.devices(counts)
        self.cells = self.devices.num_cells
        self.number = len(tasks)
        self.phases = (limits.shape[1] - 2) // 2
        self.tasks = [task for _, task in sorted([(finder.t.task_kind[task], task) for task in tasks])]
        self.lists = [fronts[task] for task in self.tasks]
        self.pairs = pairs
        self.phase_of, self.limits = phase_of, limits
        self.max_columns, self.deadline = max_columns, deadline
        self.found, self.chosen, self.syncs = [], [], []
        self.covering = [{} for _ in range(self.number)]
        self.least_syncs = [{} for _ in range(self.number)]
        self.least = <double*>calloc((2 * self.number + 3) * self.cells + (self.number + 3) * self.phases, sizeof(double))
        self.room = self.least + (self.number + 1) * self.cells
        self.least_host = self.room + self.cells
        self.ahead = self.least_host + (self.number + 1) * self.cells
        self.spent = self.ahead + (self.number + 1) * self.phases
        self.roles()
        for i in range(self.number - 1, -1, -1):
            task = self.tasks[i]
            kind = finder.t.task_kind[task]
            smallest = floor = INFINITY
            for option in self.every_option(i):
                smallest = fmin(smallest, option.seconds)
                floor = fmin(floor, self.foreign_sync(i, option))
            for phase in range(self.phases):
                self.ahead[i * self.phases + phase] = self.ahead[(i + 1) * self.phases + phase]
            self.ahead[i * self.phases + phase_of[task]] += smallest
            if kind == GENERATE:
                self.fastest_engine = smallest
            self.ahead[i * self.phases + self.last_phase] += floor
            for cell in range(self.cells):
                smallest = 0.0
                if kind != GENERATE and self.trainer[i] < 0:
                    smallest = INFINITY
                    for option in self.every_option(i):
                        smallest = fmin(smallest, option.idle[cell])
                self.least[i * self.cells + cell] = smallest + self.least[(i + 1) * self.cells + cell]
                smallest = 0.0
                if kind != TRAIN and self.trainer[i] < 0:
                    smallest = INFINITY
                    for option in self.every_option(i):
                        smallest = fmin(smallest, option.host[cell])
                self.least_host[i * self.cells + cell] = smallest + self.least_host[(i + 1) * self.cells + cell]

    def __dealloc__(self):
        free(self.least)

    cdef void roles(self):
        """Which tasks exchange weights, and with whom."""
        cdef int i, j, task, other
        cdef Tables t = self.t
        self.last_phase = max(self.phase_of)
        for i in range(self.number):
            task = self.tasks[i]
            self.trainer[i] = self.source[i] = -1
            self.outside[i] = False
            self.num_trainers += t.task_kind[task] == TRAIN
            for other in range(t.num_tasks):
                if t.task_role[other] == t.task_role[task] and (t.task_kind[other] == TRAIN) != (t.task_kind[task] == TRAIN):
                    self.outside[i] = self.outside[i] or other not in self.tasks
            for j in range(i):
                other = self.tasks[j]
                if t.task_kind[task] != TRAIN and t.task_kind[other] == TRAIN and t.task_role[other] == t.task_role[task]:
                    self.source[i] = j
                    if t.task_kind[task] == SCORE:
                        self.trainer[i] = j

    cdef list every_option(self, int index):
        """All that a task may get: its front, and its parts of the pairs."""
        cdef int task = self.tasks[index]
        cdef list result = list(self.lists[index])
        for (first, second), joint in self.pairs.items():
            if first == task:
                result += [pair[0] for pair in joint]
            elif second == task:
                result += [pair[1] for pair in joint]
        return result

    cdef double foreign_sync(self, int index, Option option):
        """Least seconds of a sync from another group."""
        if not self.outside[index] or self.t.task_kind[option.task] == TRAIN or option.weights == SHARED:
            return 0.0
        return self.finder.sync_floor(option)

    def run(self):
        """The columns, each a tuple of options in the group's order of kinds."""
        self.descend(0, None)
        return self.found

    cdef int descend(self, int index, Option shared) except -1:
        """``shared`` is the option with which the train task's scorer goes, already decided."""
        cdef int i, task, partner = -1
        cdef Option option, score
        self.visits += 1
        if self.visits > 1000 * self.max_columns or len(self.found) > self.max_columns:
            self.overflow = True
            return 0
        if self.visits % 1024 == 0:
            PyErr_CheckSignals()
            self.stopped = monotonic() > self.deadline
        if self.stopped:
            return 0
        if index == self.number:
            self.keep()
            return 0
        if self.dominated(index) or not self.engine_remains(index):
            return 0
        task = self.tasks[index]
        if self.t.task_kind[task] == GENERATE:
            for option in self.lists[index]:
                self.engines(index, option)
            return 0
        if self.t.task_kind[task] == SCORE and shared is not None and self.trainer[index] >= 0:
            self.attempt(index, shared, None)
            return 0
        if self.t.task_kind[task] == TRAIN:
            for i in range(index + 1, self.number):
                if self.trainer[i] == index:
                    partner = i
            if partner >= 0:
                for option, score in self.pairs[(task, self.tasks[partner])]:
                    self.attempt(index, option, score)
        for option in self.lists[index]:
            self.attempt(index, option, shared)

    cdef int engines(self, int index, Option alone) except -1:
        """The engine beside what is chosen, its weights resident or dropped while it is idle."""
        cdef int cell
        cdef double held, busy
        cdef Option other, beside
        if not self.of_use(index, alone) or (self.found and self.dominated_by_engine(index, alone)):
            return 0
        for cell in range(self.cells):
            held = busy = 0.0
            for each in self.chosen:
                other = each
                held += other.idle[cell]
            busy = held
            for each in self.chosen:
                other = each
                busy = fmax(busy, held - other.idle[cell] + fmax(other.active[cell], other.sync[cell]))
            self.room[cell] = busy
        beside = self.finder.engine(self.tasks[index], alone.layout, RESIDENT, self.room, INFINITY, alone)
        if beside is not None:
            self.attempt(index, beside, None)
        if self.chosen and self.finder.allowed[GENERATE, ALLOW_DROPPED]:
            for cell in range(self.cells):
                held = 0.0
                for each in self.chosen:
                    other = each
                    held += other.idle[cell]
                self.room[cell] = held
            beside = self.finder.engine(self.tasks[index], alone.layout, DROPPED, self.room, INFINITY, alone)
            if beside is not None:
                self.attempt(index, beside, None)

    cdef bint engine_remains(self, int index):
        """Whether some engine fits beside what is chosen and what the others hold at least, and is fast enough there."""
        cdef int cell, phase, last = self.number - 1, task = self.tasks[self.number - 1]
        cdef double held, spent
        cdef Option other, alone, beside
        cdef bint use
        if index == 0 or index >= last or self.t.task_kind[task] != GENERATE:
            return True
        for cell in range(self.cells):
            held = self.least[index * self.cells + cell]
            for other in self.chosen:
                held += other.idle[cell]
            self.room[cell] = held
        phase = self.phase_of[task]
        spent = self.spent[phase]
        for alone in self.lists[last]:
            beside = self.finder.engine(task, alone.layout, RESIDENT, self.room, INFINITY, alone)
            if beside is None:
                continue
            self.spent[phase] = spent + beside.seconds - self.fastest_engine
            use = self.keeps(self.ahead + index * self.phases)
            self.spent[phase] = spent
            if use:
                return True
        return False

    cdef int attempt(self, int index, Option option, Option shared) except -1:
        cdef int phase = self.phase_of[option.task]
        cdef double before = self.spent[phase], last
        if not self.of_use(index, option):
            return 0
        self.chosen.append(option)
        last = self.spent[self.last_phase]
        self.sync[index] = self.own_sync(index, option)
        self.spent[phase] += option.seconds
        self.spent[self.last_phase] += self.sync[index] + self.foreign_sync(index, option)
        if self.fits(index + 1):
            self.descend(index + 1, shared)
        self.spent[self.last_phase] = last
        self.spent[phase] = before
        self.chosen.pop()

    cdef double own_sync(self, int index, Option option):
        """Seconds of a sync from the group's own train task."""
        if self.source[index] < 0 or option.weights == SHARED:
            return 0.0
        return sync_from(self.t, (<Option>self.chosen[self.source[index]]).used, option)

    cdef bint of_use(self, int index, Option option):
        """Whether columns that go on with an option can keep any of the limits."""
        cdef int phase = self.phase_of[option.task]
        cdef double before = self.spent[phase], last = self.spent[self.last_phase]
        cdef bint use
        self.spent[phase] += option.seconds
        self.spent[self.last_phase] += self.own_sync(index, option) + self.foreign_sync(index, option)
        use = self.keeps(self.ahead + (index + 1) * self.phases)
        self.spent[self.last_phase] = last
        self.spent[phase] = before
        return use

    cdef bint keeps(self, const double* ahead) noexcept:
        """Whether what is spent, and what is spent ahead at least, keeps any of the limits."""
        cdef int k, phase, phases = self.phases
        cdef double load, step, priced
        for k in range(self.limits.shape[0]):
            step = priced = 0.0
            for phase in range(phases):
                load = self.spent[phase] + ahead[phase]
                step += fmax(load, self.limits[k, phase])
                priced += self.limits[k, phases + phase] * load
            if step < self.limits[k, 2 * phases] and priced < self.limits[k, 2 * phases + 1]:
                return True
        return False

    cdef bint fits(self, int following):
        """Whether every interval fits, with at least what the following tasks hold while idle."""
        cdef int cell
        cdef double limit, idle, sync, host
        cdef Option option
        for cell in range(self.cells):
            limit = self.t.node_limit[self.devices.cell_node[cell]]
            idle = sync = host = 0.0
            for each in self.chosen:
                option = each
                idle += option.idle[cell]
                sync += option.sync[cell]
                host += option.host[cell]
            if sync > limit or host > self.t.node_host_ram[self.devices.cell_node[cell]]:
                return False
            idle += self.least[following * self.cells + cell]
            for each in self.chosen:
                option = each
                if idle - option.idle[cell] + option.active[cell] > limit:
                    return False
        return True

    # --- columns that replace others ---------------------------------------------------------------------------------

    cdef bint as_good(self, int index, Option a, Option b):
        """Whether ``a`` may stand for ``b`` in a finished column; syncs inside the group are compared elsewhere."""
        if a.seconds > b.seconds:
            return False
        if self.source[index] >= 0:
            return self.finder.no_slower(a, b.seconds, b)
        return self.finder.as_fast(a, b.seconds, b, False, self.outside[index])

    cdef bint hosts_as_good(self, tuple a, list b, int following) noexcept:
        """Whether ``a`` holds no more host memory where other groups may be than ``b`` with all that follows."""
        cdef int cell, node
        cdef double here, there
        cdef Option option
        for cell in range(self.cells):
            node = self.devices.cell_node[cell]
            if self.devices.counts[node] == self.t.node_devices[node]:
                continue
            here, there = 0.0, self.least_host[following * self.cells + cell]
            for each in a:
                option = each
                here += option.host[cell]
            for each in b:
                option = each
                there += option.host[cell]
            if here > there:
                return False
        return True

    cdef bint covers(self, int index, Option option):
        """Whether an option is as good as every option that its task may still get, whatever is chosen before."""
        cdef Option other
        cdef bint result = True
        kept = self.covering[index].get(id(option))
        if kept is not None:
            return kept[0]
        for other in self.every_option(index):
            if not self.as_good(index, option, other):
                result = False
                break
        self.covering[index][id(option)] = (result, option)
        return result

    cdef double least_sync(self, int index):
        """Least seconds of a sync into a task that follows, from the chosen train task of its role."""
        cdef Option option, trainer = self.chosen[self.source[index]]
        cdef double least = INFINITY
        key = (<char*>trainer.used)[: self.t.num_nodes * sizeof(int)]
        found = self.least_syncs[index].get(key)
        if found is not None:
            return found
        for option in self.every_option(index):
            least = fmin(least, 0.0 if option.weights == SHARED else sync_from(self.t, trainer.used, option))
        self.least_syncs[index][key] = least
        return least

    cdef bint dominated(self, int index):
        """Whether some column is as good as everything that can still follow."""
        cdef int i
        cdef bint good, hosts = self.shares_hosts()
        if index < self.num_trainers:
            return False
        for column, syncs in zip(self.found, self.syncs):
            good = True
            for i in range(self.number - 1, -1, -1):
                if i >= index:
                    good = self.covers(i, <Option>column[i]) and (self.source[i] < 0 or syncs[i] <= self.least_sync(i))
                else:
                    good = syncs[i] <= self.sync[i] and self.as_good(i, <Option>column[i], <Option>self.chosen[i])
                if not good:
                    break
            if good and (not hosts or self.hosts_as_good(column, self.chosen, index)):
                return True
        return False

    cdef bint dominated_by_engine(self, int index, Option alone):
        cdef int i
        cdef bint good, hosts = self.shares_hosts()
        cdef double sync = self.own_sync(index, alone)
        for column, syncs in zip(self.found, self.syncs):
            good = syncs[index] <= sync and self.as_good(index, <Option>column[index], alone)
            for i in range(index):
                good = good and syncs[i] <= self.sync[i] and self.as_good(i, <Option>column[i], <Option>self.chosen[i])
            if good and (not hosts or self.hosts_as_good(column, self.chosen, index)):
                return True
        return False

    cdef bint shares_hosts(self) noexcept:
        """Whether a node of the group has devices that other groups may use, and host memory that could run out."""
        cdef int cell, node
        if not self.finder.hosts_matter:
            return False
        for cell in range(self.cells):
            node = self.devices.cell_node[cell]
            if self.devices.counts[node] < self.t.node_devices[node]:
                return True
        return False

    cdef bint column_as_good(self, tuple a, tuple syncs_a, tuple b, tuple syncs_b, bint hosts):
        cdef int i
        for i in range(self.number):
            if syncs_a[i] > syncs_b[i] or not self.as_good(i, <Option>a[i], <Option>b[i]):
                return False
        return not hosts or self.hosts_as_good(a, list(b), self.number)

    cdef void keep(self):
        cdef int i
        cdef bint hosts = self.shares_hosts()
        cdef tuple new = tuple(self.chosen), new_syncs = tuple([self.sync[i] for i in range(self.number)])
        for column, syncs in zip(self.found, self.syncs):
            if self.column_as_good(column, syncs, new, new_syncs, hosts):
                return
        kept = [
            (column, syncs)
            for column, syncs in zip(self.found, self.syncs)
            if not self.column_as_good(new, new_syncs, column, syncs, hosts)
        ]
        self.found = [column for column, _ in kept] + [new]
        self.syncs = [syncs for _, syncs in kept] + [new_syncs]
