# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Level 3 once more for groups that are kept: the fastest combination of long lists of options, for the step that results."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free

from hetrl_kernels.combiner cimport Combiner
from hetrl_kernels.finder cimport Finder
from hetrl_kernels.memory cimport DROPPED, RESIDENT
from hetrl_kernels.options cimport ALLOW_DROPPED, Option
from hetrl_kernels.tables cimport GENERATE, MAX_TASKS, SCORE, TRAIN, fmax, fmin


cdef class Choices:
    """What a task may get, fastest first: an option, or for a training task with a scorer that shares its weights, a pair."""

    # nodes: those in use, as bytes, since weights go from and to other nodes then
    # figures [number, width]: seconds of the task, and of the scorer; per cell idle, sync and host bytes, active - idle, and
    # active or sync - idle, whichever is more
    cdef list options, scorers, nodes
    cdef int number, cells, width
    cdef double* figures

    def __cinit__(self, list entries, int cells, int num_nodes):
        cdef int k, cell
        cdef double* row
        cdef Option option, scorer
        self.number, self.cells, self.width = len(entries), cells, 2 + 5 * cells
        self.options = [option for option, _ in entries]
        self.scorers = [scorer for _, scorer in entries]
        self.nodes = []
        self.figures = <double*>calloc(max(1, self.number * self.width), sizeof(double))
        for k in range(self.number):
            option, scorer = entries[k]
            row = self.figures + k * self.width
            row[0] = option.seconds
            row[1] = scorer.seconds if scorer is not None else 0.0
            self.nodes.append((<char*>option.used)[: num_nodes * sizeof(int)])
            for cell in range(cells):
                row[2 + cell] = option.idle[cell]
                row[2 + cells + cell] = option.sync[cell]
                row[2 + 2 * cells + cell] = option.host[cell]
                row[2 + 3 * cells + cell] = option.active[cell] - option.idle[cell]
                row[2 + 4 * cells + cell] = fmax(option.active[cell], option.sync[cell]) - option.idle[cell]
                if scorer is not None:  # holds nothing while it is idle
                    row[2 + cells + cell] += scorer.sync[cell]
                    row[2 + 2 * cells + cell] += scorer.host[cell]
                    row[2 + 3 * cells + cell] = fmax(row[2 + 3 * cells + cell], scorer.active[cell])
                    row[2 + 4 * cells + cell] = fmax(row[2 + 4 * cells + cell], scorer.active[cell])

    def __dealloc__(self):
        free(self.figures)

    cdef list undominated(self, bint by_nodes, const double* peak, const double* busy):
        """Choices of which none is as good as another beside options with these peaks."""
        cdef int k, other, cell, cells = self.cells
        cdef const double* a
        cdef const double* b
        cdef list kept = []
        cdef bint dominated
        for k in range(self.number):
            a = self.figures + k * self.width
            dominated = False
            for other in kept:
                b = self.figures + other * self.width
                if b[0] > a[0] or b[1] > a[1] or (self.scorers[other] is None) != (self.scorers[k] is None):
                    continue
                if by_nodes and self.nodes[other] != self.nodes[k]:
                    continue
                dominated = True
                for cell in range(3 * cells):
                    if b[2 + cell] > a[2 + cell]:
                        dominated = False
                        break
                if not dominated:
                    continue
                b += 2 + 3 * cells
                for cell in range(cells):
                    if (
                        b[cell] > fmax(peak[cell], a[2 + 3 * cells + cell])
                        or b[cells + cell] > fmax(busy[cell], a[2 + 4 * cells + cell])
                    ):
                        dominated = False
                        break
                if dominated:
                    break
            if not dominated:
                kept.append(k)
        return kept


cdef class Recombiner(Combiner):
    """Depth-first search like the `Combiner`'s, with stronger bounds and another objective.

    The objective is the step's phases one after the other, each as long as the slower of this group and the others.
    At every node the engine is bounded by what it takes in the room beside what is chosen, and beside what the tasks that
    follow hold at least. Of a task's options those are tried of which none is as good as another beside what is chosen.
    """

    # choices: per position; undominated: (position, peak, busy) -> indices into these
    # partner: position of the scorer that may share a training task's weights, or -1; given: per position the scorer that
    # shares; spent: [phases] of what is chosen; later [number + 1, phases]: least seconds of the tasks from a position on,
    # engines with all memory to themselves; first_engine: its position, `number` if there is none; fastest: per position
    # in_room: sums of idle bytes -> least seconds of the first engine beside them
    cdef int phases, last_phase, first_engine
    cdef long long max_visits
    cdef int[::1] phase_of
    cdef double[::1] floors
    cdef double* spent
    cdef double* later
    cdef double[MAX_TASKS] fastest
    cdef int[MAX_TASKS] partner
    cdef list choices, given
    cdef double best_step
    cdef long long num_visits
    cdef dict in_room, undominated

    def __dealloc__(self):
        free(self.spent)

    cdef list best_below(
        self, dict lists, dict pairs, int[::1] phase_of, double[::1] floors, double limit, long long max_visits):
        """Options of the best combination whose step is shorter than ``limit``; None if there is none."""
        cdef int i, phase
        self.lists = [tuple(lists[task]) for task in self.tasks]
        self.drops_idle = True
        self.phase_of, self.floors, self.max_visits = phase_of, floors, max_visits
        self.phases, self.last_phase = floors.shape[0], floors.shape[0] - 1
        self.syncs, self.places, self.in_room, self.undominated = {}, {}, {}, {}
        self.longest = max([len(options) for options in self.lists])
        self.cost = <double*>calloc(2 * self.number * max(1, self.longest), sizeof(double))
        self.cheapest = self.cost + self.number * self.longest
        self.spent = <double*>calloc((self.number + 2) * self.phases, sizeof(double))
        self.later = self.spent + self.phases
        self.chosen, self.best, self.best_step = [], None, limit
        self.given = [None] * self.number
        self.gather(pairs)
        for i in range(self.number):
            if not self.choices[i] and self.trainer[i] < 0:
                return None
        for i in range(self.number - 1, -1, -1):
            for phase in range(self.phases):
                self.later[i * self.phases + phase] = self.later[(i + 1) * self.phases + phase]
            self.later[i * self.phases + phase_of[<int>self.tasks[i]]] += self.fastest[i]
        self.choose(0)
        return self.best

    cdef void gather(self, dict pairs):
        """What every task may get, and holds and takes at least."""
        cdef int i, j
        cdef Option option, scorer
        self.look_ahead()
        self.first_engine = self.number
        self.choices = []
        joint = {}
        for i in range(self.number):
            self.partner[i] = -1
            self.fastest[i] = INFINITY
            for option in self.lists[i]:
                self.fastest[i] = fmin(self.fastest[i], option.seconds)
        for i in range(self.number - 1, -1, -1):
            if self.is_engine[i]:
                self.first_engine = i
            for j in range(i + 1, self.number):
                if self.trainer[j] == i and self.t.task_kind[<int>self.tasks[j]] == SCORE:
                    self.partner[i] = j
                    joint[i] = pairs.get((self.tasks[i], self.tasks[j]), [])
                    for option, scorer in joint[i]:
                        self.fastest[i] = fmin(self.fastest[i], option.seconds)
                        self.fastest[j] = fmin(self.fastest[j], scorer.seconds)
        for i in range(self.number):
            entries = [(option, None) for option in self.lists[i]] + joint.get(i, [])
            entries.sort(key=_seconds_of)
            self.choices.append(Choices(entries, self.cells, self.t.num_nodes))

    cdef double step(self, int index) noexcept:
        """Least seconds of the phases with what is chosen and what follows from a position on."""
        cdef int phase
        cdef double total = 0.0
        for phase in range(self.phases):
            total += fmax(self.floors[phase], self.spent[phase] + self.later[index * self.phases + phase])
        return total

    cdef void choose(self, int index):
        cdef int k, partner
        cdef Choices choices
        cdef Option option, scorer
        cdef double before
        self.num_visits += 1
        if self.num_visits > self.max_visits:
            return
        if index == self.number:
            self.best, self.best_step = list(self.chosen), self.step(index)
            return
        if self.is_engine[index]:
            self.choose_engine(index)
            return
        if self.first_engine < self.number and not self.engine_remains(index):
            return
        if self.given[index] is not None:
            option = self.given[index]
            self.take(index, option, option.seconds, 0.0)
            return
        choices = self.choices[index]
        partner = self.partner[index]
        for k in self.worth_trying(index):
            option = choices.options[k]
            if not self.of_use(index, option.seconds):
                break
            if partner < 0:
                self.take(index, option, option.seconds, self.weight_sync(index, option))
                continue
            scorer = choices.scorers[k]
            before = self.spent[self.phase_of[<int>self.tasks[partner]]]
            self.given[partner] = scorer
            if scorer is not None:
                self.spent[self.phase_of[scorer.task]] = before + scorer.seconds - self.fastest[partner]
            self.take(index, option, option.seconds, 0.0)
            self.spent[self.phase_of[<int>self.tasks[partner]]] = before
            self.given[partner] = None

    cdef list worth_trying(self, int index):
        """Choices of which none is as good as another beside what is chosen."""
        cdef Choices choices = self.choices[index]
        cdef int task = self.tasks[index]
        cdef bint by_nodes
        cdef double* peak = self.peak + index * self.cells
        cdef double* busy = self.busy + index * self.cells
        key = (index, (<char*>peak)[: self.cells * sizeof(double)], (<char*>busy)[: self.cells * sizeof(double)])
        found = self.undominated.get(key)
        if found is None:
            by_nodes = self.t.task_kind[task] == TRAIN or self.t.task_trained[task]
            found = self.undominated[key] = choices.undominated(by_nodes, peak, busy)
        return found

    cdef bint of_use(self, int index, double seconds) noexcept:
        """Whether a task that takes so long can still be part of a better combination."""
        cdef int phase = self.phase_of[<int>self.tasks[index]]
        cdef double before = self.spent[phase], step
        self.spent[phase] = before + seconds
        step = self.step(index + 1)
        self.spent[phase] = before
        return step < self.best_step

    cdef void take(self, int index, Option option, double seconds, double sync):
        """Choose an option that takes so long, and whose weights take so long to come."""
        cdef int phase = self.phase_of[option.task]
        cdef double last = self.spent[self.last_phase], before
        self.spent[self.last_phase] = last + sync
        before = self.spent[phase]
        self.spent[phase] = before + seconds
        if self.given[index] is not None:
            self.spent[phase] -= seconds - self.fastest[index]  # what was counted when its trainer was chosen
        if self.step(index + 1) < self.best_step and self.push(index, option):
            self.chosen.append(option)
            self.choose(index + 1)
            self.chosen.pop()
        self.spent[phase] = before
        self.spent[self.last_phase] = last

    cdef bint engine_remains(self, int index):
        """Whether some engine is fast enough in the room that is left."""
        cdef int cell, here = index * self.cells, phase = self.phase_of[<int>self.tasks[self.first_engine]]
        cdef bint drops = self.finder.allowed[GENERATE, ALLOW_DROPPED]
        cdef double seconds, before = self.spent[phase]
        cdef Option alone, beside
        cdef bint use
        for cell in range(self.cells):
            self.taken[cell] = self.idle[here + cell] + self.least[here + cell] + (0.0 if drops else self.busy[here + cell])
        key = (<char*>self.taken)[: self.cells * sizeof(double)]
        found = self.in_room.get(key)
        if found is None:
            seconds = INFINITY
            for alone in self.lists[self.first_engine]:
                if alone.seconds >= seconds:
                    break
                beside = self.finder.engine(alone.task, alone.layout, RESIDENT, self.taken, seconds, alone)
                if beside is not None:
                    seconds = beside.seconds
            self.in_room[key] = seconds
        else:
            seconds = found
        self.spent[phase] = before + seconds - self.fastest[self.first_engine]
        use = self.step(index) < self.best_step
        self.spent[phase] = before
        return use

    cdef void choose_engine(self, int index):
        """Engines beside what is chosen: resident while the others run, or dropped then."""
        cdef int cell, here = index * self.cells, way, k
        cdef Option alone, beside
        for k in range(len(self.lists[index])):
            alone = self.lists[index][k]
            if not self.of_use(index, alone.seconds):
                return
            for way in range(2 if self.chosen and self.finder.allowed[GENERATE, ALLOW_DROPPED] else 1):
                for cell in range(self.cells):
                    self.taken[cell] = self.idle[here + cell] + (self.busy[here + cell] if way == 0 else 0.0)
                beside = self.finder.engine(
                    alone.task, alone.layout, RESIDENT if way == 0 else DROPPED, self.taken, INFINITY, alone
                )
                if beside is not None and self.of_use(index, beside.seconds):
                    self.take(index, beside, beside.seconds, self.weight_sync(index, beside))


def _seconds_of(entry):
    return (<Option>entry[0]).seconds


def recombine(
    Finder finder, tuple tasks, bytes counts, dict lists, dict pairs, int[::1] phase_of, double[::1] floors, double limit,
    long long max_visits):
    """The best combination of options for a group, in the order of its tasks, whose step is shorter than a limit.

    None if there is no such combination.

    Parameters
    ----------
    finder, tasks, counts
        The group: its tasks, and int32 devices per node.
    lists
        Task -> options, fastest first.
    pairs
        (train task, score task) -> pairs of options, the second scoring with the first's weights.
    phase_of
        ``[A]`` phase of every task.
    floors
        ``[phases]`` seconds of the other groups.
    limit
        Seconds of all phases, each as long as the slower of this group and the others.
    max_visits
        After so many nodes the best so far is returned.
    """
    cdef Recombiner search = Recombiner(finder, tasks, finder.devices(counts))
    best = search.best_below(lists, pairs, phase_of, floors, limit, max_visits)
    if best is None:
        return None
    by_task = {(<Option>option).task: option for option in best}
    return tuple([by_task[task] for task in tasks])
