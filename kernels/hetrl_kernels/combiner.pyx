# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Level 3: the combination of a group's options that takes least time and holds in every interval on every node."""

from array import array

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free

from hetrl_kernels.memory cimport DROPPED, RESIDENT
from hetrl_kernels.options cimport ALLOW_DROPPED
from hetrl_kernels.tables cimport GENERATE, TRAIN, fmax, fmin
from hetrl_kernels.transfers cimport sync_from

cdef enum:
    MAX_VISITS = 3000
cdef double ROUNDING = 1.0 + 1e-9  # needs of engines are compared with this much tolerance before they are worked out


cdef class Combiner:
    """Depth-first search over the options of a group's tasks, training first and generation last.

    A task whose weights another trains takes as long as it runs and its weights take to come: from the trainer in the group,
    or from the best connected devices of other groups.

    What is chosen is summed up per cell, a row for every number of chosen options. The engines are bounded ahead: the
    fastest whose smallest KV pools still find room beside what is chosen, and beside what the tasks before them hold at least.
    """

    # lists: options per task; trainer: position of the task that trains a task's role, -1 for none
    # ahead[i]: seconds of the tasks from position i on, engines left out; priced_ahead: the same with the syncs from the trainers
    # that are chosen; cost [number, longest]: seconds of every option with its sync; cheapest: least cost from an option on
    # roomy[i][e]: the first option of engine e that may have room beside the first i chosen options; generating[i]: seconds of
    # all engines from position i on with these, infinite if one of them finds no room
    # limit, host_ram, taken: [cells]
    # least [number + 1, cells]: idle bytes that the tasks from here on hold at least
    # the others [number + 1, cells], of the options chosen: sums of idle, sync and host bytes; the largest of active - idle
    # (peak), and of active or sync - idle (busy)

    def __cinit__(self, Finder finder, tuple tasks, Devices devices):
        cdef int cell, rows = len(tasks) + 1
        self.t = finder.t
        self.finder = finder
        self.devices = devices
        self.cells = devices.num_cells
        self.number = len(tasks)
        self.tasks = [task for _, task in sorted([(finder.t.task_kind[task], task) for task in tasks])]
        self.limit = <double*>calloc((6 * rows + 3) * self.cells, sizeof(double))
        self.host_ram = self.limit + self.cells
        self.taken = self.host_ram + self.cells
        self.least = self.taken + self.cells
        self.idle = self.least + rows * self.cells
        self.peak = self.idle + rows * self.cells
        self.busy = self.peak + rows * self.cells
        self.sync = self.busy + rows * self.cells
        self.host = self.sync + rows * self.cells
        for cell in range(self.cells):
            self.limit[cell] = self.t.node_limit[devices.cell_node[cell]]
            self.host_ram[cell] = self.t.node_host_ram[devices.cell_node[cell]]

    def __dealloc__(self):
        free(self.limit)
        free(self.cost)

    cdef list run(self, bint drops_idle):
        """Options in the order of training, scoring, generation; None if no combination holds.

        With ``drops_idle`` replicas without prompts get no weights.
        """
        self.drops_idle = drops_idle
        self.syncs, self.places = {}, {}
        self.lists = [self.finder.options(task, self.devices) for task in self.tasks]
        if not all(self.lists):
            return None
        self.longest = max([len(options) for options in self.lists], default=0)
        self.cost = <double*>calloc(2 * self.number * self.longest, sizeof(double))
        self.cheapest = self.cost + self.number * self.longest
        self.chosen = []
        self.best = None
        self.best_seconds = INFINITY
        self.look_ahead()
        self.engines_ahead(0)
        if self.generating[0] < INFINITY:
            self.descend(0, 0.0)
        self.finder.cut("KV_ROOM", self.no_room)
        self.finder.cut("COMBINATION_OVERFLOW", self.visits > MAX_VISITS)
        return self.best

    cdef void look_ahead(self):
        """What the tasks from every position on take and hold at least."""
        cdef int i, j, cell, task
        cdef double smallest
        cdef Option option
        for i in range(self.number):
            task = self.tasks[i]
            self.is_engine[i] = self.t.task_kind[task] == GENERATE
            self.num_trained += self.t.task_kind[task] == TRAIN
            self.trainer[i] = -1
            for j in range(i):
                if self.t.task_kind[<int>self.tasks[j]] == TRAIN and self.t.task_role[<int>self.tasks[j]] == self.t.task_role[task]:
                    self.trainer[i] = j
            self.price(i)
        self.sum_ahead(self.ahead)
        for i in range(self.number - 1, -1, -1):
            for cell in range(self.cells):
                smallest = 0.0
                if not self.is_engine[i] and self.trainer[i] < 0:
                    smallest = INFINITY
                    for each in self.lists[i]:
                        option = each
                        smallest = fmin(smallest, option.idle[cell])
                self.least[i * self.cells + cell] = smallest + self.least[(i + 1) * self.cells + cell]

    cdef void price(self, int index):
        """Seconds of a task's options with the weights' way to them, as far as it is known where they come from."""
        cdef int k, number = len(self.lists[index])
        cdef double* cost = self.cost + index * self.longest
        cdef double* cheapest = self.cheapest + index * self.longest
        cdef Option option
        for k in range(number):
            option = self.lists[index][k]
            cost[k] = option.seconds + self.weight_sync(index, option)
        for k in range(number - 1, -1, -1):
            cheapest[k] = fmin(cost[k], cheapest[k + 1]) if k + 1 < number else cost[k]

    cdef void sum_ahead(self, double* ahead):
        """Least seconds of the tasks from every position on, engines left out."""
        cdef int i
        cdef double seconds
        cdef Option option
        ahead[self.number] = 0.0
        for i in range(self.number - 1, -1, -1):
            seconds = self.cheapest[i * self.longest]
            if self.is_engine[i]:
                seconds = 0.0
            elif self.trainer[i] >= 0:  # sharing the trainer's weights may be faster than any option of its own
                if self.trainer[i] >= len(self.chosen):
                    seconds = 0.0
                else:
                    for option in self.finder.shared_options(self.tasks[i], self.chosen[self.trainer[i]]):
                        seconds = fmin(seconds, option.seconds)
            ahead[i] = ahead[i + 1] + seconds

    cdef void engines_ahead(self, int index):
        """Work out what the engines from position ``index`` on take at least beside the chosen options."""
        cdef int i, number, cell, here = index * self.cells
        cdef bint drops = self.finder.allowed[GENERATE, ALLOW_DROPPED], fits
        cdef double held
        cdef tuple options
        cdef Option option
        self.generating[index] = 0.0
        for i in range(index, self.number):
            if not self.is_engine[i]:
                continue
            options = self.lists[i]
            number = self.roomy[index - 1][i] if index else 0
            fits = False
            while number < len(options):
                option = options[number]
                fits = True
                for cell in range(self.cells):
                    held = self.idle[here + cell] + self.least[here + cell] + (0.0 if drops else self.busy[here + cell])
                    if option.need[cell] > 0 and held + option.need[cell] > self.limit[cell] * ROUNDING:
                        fits = False
                        break
                if fits:
                    break
                number += 1
            self.roomy[index][i] = number
            self.generating[index] += self.cheapest[i * self.longest + number] if fits else INFINITY

    cdef void descend(self, int index, double seconds):
        cdef int task, k
        cdef double others
        cdef const double* ahead = &self.ahead[0]
        cdef Option option
        self.visits += 1
        if self.visits > MAX_VISITS:
            return
        if index == self.number:
            self.best, self.best_seconds = list(self.chosen), seconds
            return
        if index == self.num_trained and index > 0:
            for k in range(index, self.number):
                if self.trainer[k] >= 0:
                    self.price(k)
            self.sum_ahead(self.priced_ahead)
            self.engines_ahead(index)
            if seconds + self.priced_ahead[index] + self.generating[index] >= self.best_seconds:
                return
        if self.is_engine[index]:
            self.engines(index, seconds)
            return
        if index >= self.num_trained > 0:
            ahead = &self.priced_ahead[0]
        task = self.tasks[index]
        if self.trainer[index] >= 0:
            for option in self.finder.shared_options(task, self.chosen[self.trainer[index]]):
                self.attempt(index, seconds + option.seconds, option)
        others = ahead[index + 1] + self.generating[index]
        for k in range(len(self.lists[index])):
            if seconds + self.cheapest[index * self.longest + k] + others >= self.best_seconds:
                break
            if seconds + self.cost[index * self.longest + k] + others < self.best_seconds:
                self.attempt(index, seconds + self.cost[index * self.longest + k], self.lists[index][k])

    cdef void engines(self, int index, double seconds):
        """Engines beside what is chosen: resident while the others run, or dropped then."""
        cdef int cell, here = index * self.cells, way, k
        cdef double sync
        cdef Option option, beside
        cdef bint fits
        for k in range(self.roomy[index][index], len(self.lists[index])):
            if seconds + self.cheapest[index * self.longest + k] >= self.best_seconds:
                return
            option = self.lists[index][k]
            sync = self.cost[index * self.longest + k] - option.seconds
            for way in range(2 if self.chosen and self.finder.allowed[GENERATE, ALLOW_DROPPED] else 1):
                if seconds + option.seconds + sync >= self.best_seconds or self.visits > MAX_VISITS:
                    break
                fits = True
                for cell in range(self.cells):
                    self.taken[cell] = self.idle[here + cell] + (self.busy[here + cell] if way == 0 else 0.0)
                    if option.need[cell] > 0 and self.taken[cell] + option.need[cell] > self.limit[cell] * ROUNDING:
                        fits = False
                        break
                if not fits:
                    self.no_room += 1
                    continue
                beside = self.finder.engine(
                    option.task, option.layout, RESIDENT if way == 0 else DROPPED, self.taken, self.best_seconds - seconds - sync, option
                )
                if beside is not None:
                    self.attempt(index, seconds + beside.seconds + self.weight_sync(index, beside), beside)

    cdef void attempt(self, int index, double seconds, Option option):
        """Choose an option, with which all that is chosen takes ``seconds``."""
        cdef const double* ahead = &self.ahead[0]
        if index >= self.num_trained > 0:
            ahead = &self.priced_ahead[0]
        if seconds + ahead[index + 1] >= self.best_seconds or not self.push(index, option):
            return
        self.engines_ahead(index + 1)
        if seconds + ahead[index + 1] + self.generating[index + 1] >= self.best_seconds:
            return
        self.chosen.append(option)
        self.descend(index + 1, seconds)
        self.chosen.pop()

    cdef double weight_sync(self, int index, Option option):
        """Seconds of the weights' way to an option of the task at a position; 0 where they come from is not decided."""
        cdef int i
        cdef bytes places
        if index < self.num_trained or not self.t.task_trained[option.task] or self.trainer[index] >= len(self.chosen):
            return 0.0
        places = self.places_of(self.chosen[self.trainer[index]] if self.trainer[index] >= 0 else None)
        for i in range(option.layout.num_replicas if self.drops_idle else 0):
            if option.prompts[i] == 0:
                return sync_from(self.t, <const int*><char*>places, option, True)
        key = (places, id(option.layout))
        found = self.syncs.get(key)
        if found is None:
            found = self.syncs[key] = sync_from(self.t, <const int*><char*>places, option, False)
        return found

    cdef bytes places_of(self, Option trainer):
        """Marks of the nodes that weights come from: a trainer's, or those with devices of other groups."""
        cdef int node
        places = self.places.get(id(trainer))
        if places is None:
            marks = [
                (trainer.used[node] if trainer is not None else self.t.node_devices[node] - self.devices.counts[node]) > 0
                for node in range(self.t.num_nodes)
            ]
            places = self.places[id(trainer)] = array("i", marks).tobytes()
        return places

    cdef bint push(self, int index, Option option) noexcept:
        """Sums with one more option; whether every interval fits, with at least what the following tasks hold while idle."""
        cdef int cell, old = index * self.cells, new = old + self.cells
        for cell in range(self.cells):
            self.idle[new] = self.idle[old] + option.idle[cell]
            self.sync[new] = self.sync[old] + option.sync[cell]
            self.host[new] = self.host[old] + option.host[cell]
            self.peak[new] = fmax(self.peak[old], option.active[cell] - option.idle[cell])
            self.busy[new] = fmax(self.busy[old], fmax(option.active[cell], option.sync[cell]) - option.idle[cell])
            if (
                self.idle[new] + self.least[new] + self.peak[new] > self.limit[cell] or self.sync[new] > self.limit[cell]
                or self.host[new] > self.host_ram[cell]
            ):
                return False
            old += 1
            new += 1
        return True
