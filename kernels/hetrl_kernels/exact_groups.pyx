# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""All ways to run a group of tasks on its devices of which none replaces another, and the same on other, equal nodes."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hetrl_kernels.fronts cimport ExactFinder, shareable
from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport DROPPED, RESIDENT
from hetrl_kernels.options cimport Option, new_option
from hetrl_kernels.tables cimport GENERATE, MAX_TASKS, SCORE, TRAIN, Tables, fmax, fmin

import numpy as np

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
    phase_limits
        Seconds that the group's tasks of a phase may take together.
    max_columns
        Columns, and a thousand times as many visits, after which the search gives up.
    """

    cdef ExactFinder finder
    cdef Tables t
    cdef Devices devices
    cdef int cells, number
    cdef list tasks, lists, chosen
    cdef dict pairs
    cdef int[MAX_TASKS] trainer  # position of the task that trains this role, -1 for none
    cdef int[::1] phase_of
    cdef double[::1] phase_limits
    cdef double* least  # [number + 1, cells] idle bytes that the tasks from here on hold at least
    cdef double* least_host  # [number + 1, cells] host bytes that they hold at least
    cdef double* ahead  # [number + 1, phases] seconds that they take at least
    cdef double* fastest  # [number] their fastest
    cdef double* room  # [cells]
    cdef double* spent  # [phases]
    cdef list covering  # per position: whether an option covers every option of the position's list, by id
    cdef readonly list found
    cdef readonly bint overflow
    cdef readonly long long visits
    cdef long long max_columns

    def __cinit__(
        self, ExactFinder finder, tuple tasks, bytes counts, dict fronts, dict pairs, int[::1] phase_of, double[::1] phase_limits,
        long long max_columns):
        cdef int i, j, cell, task, other, phase, phases = phase_limits.shape[0]
        cdef Option option
        cdef double smallest
        self.finder, self.t = finder, finder.t
        self.devices = finder.devices(counts)
        self.cells = self.devices.num_cells
        self.number = len(tasks)
        self.tasks = [task for _, task in sorted([(finder.t.task_kind[task], task) for task in tasks])]
        self.lists = [fronts[task] for task in self.tasks]
        self.pairs = pairs
        self.phase_of, self.phase_limits = phase_of, phase_limits
        self.max_columns = max_columns
        self.found, self.chosen = [], []
        self.least = <double*>calloc((2 * self.number + 3) * self.cells + (self.number + 3) * phases + self.number, sizeof(double))
        self.room = self.least + (self.number + 1) * self.cells
        self.least_host = self.room + self.cells
        self.ahead = self.least_host + (self.number + 1) * self.cells
        self.spent = self.ahead + (self.number + 1) * phases
        self.fastest = self.spent + phases
        for i in range(self.number - 1, -1, -1):
            task = self.tasks[i]
            self.trainer[i] = -1
            for j in range(i):
                other = self.tasks[j]
                if finder.t.task_kind[other] == TRAIN and finder.t.task_role[other] == finder.t.task_role[task] and finder.t.task_kind[task] == SCORE:
                    self.trainer[i] = j
            smallest = INFINITY
            for each in self.lists[i]:
                option = each
                smallest = fmin(smallest, option.seconds)
            if self.trainer[i] >= 0:
                for pair in pairs[(self.tasks[self.trainer[i]], task)]:
                    option = pair[1]
                    smallest = fmin(smallest, option.seconds)
            self.fastest[i] = smallest
            for phase in range(phases):
                self.ahead[i * phases + phase] = self.ahead[(i + 1) * phases + phase] + (smallest if phase_of[task] == phase else 0.0)
            for cell in range(self.cells):
                smallest = 0.0
                if finder.t.task_kind[task] != GENERATE and self.trainer[i] < 0:
                    smallest = INFINITY
                    for each in self.lists[i]:
                        option = each
                        smallest = fmin(smallest, option.idle[cell])
                    if finder.t.task_kind[task] == TRAIN:
                        for (first, _), joint in pairs.items():
                            if first == task:
                                for pair in joint:
                                    option = pair[0]
                                    smallest = fmin(smallest, option.idle[cell])
                self.least[i * self.cells + cell] = smallest + self.least[(i + 1) * self.cells + cell]
                smallest = 0.0
                if finder.t.task_kind[task] != TRAIN and self.trainer[i] < 0:
                    smallest = INFINITY
                    for each in self.lists[i]:
                        option = each
                        smallest = fmin(smallest, option.host[cell])
                self.least_host[i * self.cells + cell] = smallest + self.least_host[(i + 1) * self.cells + cell]
        self.covering = []
        for i in range(self.number):
            self.covering.append({})

    def __dealloc__(self):
        free(self.least)

    def run(self):
        """The columns, each a tuple of options in the group's order of kinds."""
        self.descend(0, None)
        return self.found

    cdef void descend(self, int index, Option shared):
        """``shared`` is the option with which the train task's scorer goes, already decided."""
        cdef int i, task, partner = -1
        cdef Option option, score
        self.visits += 1
        if self.visits > 1000 * self.max_columns or len(self.found) > self.max_columns:
            self.overflow = True
            return
        if index == self.number:
            self.keep()
            return
        if self.dominated(index):
            return
        task = self.tasks[index]
        if self.t.task_kind[task] == GENERATE:
            for option in self.lists[index]:
                self.engines(index, option)
            return
        if self.t.task_kind[task] == SCORE and shared is not None and self.trainer[index] >= 0:
            self.attempt(index, shared, None)
            return
        if self.t.task_kind[task] == TRAIN:
            for i in range(index + 1, self.number):
                if self.trainer[i] == index:
                    partner = i
            if partner >= 0:
                for option, score in self.pairs[(task, self.tasks[partner])]:
                    self.attempt(index, option, score)
        for option in self.lists[index]:
            self.attempt(index, option, shared)

    cdef void engines(self, int index, Option alone):
        """The engine beside what is chosen, its weights resident or dropped while it is idle."""
        cdef int cell, i
        cdef double held, busy
        cdef Option other, beside
        if self.found and self.dominated_by_engine(index, alone):
            return
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

    cdef void attempt(self, int index, Option option, Option shared):
        cdef int phases = self.phase_limits.shape[0], phase = self.phase_of[option.task], i
        cdef double before = self.spent[phase], ahead = self.ahead[(index + 1) * phases + phase]
        if before + option.seconds + ahead >= self.phase_limits[phase]:
            return
        self.chosen.append(option)
        self.spent[phase] = before + option.seconds
        if self.fits(index + 1):
            self.descend(index + 1, shared)
        self.spent[phase] = before
        self.chosen.pop()

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

    cdef bint as_good(self, Option a, Option b) noexcept:
        """Whether ``a`` may stand for ``b`` in a finished column: no slower, on equal links or fast enough not to mind."""
        if a.seconds > b.seconds:
            return False
        return a.seconds + self.finder.far[a.task] <= b.seconds or self.finder.same_links(a, b)

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
        cdef bint result
        kept = self.covering[index].get(id(option))
        if kept is not None:
            return kept[0]
        result = True
        others = list(self.lists[index])
        if self.trainer[index] >= 0:
            others += [pair[1] for pair in self.pairs[(self.tasks[self.trainer[index]], self.tasks[index])]]
        if self.t.task_kind[<int>self.tasks[index]] == TRAIN:
            for (first, _), joint in self.pairs.items():
                if first == self.tasks[index]:
                    others += [pair[0] for pair in joint]
        for each in others:
            other = each
            if not self.as_good(option, other):
                result = False
                break
        self.covering[index][id(option)] = (result, option)
        return result

    cdef bint dominated(self, int index):
        """Whether some column is as good as everything that can still follow."""
        cdef int i
        cdef bint good, hosts = self.shares_hosts()
        for column in self.found:
            good = True
            for i in range(self.number - 1, -1, -1):
                if i >= index:
                    good = self.covers(i, <Option>column[i])
                else:
                    good = self.as_good(<Option>column[i], <Option>self.chosen[i])
                if not good:
                    break
            if good and (not hosts or self.hosts_as_good(column, self.chosen, index)):
                return True
        return False

    cdef bint dominated_by_engine(self, int index, Option alone):
        cdef int i
        cdef bint good, hosts = self.shares_hosts()
        for column in self.found:
            good = self.as_good(<Option>column[index], alone)
            for i in range(index):
                good = good and self.as_good(<Option>column[i], <Option>self.chosen[i])
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

    cdef void keep(self):
        cdef int i
        cdef bint good, hosts = self.shares_hosts()
        for column in self.found:
            good = True
            for i in range(self.number):
                if not self.as_good(<Option>column[i], <Option>self.chosen[i]):
                    good = False
                    break
            if good and (not hosts or self.hosts_as_good(column, self.chosen, self.number)):
                return
        cdef tuple new = tuple(self.chosen)
        kept = []
        for column in self.found:
            good = True
            for i in range(self.number):
                if not self.as_good(<Option>new[i], <Option>column[i]):
                    good = False
                    break
            if not (good and (not hosts or self.hosts_as_good(new, list(column), self.number))):
                kept.append(column)
        kept.append(new)
        self.found = kept


def relocated(Option option, int[::1] to, Devices devices):
    """The same option on other nodes that are equal to its own.

    Parameters
    ----------
    to
        ``[N]`` new node of every old one.
    devices
        The group's devices on the new nodes.
    """
    cdef Layout old = option.layout
    cdef Layout layout = Layout.__new__(Layout)
    cdef Option result
    cdef int i, cell, node, cells = devices.num_cells, before = old.devices.num_cells
    cdef Tables t
    layout.degree, layout.degree_index, layout.num_replicas = old.degree, old.degree_index, old.num_replicas
    layout.num_slots, layout.max_stages, layout.num_classes = old.num_slots, old.max_stages, old.num_classes
    layout.devices = devices
    layout.first = <int*>malloc((old.num_replicas + 1) * sizeof(int))
    layout.node = <int*>malloc(old.num_slots * sizeof(int))
    layout.layers = <int*>malloc(old.num_slots * sizeof(int))
    layout.class_of = <int*>malloc(old.num_replicas * sizeof(int))
    layout.representative = <int*>malloc(old.num_replicas * sizeof(int))
    layout.class_size = <int*>calloc(old.num_replicas, sizeof(int))
    memcpy(layout.first, old.first, (old.num_replicas + 1) * sizeof(int))
    memcpy(layout.layers, old.layers, old.num_slots * sizeof(int))
    memcpy(layout.class_of, old.class_of, old.num_replicas * sizeof(int))
    memcpy(layout.representative, old.representative, old.num_classes * sizeof(int))
    memcpy(layout.class_size, old.class_size, old.num_classes * sizeof(int))
    for i in range(old.num_slots):
        layout.node[i] = to[old.node[i]]
    result = Option.__new__(Option)
    result.layout, result.task, result.micro_batch = layout, option.task, option.micro_batch
    result.recompute, result.sharding, result.weights, result.optimizer = option.recompute, option.sharding, option.weights, option.optimizer
    result.seconds, result.shape, result.full = option.seconds, option.shape, option.full
    result.prompts = <int*>malloc(old.num_replicas * sizeof(int))
    memcpy(result.prompts, option.prompts, old.num_replicas * sizeof(int))
    result.used = <int*>calloc(to.shape[0], sizeof(int))
    for node in range(to.shape[0]):
        if option.used[node]:
            result.used[to[node]] = option.used[node]
    if option.kv != NULL:
        result.kv = <double*>malloc(old.num_classes * sizeof(double))
        memcpy(result.kv, option.kv, old.num_classes * sizeof(double))
    result.active = <double*>calloc(4 * cells, sizeof(double))
    result.idle = result.active + cells
    result.sync = result.idle + cells
    result.host = result.sync + cells
    for node in range(to.shape[0]):
        if option.used[node]:
            cell = devices.cell[to[node]]
            for i in range(4):
                result.active[i * cells + cell] = option.active[i * before + old.devices.cell[node]]
    return result
