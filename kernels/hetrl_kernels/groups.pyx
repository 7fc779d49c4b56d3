# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Levels 3 and 4: costs of groups, and what a step of all groups costs."""

from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free, malloc

from hetrl_kernels.combiner cimport Combiner
from hetrl_kernels.layouts cimport Devices
from hetrl_kernels.memory cimport SHARED
from hetrl_kernels.finder cimport Finder
from hetrl_kernels.options cimport Option
from hetrl_kernels.schedule cimport MAX_ACTIVITIES, Activities, asynchronous_period, best_schedule
from hetrl_kernels.tables cimport SCORE, TRAIN, Tables, fmax
from hetrl_kernels.transfers cimport data_seconds, sync_from

cdef enum:
    SMALL_FLEET = 32  # transfers are memoised in larger ones


cdef class Choice:
    """The chosen options of a group's tasks, in the group's order."""


cdef class Steps:
    """Costs of groups and of whole steps, memoised.

    Parameters
    ----------
    finder
        Options of single tasks.
    fluid
        Lower bounds, ``[A, Y]``: device-seconds of a task on devices of one type; n devices need at least 1/n of it.
    latency
        Lower bounds, ``[A]``: seconds of a task however many devices it has.
    fixed
        Lower bounds, ``[A]``: seconds on top of the fluid part.
    dollars
        The objective is dollars per step instead of seconds.
    most_dollars
        Dearer steps count as infeasible, graded by their price.
    """

    def __init__(
        self, Finder finder, double[:, ::1] fluid, double[::1] latency, double[::1] fixed, bint dollars, double most_dollars=INFINITY):
        self.fluid = fluid
        self.latency = latency
        self.fixed = fixed
        self.finder = finder
        self.t = finder.t
        self.dollars = dollars
        self.most_dollars = most_dollars
        self.groups = {}
        self.costs = {}
        self.bounds = {}
        self.transfers = {}
        self.areas = {}
        self.drops_idle = finder.cutoff < 0  # the exact solver keeps them

    cdef Devices area(self, bytes key):
        found = self.areas.get(key)
        if found is None:
            found = self.areas[key] = self.finder.devices(key)
        return found

    cpdef group(self, tuple tasks, bytes counts):
        """Best combination for a group of tasks on its devices (int32 counts per node), or None if none fits."""
        cdef Choice choice = None
        cdef Combiner combiner
        key = (tasks, counts)
        if key in self.groups:
            return self.groups[key]
        cdef Devices devices = self.area(counts)
        if devices.num_devices:
            self.num_combined += 1
            combiner = Combiner(self.finder, tasks, devices)
            best = combiner.run(self.drops_idle)
            if best is not None:
                by_task = {(<Option>option).task: option for option in best}
                choice = Choice.__new__(Choice)
                choice.options = tuple([by_task[task] for task in tasks])
                choice.seconds = combiner.best_seconds
                choice.devices = devices
        self.groups[key] = choice
        if choice is None:
            self.finder.cuts["GROUP_MEMORY"] = self.finder.cuts.get("GROUP_MEMORY", 0) + 1
        return choice

    cpdef Choice choice(self, tuple options, bytes counts):
        """Given options of a group's tasks on its devices."""
        cdef Choice choice = Choice.__new__(Choice)
        cdef double seconds = 0.0
        for option in options:
            seconds += (<Option>option).seconds
        choice.options, choice.seconds, choice.devices = options, seconds, self.area(counts)
        return choice

    cpdef double placed(self, list choices):
        """Seconds of a step of these choices, inf where a host lacks memory."""
        self.transfers.clear()  # kept by identity, and these options do not last
        return self.step_seconds(choices) if self.hosts_fit(choices) else INFINITY

    cpdef double price(self, list choices):
        """Dollars per second of the devices that these choices use."""
        return self.dollars_per_second(choices)

    cpdef double weight_sync(self, Option source, Option target):
        """Seconds of a weight sync between two options."""
        self.transfers.clear()
        return self.sync_seconds(source, target)

    cpdef tuple alone(self, int task, bytes counts):
        """Options of one task with the devices to itself, fastest first."""
        cdef Devices devices = self.area(counts)
        return self.finder.options(task, devices) if devices.num_devices else ()

    cpdef double screen(self, tuple grouping, tuple assignment):
        """Lower bound that needs no options at all; dollars have none, since devices may stay unused."""
        return 0.0 if self.dollars else self.fluid_seconds(grouping, assignment)

    cpdef double rank(self, tuple grouping, tuple assignment):
        """Figure by which starting assignments are put in order: fluid seconds, times the devices' price where dollars matter."""
        cdef double price = 0.0
        cdef int node
        cdef const int* counts
        if self.dollars or self.most_dollars < INFINITY:
            for tasks, key in zip(grouping, assignment):
                if not tasks:
                    continue  # devices that stay unused
                counts = <const int*><char*>(<bytes>key)
                for node in range(self.t.num_nodes):
                    if counts[node]:
                        price += counts[node] * self.t.node_usd[node]
            return self.fluid_seconds(grouping, assignment) * price
        return self.fluid_seconds(grouping, assignment)

    cdef double fluid_seconds(self, tuple grouping, tuple assignment):
        """Longest path with every task at its fluid bound."""
        cdef Activities activities
        self.num_screened += 1
        self.fluid_activities(grouping, assignment, &activities)
        return self.scheduled(&activities)

    cdef void fluid_activities(self, tuple grouping, tuple assignment, Activities* activities):
        """All tasks at their fluid bounds on their groups' devices, without transfers."""
        cdef int node, number, task, y
        cdef const int* counts
        cdef double[64] devices
        cdef double rate
        for number in range(len(grouping)):
            counts = <const int*><char*>(<bytes>assignment[number])
            for y in range(self.t.num_types):
                devices[y] = 0.0
            for node in range(self.t.num_nodes):
                devices[self.t.node_type[node]] += counts[node]
            for task in grouping[number]:
                rate = 0.0
                for y in range(self.t.num_types):
                    rate += devices[y] / self.fluid[task, y]
                activities.seconds[task] = fmax(self.latency[task], 1.0 / rate + self.fixed[task] if rate > 0 else INFINITY)
                activities.groups[task] = <unsigned int>1 << number
        self.edges(activities)

    cdef double scheduled(self, const Activities* activities) noexcept:
        return asynchronous_period(activities, self.t.staleness) if self.t.staleness > 0 else best_schedule(activities)

    cdef void edges(self, Activities* activities) noexcept:
        """The tasks' needs, without transfers."""
        cdef int i, j
        activities.number = self.t.num_tasks
        for i in range(self.t.num_tasks):
            activities.needs[i] = 0
            for j in range(i):
                activities.transfer[i][j] = 0.0
                if self.t.task_needs[i, j]:
                    activities.needs[i] |= <unsigned int>1 << j

    cpdef double bound(self, tuple grouping, tuple assignment, double cutoff=INFINITY):
        """Longest path with every task at its fastest on its group's devices, alone, without transfers.

        Tasks whose options are not known yet are at their fluid bounds first, and worked out one by one, the largest
        uncertainty first, until the bound reaches ``cutoff``.
        """
        cdef Activities activities
        cdef double seconds
        if self.dollars:
            return 0.0
        key = (grouping, assignment)
        found = self.bounds.get(key)
        if found is not None:
            return found
        self.fluid_activities(grouping, assignment, &activities)
        unknown = []
        for tasks, counts in zip(grouping, assignment):
            for task in tasks:
                if self.t.task_kind[<int>task] == SCORE and self.trained_in(tasks, task):
                    continue  # sharing the trainer's weights may be faster than any option of its own
                if self.finder.knows(task, counts):
                    self.at_fastest(&activities, task, counts)
                else:
                    unknown.append((-activities.seconds[<int>task], task, counts))
        unknown.sort()
        seconds = self.scheduled(&activities)
        for _, task, counts in unknown:
            if seconds >= cutoff:
                return seconds
            self.at_fastest(&activities, task, counts)
            seconds = self.scheduled(&activities)
        self.bounds[key] = seconds
        return seconds

    cdef void at_fastest(self, Activities* activities, int task, bytes counts):
        """Put a task at the fastest of its options; one that has none stays as it is: its group is found infeasible."""
        options = self.alone(task, counts)
        if options:
            activities.seconds[task] = fmax(activities.seconds[task], (<Option>options[0]).seconds)

    cdef bint trained_in(self, tuple tasks, int task):
        """Whether one of a group's tasks trains the role of a task."""
        cdef int other
        for other in tasks:
            if self.t.task_kind[other] == TRAIN and self.t.task_role[other] == self.t.task_role[task]:
                return True
        return False

    cpdef double cost(self, tuple grouping, tuple assignment, double cutoff):
        """Objective of an assignment: at least 1e12 if a group does not fit, a lower bound where that reaches ``cutoff``."""
        key = (grouping, assignment)
        found = self.costs.get(key)
        if found is not None:
            return found
        cdef double result = self.screen(grouping, assignment)
        if result < cutoff:
            result = self.bound(grouping, assignment, cutoff)
        if result >= cutoff:
            self.finder.cuts["BOUND"] = self.finder.cuts.get("BOUND", 0) + 1
            return result
        result = self.exact(grouping, assignment)
        self.num_costed += 1
        self.costs[key] = result
        return result

    cdef double exact(self, tuple grouping, tuple assignment):
        cdef double lacking = 0.0
        cdef list choices = []
        for tasks, counts in zip(grouping, assignment):
            choice = self.group(tasks, counts)
            if choice is None:
                lacking += self.shortage(tasks, counts)
            choices.append(choice)
        return 1e12 * lacking if lacking > 0 else self.objective_of(choices)

    cpdef double objective(self, list choices):
        """Objective of an assignment with these options; at least 1e12 if they do not fit or are too dear."""
        cdef double result
        self.transfers.clear()  # kept by identity, and these options may not last
        result = self.objective_of(choices)
        self.transfers.clear()
        return result

    cdef double objective_of(self, list choices):
        cdef double seconds, dollars
        if not self.hosts_fit(choices):
            return 2e12
        seconds = self.step_seconds(choices)
        if not self.dollars and self.most_dollars == INFINITY:
            return seconds
        dollars = seconds * self.dollars_per_second(choices)
        if dollars > self.most_dollars:
            return 1e12 * dollars / self.most_dollars
        return dollars if self.dollars else seconds

    cdef double shortage(self, tuple tasks, bytes counts):
        """1 plus needed over present memory: grades infeasible groups."""
        cdef Devices devices = self.area(counts)
        cdef double needed = 0.0, present = 0.0
        cdef int node, task, model
        for task in tasks:
            model = self.t.task_model[task]
            needed += self.t.model_parameters[model] * (
                self.t.weight_bytes + (self.t.gradient_bytes if self.t.task_kind[task] == TRAIN else 0.0)
            )
        for node in range(self.t.num_nodes):
            present += devices.counts[node] * self.t.type_memory[self.t.node_type[node]]
        return 1.0 + needed / fmax(present, 1e9)

    cdef bint hosts_fit(self, list choices):
        cdef double* total = <double*>calloc(self.t.num_nodes, sizeof(double))
        cdef int node
        cdef bint fits = True
        cdef Choice choice
        cdef Option option
        for each in choices:
            choice = each
            for other in choice.options:
                option = other
                for node in range(self.t.num_nodes):
                    if option.used[node]:
                        total[node] += option.host[choice.devices.cell[node]]
        for node in range(self.t.num_nodes):
            fits = fits and total[node] <= self.t.node_host_ram[node]
        free(total)
        return fits

    cdef double dollars_per_second(self, list choices):
        cdef double total = 0.0
        cdef int node, most
        cdef Option option
        for choice in choices:
            for node in range(self.t.num_nodes):
                most = 0
                for each in (<Choice>choice).options:
                    option = each
                    most = max(most, option.used[node])
                if most:
                    total += most * self.t.node_usd[node]
        return total / 3600 if total == total else INFINITY

    cdef double step_seconds(self, list choices):
        cdef Activities activities
        cdef Tables t = self.t
        cdef int i, j, number, task
        cdef Choice choice
        cdef list by_task = [None] * t.num_tasks
        cdef list group_of = [0] * t.num_tasks
        cdef Option option, source
        for number, each in enumerate(choices):
            choice = each
            for other in choice.options:
                option = other
                by_task[option.task] = option
                group_of[option.task] = number
        activities.number = t.num_tasks
        for i in range(t.num_tasks):
            option = by_task[i]
            activities.seconds[i] = option.seconds
            activities.groups[i] = <unsigned int>1 << <int>group_of[i]
            activities.needs[i] = 0
            for j in range(i):
                activities.transfer[i][j] = 0.0
                if t.task_needs[i, j]:
                    source = by_task[j]
                    activities.needs[i] |= <unsigned int>1 << j
                    activities.transfer[i][j] = self.data_seconds(source, option, group_of[i] == group_of[j])
        for j in range(t.num_tasks):
            if t.task_kind[j] != TRAIN:
                continue
            source = by_task[j]
            for i in range(t.num_tasks):
                option = by_task[i]
                if t.task_kind[i] == TRAIN or t.task_role[i] != t.task_role[j] or option.weights == SHARED:
                    continue
                number = activities.number
                activities.seconds[number] = self.sync_seconds(source, option)
                activities.groups[number] = activities.groups[i] | activities.groups[j]
                activities.needs[number] = (<unsigned int>1 << i) | (<unsigned int>1 << j)
                for task in range(number):
                    activities.transfer[number][task] = 0.0
                activities.number += 1
        if t.staleness > 0:
            return asynchronous_period(&activities, t.staleness)
        return best_schedule(&activities)

    cdef double data_seconds(self, Option source, Option target, bint same_group):
        """Rollouts or scores over the best link between the two tasks' nodes; nothing on the same devices."""
        cdef Tables t = self.t
        cdef int a
        cdef bint same = same_group
        for a in range(t.num_nodes):
            if not same:
                break
            same = source.used[a] == target.used[a]
        if same:
            return 0.0
        key = (id(source), id(target))
        if t.num_nodes > SMALL_FLEET and key in self.transfers:
            return self.transfers[key]
        cdef double seconds = data_seconds(t, source, target)
        if t.num_nodes > SMALL_FLEET:
            self.transfers[key] = seconds
        return seconds

    cdef double sync_seconds(self, Option source, Option target):
        """Weights from a train task to another task of its role."""
        key = (id(source), id(target))
        if self.t.num_nodes > SMALL_FLEET and key in self.transfers:
            return self.transfers[key]
        cdef double seconds = sync_from(self.t, source.used, target, self.drops_idle)
        if self.t.num_nodes > SMALL_FLEET:
            self.transfers[key] = seconds
        return seconds
