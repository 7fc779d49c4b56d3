# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Levels 4 and 5 on a whole plan: blocks of devices change places inside groups and between them, annealed by delta cost.

The threshold is drawn before a move is costed, so that a lower bound above it ends the evaluation early; the moves that
are accepted are the same as without.
"""

from cython cimport final
from libc.math cimport INFINITY, log, pow
from libc.string cimport memcpy

from hetrl_kernels.contributions cimport Alike
from hetrl_kernels.plan_state cimport ABOVE_LIMIT, COSTED, FORBIDDEN, INFEASIBLE, TOO_SMALL, PlanState
from hetrl_kernels.random cimport random_below, random_bits
from hetrl_kernels.replicas cimport Replicas
from hetrl_kernels.undo cimport forget

cdef enum:
    MOST_MOVED = 256  # blocks of one move


cdef struct Body:  # of a block: what a draw asks for
    int size
    int group
    int twin  # blocks that are alike in everything have the same
    int shape
    int first_alike  # blocks of the same group and size
    int num_alike


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
    cdef int* best_node
    cdef int[MOST_MOVED] blocks
    cdef int from_first, number, first, second
    cdef bint too_small  # a block of the move does not fit where it goes

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
            body.size, body.group, body.shape = self.size[b], self.group[b], self.shape[b]
            body.twin = twins.setdefault((self.alike_in(b), looks, spans), len(twins))
            classes.setdefault((self.group[b], self.size[b]), []).append(b)
        alike = []
        for members in classes.values():
            for b in members:
                self.bodies[b].first_alike, self.bodies[b].num_alike = len(alike), len(members)
            alike += members
        self.alike = self.ints(alike)
        rooms = [list(range(self.t.node_devices[node])) for node in range(self.t.num_nodes)]
        self.first_on = self.starts(rooms)
        self.num_on = <int*>self.room(self.t.num_nodes * sizeof(int))
        self.on = <int*>self.room(self.first_on[self.t.num_nodes] * sizeof(int))
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
            node = self.node[b]
            self.on[self.first_on[node] + self.num_on[node]] = b
            self.num_on[node] += 1

    cdef void relist(self, int first, int second) noexcept nogil:
        """Blocks of two nodes after an exchange: those that stayed in their order, then those that came."""
        cdef int i, n, node, kept, b
        if self.number == 2 and self.from_first == 1:
            self.replace(first, self.blocks[0], self.blocks[1])
            self.replace(second, self.blocks[1], self.blocks[0])
            return
        for n in range(2):
            node = second if n else first
            kept = 0
            for i in range(self.num_on[node]):
                b = self.on[self.first_on[node] + i]
                if self.node[b] == node:
                    self.on[self.first_on[node] + kept] = b
                    kept += 1
            self.num_on[node] = kept
        for i in range(self.number):
            node = self.node[self.blocks[i]]
            self.on[self.first_on[node] + self.num_on[node]] = self.blocks[i]
            self.num_on[node] += 1

    cdef void replace(self, int node, int gone, int come) noexcept nogil:
        """A block of a node is gone, another comes last."""
        cdef int* on = self.on + self.first_on[node]
        cdef int i = 0
        while on[i] != gone:
            i += 1
        for i in range(i, self.num_on[node] - 1):
            on[i] = on[i + 1]
        on[self.num_on[node] - 1] = come

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
        forget(&self.log)
        self.list_blocks()

    cdef bint draw(self, unsigned long long* random, bint between_groups) noexcept nogil:
        """Draw a move: 55 % inside a group, 40 % with whatever fits on another node, 5 % whole nodes; False if it changes nothing."""
        cdef int kind = random_below(random, 20), block = random_below(random, self.num_blocks), i, other, place, left
        cdef int first = self.node[block]
        cdef const Body* body = self.bodies + block
        if kind == 19:
            if not between_groups:
                return False
            other = random_below(random, self.t.num_nodes)
            self.from_first = self.num_on[first]
            self.number = self.from_first + self.num_on[other]
            if self.links.places[other].group == self.links.places[first].group and self.t.node_kind[other] == self.t.node_kind[first]:
                return False  # the nodes would only exchange their names
            if self.t.node_devices[other] != self.t.node_devices[first] or self.number > MOST_MOVED:
                return False
            memcpy(self.blocks, self.on + self.first_on[first], self.num_on[first] * sizeof(int))
            memcpy(self.blocks + self.from_first, self.on + self.first_on[other], self.num_on[other] * sizeof(int))
        else:
            self.from_first = 1
            self.blocks[0] = block
            if kind < 11:
                self.blocks[1] = self.alike[body.first_alike + random_below(random, body.num_alike)]
                self.number = 2
                other = self.node[self.blocks[1]]
                if other == first:
                    return False
            else:
                other = random_below(random, self.t.num_nodes)
                if other == first or self.num_on[other] == 0:
                    return False
                self.number = 1
                left = body.size
                place = random_below(random, self.num_on[other])
                for i in range(self.num_on[other]):
                    block = self.on[self.first_on[other] + place]
                    if self.bodies[block].size <= left and (between_groups or self.bodies[block].group == body.group):
                        self.blocks[self.number] = block
                        self.number += 1
                        left -= self.bodies[block].size
                        if left == 0 or self.number == MOST_MOVED:
                            break
                    place = place + 1 if place + 1 < self.num_on[other] else 0
                if left:
                    return False
            if self.number == 2 and self.bodies[self.blocks[1]].twin == body.twin:
                return False
        self.first, self.second = first, other
        return self.may_stand() and self.same_price()

    cdef bint may_stand(self) noexcept nogil:
        """Whether the blocks of the move may stand where they go; notes whether they fit.

        Between nodes of one kind they may and do, as they stand where they are.
        """
        cdef int first_kind = self.t.node_kind[self.first], second_kind = self.t.node_kind[self.second], i
        cdef char standing
        self.too_small = False
        if first_kind == second_kind:
            return True
        for i in range(self.number):
            standing = self.standing[
                self.bodies[self.blocks[i]].shape * self.replicas.num_kinds + (second_kind if i < self.from_first else first_kind)
            ]
            if standing == FORBIDDEN:
                return False
            self.too_small = self.too_small or standing == TOO_SMALL
        return True

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
                if not self.draw(&state, between_groups):
                    continue
                self.move(self.blocks, self.from_first, self.number, self.first, self.second, INFINITY)
                self.cost(INFINITY)
                if feasible and (self.outcome != COSTED or random_below(&state, 2)):
                    self.undo(self.blocks, self.from_first, self.number, self.first, self.second)
                    continue
                changed += 1
                forget(&self.log)
                self.relist(self.first, self.second)
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
        cdef unsigned long long state = seed, drawn
        cdef long long null = 0, infeasible = 0, rejected = 0, costed = 0, accepted = 0
        cdef double current = self.cost(INFINITY), best = current, proposed, limit, temperature = start_temperature
        cdef double cooling = pow(end_temperature / start_temperature, 1.0 / (num_moves - 1)) if num_moves > 1 else 1.0
        cdef bint at_best = True
        cdef int turn
        if not current < INFINITY:
            raise ValueError("only a feasible plan can be annealed")
        forget(&self.log)
        with nogil:
            for turn in range(num_moves):
                temperature *= cooling
                drawn = random_bits(&state)
                if not self.draw(&state, between_groups):
                    null += 1
                    continue
                if self.too_small:
                    infeasible += 1
                    continue
                limit = current * (1.0 - temperature * log(<double>((drawn >> 11) + 1) / 9007199254740993.0))
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
                forget(&self.log)
                self.relist(self.first, self.second)
            if not at_best:
                self.move_to(self.best_node)
        return null, infeasible, rejected, costed, accepted
