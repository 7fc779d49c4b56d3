# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Levels 4 and 5 on a whole plan: blocks of devices change places inside groups and between them, annealed by delta cost.

The threshold is drawn before a move is costed, so that a lower bound above it ends the evaluation early; the moves that
are accepted are the same as without.
"""

from cython cimport final
from libc.math cimport INFINITY, log, pow
from libc.string cimport memcpy

from hetrl_kernels.contributions cimport Alike
from hetrl_kernels.links cimport Place
from hetrl_kernels.plan_state cimport ABOVE_LIMIT, COSTED, FITS, FORBIDDEN, INFEASIBLE, TOO_SMALL, PlanState
from hetrl_kernels.random cimport random_below, random_bits, random_part
from hetrl_kernels.replicas cimport Replicas
from hetrl_kernels.undo cimport forget

cdef enum:
    MOST_MOVED = 256  # blocks of one move
    INSIDE_GROUP = 11  # moves of 20 that exchange two blocks of one group
    WHOLE_NODES = 1


cdef struct Body:  # of a block: what a draw asks for
    int size
    int group
    int twin  # blocks that are alike in everything have the same
    int first_alike  # blocks of the same group and size
    int num_others  # of these
    int place  # of its own among these
    const char* standing  # on every kind of node


@final
cdef class PlanAnnealer(PlanState):
    """A plan whose blocks move.

    Parameters
    ----------
    links
        The lowered job's links.
    plan
        Arrays of the plan (see `hetrl.search.plan_arrays.PlanArrays`).
    scale
        Ticks per second, as of another state that costs shall equal bit for bit; 0 chooses.
    """

    cdef Body* bodies  # [B]
    cdef int* alike  # blocks by group and size
    cdef int* first_on  # [N + 1] room of a node
    cdef int* num_on  # [N]
    cdef int* on  # blocks of every node
    cdef int* at  # [B] place in `on`
    cdef int* best_node
    cdef int[MOST_MOVED] blocks
    cdef int from_first, number, first, second
    cdef bint some_idle  # blocks without a group, whose devices cost nothing

    def __init__(self, links, plan, double scale=0.0):
        cdef int b, i, node
        cdef Body* body
        cdef Replicas replicas
        PlanState.__init__(self, links, plan, scale)
        replicas = self.replicas
        twins, classes = {}, {}
        self.bodies = <Body*>self.room(self.num_blocks * sizeof(Body))
        for b in range(self.num_blocks):
            looks = tuple([
                (replicas.units[i].task, replicas.units[i].look)
                for i in range(replicas.first_unit[b], replicas.first_unit[b + 1])
            ])
            spans = b if replicas.first_edge[b] < replicas.first_edge[b + 1] else -1
            body = self.bodies + b
            body.size, body.group, body.standing = self.size[b], self.group[b], self.standing + self.shape[b] * replicas.num_kinds
            self.some_idle = self.some_idle or self.group[b] < 0
            body.twin = twins.setdefault((self.alike_in(b), looks, spans), len(twins))
            classes.setdefault((self.group[b], self.size[b]), []).append(b)
        alike = []
        for members in classes.values():
            for i, b in enumerate(members):
                self.bodies[b].first_alike, self.bodies[b].num_others, self.bodies[b].place = len(alike), len(members) - 1, i
            alike += members
        self.alike = self.ints(alike)
        rooms = [list(range(self.t.node_devices[node])) for node in range(self.t.num_nodes)]
        self.first_on = self.starts(rooms)
        self.num_on = <int*>self.room(self.t.num_nodes * sizeof(int))
        self.on = <int*>self.room(self.first_on[self.t.num_nodes] * sizeof(int))
        self.at = <int*>self.room(self.num_blocks * sizeof(int))
        self.best_node = <int*>self.room(self.num_blocks * sizeof(int))
        self.list_blocks()

    def alike_in(self, int block):
        """All of a block but its replicas."""
        cdef Alike alike = self.added.alike[block]
        return (
            self.size[block], self.shape[block], self.added.host[block],
            alike.members, alike.areas, alike.rows, alike.bytes,
        )

    cdef void list_blocks(self) noexcept nogil:
        cdef int b, node
        for node in range(self.t.num_nodes):
            self.num_on[node] = 0
        for b in range(self.num_blocks):
            self.append(self.node[b], b)

    cdef void append(self, int node, int block) noexcept nogil:
        self.at[block] = self.first_on[node] + self.num_on[node]
        self.on[self.at[block]] = block
        self.num_on[node] += 1

    cdef void relist(self) noexcept nogil:
        """Blocks of two nodes after an exchange: one takes the other's place; of several, those that stayed lead."""
        cdef int i, n, node, number
        cdef int* at = self.at
        cdef const int* on
        if self.number == 2 and self.from_first == 1:
            at[self.blocks[0]], at[self.blocks[1]] = at[self.blocks[1]], at[self.blocks[0]]
            self.on[at[self.blocks[0]]], self.on[at[self.blocks[1]]] = self.blocks[0], self.blocks[1]
            return
        for n in range(2):
            node = self.second if n else self.first
            on = self.on + self.first_on[node]
            number = self.num_on[node]
            self.num_on[node] = 0
            for i in range(number):
                if self.node[on[i]] == node:
                    self.append(node, on[i])
        for i in range(self.number):
            self.append(self.node[self.blocks[i]], self.blocks[i])

    cdef void remember(self) noexcept nogil:
        """Keep the state before the last move as the best."""
        cdef int i
        memcpy(self.best_node, self.node, self.num_blocks * sizeof(int))
        for i in range(self.number):
            self.best_node[self.blocks[i]] = self.first if i < self.from_first else self.second

    cdef void move_to(self, const int* nodes) noexcept nogil:
        """Put every block on a given node."""
        cdef int b
        self.replicas.turn += 1
        for b in range(self.num_blocks):
            if self.node[b] != nodes[b]:
                self.added.settle(&self.log, b, self.node[b], -1)
                forget(&self.log)
        for b in range(self.num_blocks):
            if self.node[b] != nodes[b]:
                self.added.settle(&self.log, b, nodes[b], 1)
                self.replicas.shift(&self.log, b, nodes[b])
                forget(&self.log)
        for b in range(self.num_blocks):
            self.replicas.touch(&self.log, b, True)
            forget(&self.log)
        self.replicas.refresh(&self.log)
        self.cost(INFINITY)
        self.keep((<unsigned int>1 << self.num_tasks) - 1)
        self.list_blocks()

    cdef int draw(self, unsigned long long* random, bint between_groups) noexcept nogil:
        """Draw a move: 55 % inside a group, 40 % with whatever fits on another node, 5 % whole nodes.

        Returns how its blocks stand where they go; `FORBIDDEN` also if it would change nothing.
        """
        cdef unsigned long long fraction = random_bits(random)
        cdef int kind = random_part(&fraction, 20), block = random_part(&fraction, self.num_blocks), first = self.node[block], place
        cdef const Body* body = self.bodies + block
        cdef const Body* other
        cdef const Place* places
        self.blocks[0] = block
        self.first, self.from_first, self.number = first, 1, 2
        if kind < INSIDE_GROUP:
            if body.num_others == 0:
                return FORBIDDEN
            place = random_part(&fraction, body.num_others)
            self.blocks[1] = self.alike[body.first_alike + place + (place >= body.place)]
            self.second = self.node[self.blocks[1]]
        elif self.t.num_nodes == 1:
            return FORBIDDEN
        else:
            self.second = random_part(&fraction, self.t.num_nodes - 1)
            self.second += self.second >= first
            if kind >= 20 - WHOLE_NODES:
                if not between_groups or not self.take_all():
                    return FORBIDDEN
            elif self.num_on[self.second] == 0 or not self.take_fitting(
                body, random_part(&fraction, self.num_on[self.second]), between_groups
            ):
                return FORBIDDEN
        if self.some_idle and not self.same_price():
            return FORBIDDEN
        if self.number != 2 or self.from_first != 1:
            return self.worst_standing()
        other = self.bodies + self.blocks[1]
        places = self.links.places
        return (  # nowhere if both are twins or on one node: said without a branch, which would often be taken and often not
            body.standing[places[self.second].kind] | other.standing[places[first].kind]
            | FORBIDDEN * ((body.twin == other.twin) | (self.second == first))
        )

    cdef bint take_all(self) noexcept nogil:
        """Whole nodes change places; False if that is not possible or only exchanges their names."""
        cdef int first = self.first, second = self.second
        self.from_first = self.num_on[first]
        self.number = self.from_first + self.num_on[second]
        if self.links.places[second].group == self.links.places[first].group and self.t.node_kind[second] == self.t.node_kind[first]:
            return False
        if self.t.node_devices[second] != self.t.node_devices[first] or self.number > MOST_MOVED:
            return False
        memcpy(self.blocks, self.on + self.first_on[first], self.num_on[first] * sizeof(int))
        memcpy(self.blocks + self.from_first, self.on + self.first_on[second], self.num_on[second] * sizeof(int))
        return True

    cdef bint take_fitting(self, const Body* body, int place, bint between_groups) noexcept nogil:
        """Blocks of the second node, from a place on, that are together as large as one of the first; False without such."""
        cdef const int* on = self.on + self.first_on[self.second]
        cdef const Body* other
        cdef int i, left = body.size, number = 1, num_on = self.num_on[self.second]
        for i in range(num_on):
            other = self.bodies + on[place]
            if other.size <= left and (between_groups or other.group == body.group):
                self.blocks[number] = on[place]
                number += 1
                left -= other.size
                if left == 0:
                    self.number = number
                    return True
                if number == MOST_MOVED:
                    return False
            place = place + 1 if place + 1 < num_on else 0
        return False

    cdef int worst_standing(self) noexcept nogil:
        """How the blocks of the move stand where they go."""
        cdef const Body* bodies = self.bodies
        cdef int first_kind = self.links.places[self.first].kind, second_kind = self.links.places[self.second].kind, i, worst = FITS
        for i in range(self.number):
            worst |= bodies[self.blocks[i]].standing[second_kind if i < self.from_first else first_kind]
        return worst

    cdef bint same_price(self) noexcept nogil:
        """Whether the devices in use cost what they did; idle blocks have no group."""
        cdef double first = self.t.node_usd[self.first], second = self.t.node_usd[self.second]
        cdef int i
        if first == second or (first != first and second != second):
            return True
        for i in range(self.number):
            if self.bodies[self.blocks[i]].group < 0:
                return False
        return True

    @property
    def seconds(self):
        """Seconds of a step or period; infinite if the plan is infeasible."""
        return self.cost(INFINITY)

    def rebuild(self, nodes):
        """Work everything out from nothing, with the blocks on these nodes."""
        self.place_all(nodes)
        self.list_blocks()

    def nodes(self):
        """Node of every block."""
        return [self.node[b] for b in range(self.num_blocks)]

    def counts(self):
        """Replicas looked up that were not known, and schedules that had to be searched."""
        return self.replicas.signatures.num_missed, self.orders.num_searched

    def wander(self, unsigned long long seed, int num_moves, *, bint between_groups=True, bint feasible=False):
        """Make random moves whatever they cost.

        Parameters
        ----------
        seed, num_moves
            Source of all randomness; moves drawn.
        between_groups
            Blocks of different groups may change places.
        feasible
            In a feasible state: take moves back that do not fit, and every second of the others.

        Returns
        -------
        int
            Moves that changed something and stayed.
        """
        cdef unsigned long long state = seed
        cdef int turn, changed = 0
        with nogil:
            for turn in range(num_moves):
                if self.draw(&state, between_groups) >= FORBIDDEN:
                    continue
                self.move(self.blocks, self.from_first, self.number, self.first, self.second, INFINITY)
                self.cost(INFINITY)
                if feasible and (self.outcome != COSTED or random_below(&state, 2)):
                    self.undo(self.blocks, self.from_first, self.number, self.first, self.second)
                    continue
                changed += 1
                self.keep(self.moved_tasks)
                self.relist()
        return changed

    def anneal(
        self, unsigned long long seed, int num_moves, double start_temperature, double end_temperature, *, bint between_groups=True,
        bint early=True):
        """Anneal a feasible plan; ends in the best state seen.

        Parameters
        ----------
        seed
            Source of all randomness: one chain.
        num_moves
            Moves proposed.
        start_temperature, end_temperature
            Relative to the current cost.
        between_groups
            Blocks of different groups, and idle ones, may change places.
        early
            End an evaluation as soon as a bound exceeds the threshold.

        Returns
        -------
        (null, infeasible, rejected early, costed, accepted)
            Moves that changed nothing or are not allowed; that do not fit; that a bound rejected; whose cost was worked out;
            and of these, those that were kept.
        """
        cdef unsigned long long state = seed
        cdef long long null = 0, infeasible = 0, rejected = 0, costed = 0, accepted = 0
        cdef double current = self.cost(INFINITY), best = current, proposed, limit, temperature = start_temperature
        cdef double cooling = pow(end_temperature / start_temperature, 1.0 / (num_moves - 1)) if num_moves > 1 else 1.0
        cdef bint at_best = True
        cdef int turn, standing
        if not current < INFINITY:
            raise ValueError("only a feasible plan can be annealed")
        self.keep((<unsigned int>1 << self.num_tasks) - 1)
        with nogil:
            for turn in range(num_moves):
                temperature *= cooling
                standing = self.draw(&state, between_groups)
                if standing != FITS:
                    null += standing != TOO_SMALL
                    infeasible += standing == TOO_SMALL
                    continue
                limit = current * (1.0 - temperature * log(<double>((random_bits(&state) >> 11) + 1) / 9007199254740993.0))
                if not self.move(
                    self.blocks, self.from_first, self.number, self.first, self.second, limit if early else INFINITY
                ):
                    self.undo(self.blocks, self.from_first, self.number, self.first, self.second)
                    rejected += 1
                    continue
                proposed = self.cost(limit if early else INFINITY)
                if self.outcome == INFEASIBLE:
                    infeasible += 1
                elif self.outcome == ABOVE_LIMIT:
                    rejected += 1
                else:
                    costed += 1
                if proposed > limit or self.outcome != COSTED:
                    self.undo(self.blocks, self.from_first, self.number, self.first, self.second)
                    continue
                accepted += 1
                if proposed < best:
                    best = proposed
                    at_best = True
                elif at_best and proposed > best:
                    self.remember()
                    at_best = False
                current = proposed
                self.keep(self.moved_tasks)
                self.relist()
            if not at_best:
                self.move_to(self.best_node)
        return null, infeasible, rejected, costed, accepted
