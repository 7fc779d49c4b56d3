# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shortest schedule in whole ticks: sums are exact, so that it does not matter in which order they are built.

The order that was best last time gives an upper bound. What decides on its end mostly proves that there is nothing shorter;
else paths and loads of groups give a lower bound, and where that is less, all orders that matter are tried, depth first.
"""

from cython cimport final
from libc.math cimport INFINITY

from hetrl_kernels.undo cimport lowest_bit


cdef inline long long most(long long a, long long b) noexcept nogil:
    return a if a > b else b


cdef inline long long least(long long a, long long b) noexcept nogil:
    return a if a < b else b


@final
cdef class Orders:
    """A schedule; the caller adds activities in a topological order, and fills in the ticks of ``work``."""

    cdef void add(self, int first_group, int second_group, list needs):
        """One more activity, which needs some of those before."""
        cdef Work* work = &self.work
        cdef int i = work.number, arc = work.first_arc[i], source, joined = 0
        if work.num_joins > 0:
            joined = work.joins[work.num_joins - 1].first + work.joins[work.num_joins - 1].number
        of_group = {}
        for source in needs:
            work.before[i] |= work.before[source] | <unsigned int>1 << source
            of_group.setdefault(work.first_group[source], []).append(arc)
            work.arcs[arc].source = source
            arc += 1
        for arcs in of_group.values():
            sources = [work.arcs[<int>each].source for each in arcs]
            last = [
                each for each, source in zip(arcs, sources) if not any([work.before[<int>other] >> <int>source & 1 for other in sources])
            ]
            if len(last) == 1:
                continue
            work.joins[work.num_joins] = Join(i, joined, len(last))
            work.num_joins += 1
            for each in last:
                work.joined[joined] = each
                joined += 1
        work.first_group[i], work.second_group[i] = first_group, second_group
        self.order[i] = i
        work.number += 1
        work.first_arc[i + 1] = work.first_arc[i] + len(needs)

    cdef long long largest_load(self) noexcept nogil:
        """Most ticks that a group has to work."""
        cdef long long[MAX_GROUPS] load
        cdef long long worst = 0
        cdef int i
        for i in range(self.work.num_groups):
            load[i] = 0
        for i in range(self.work.number):
            load[self.work.first_group[i]] += self.work.seconds[i]
            if self.work.second_group[i] != self.work.first_group[i]:
                load[self.work.second_group[i]] += self.work.seconds[i]
        for i in range(self.work.num_groups):
            worst = most(worst, load[i])
        return worst

    cdef long long longest_path(self) noexcept nogil:
        """Longest path with groups ignored; ``tails`` is left from the start of every activity to the end."""
        cdef const Work* work = &self.work
        cdef const Arc* arc = work.arcs + work.first_arc[work.number]
        cdef long long[MAX_ACTIVITIES] tails
        cdef long long worst = 0, tail
        cdef int i
        for i in range(work.number):
            tails[i] = 0
        for i in range(work.number - 1, -1, -1):
            tail = tails[i] + work.seconds[i]
            self.tails[i] = tail
            worst = most(worst, tail)
            while arc > work.arcs + work.first_arc[i]:
                arc -= 1
                tails[arc.source] = most(tails[arc.source], tail + arc.transfer)
        return worst

    cdef double longest_chain(self, const double* seconds, int number) noexcept nogil:
        """Longest path through the first activities with such seconds, groups and transfers ignored."""
        cdef const Work* work = &self.work
        cdef const Arc* arc = work.arcs + work.first_arc[number]
        cdef double[MAX_ACTIVITIES] behind
        cdef double worst = 0.0, tail
        cdef int i
        for i in range(number):
            behind[i] = 0.0
        for i in range(number - 1, -1, -1):
            tail = behind[i] + seconds[i]
            worst = tail if tail > worst else worst
            while arc > work.arcs + work.first_arc[i]:
                arc -= 1
                behind[arc.source] = tail if tail > behind[arc.source] else behind[arc.source]
        return worst

    cdef void read_heads(self) noexcept nogil:
        """Leave ``heads``: times before which no activity is ready.

        That is the longest path, where activities of one group that another needs count one after the other.
        """
        cdef const Work* work = &self.work
        cdef const Arc* arc = &work.arcs[0]
        cdef const Arc* needed
        cdef const Join* join = &work.joins[0]
        cdef long long head, start, time, gap
        cdef int i, n
        for i in range(work.number):
            head = 0
            while arc < work.arcs + work.first_arc[i + 1]:
                head = most(head, self.heads[arc.source] + work.seconds[arc.source] + arc.transfer)
                arc += 1
            while join < work.joins + work.num_joins and join.activity == i:
                time = 0
                start = gap = <long long>1 << 60
                for n in range(join.first, join.first + join.number):
                    needed = work.arcs + work.joined[n]
                    time += work.seconds[needed.source]
                    start = least(start, self.heads[needed.source])
                    gap = least(gap, needed.transfer)
                head = most(head, start + time + gap)
                join += 1
            self.heads[i] = head

    cdef long long bound(self) noexcept nogil:
        """Lower bound, leaves ``heads`` and ``tails``: the longest path through an activity, or through the activities of a group
        that become ready last, one after the other."""
        cdef const Work* work = &self.work
        cdef int[MAX_GROUPS][MAX_ACTIVITIES] queue
        cdef int[MAX_GROUPS] length
        cdef long long worst = self.longest_path(), load, behind
        cdef int i, g, place
        self.read_heads()
        for g in range(work.num_groups):
            length[g] = 0
        for i in range(work.number):
            worst = most(worst, self.heads[i] + self.tails[i])
            g = work.first_group[i]
            while True:  # in order of their heads
                place = length[g]
                while place > 0 and self.heads[queue[g][place - 1]] > self.heads[i]:
                    queue[g][place] = queue[g][place - 1]
                    place -= 1
                queue[g][place] = i
                length[g] += 1
                if g == work.second_group[i]:
                    break
                g = work.second_group[i]
        for g in range(work.num_groups):
            load = 0
            behind = <long long>1 << 60
            for place in range(length[g] - 1, -1, -1):
                i = queue[g][place]
                load += work.seconds[i]
                behind = least(behind, self.tails[i] - work.seconds[i])
                worst = most(worst, self.heads[i] + load + behind)
        return worst

    cdef void arrange(self) noexcept nogil:
        """Read off the order who works before whom on every group."""
        cdef Work* work = &self.work
        cdef int[MAX_GROUPS] last
        cdef int i, place
        for i in range(work.num_groups):
            last[i] = NOBODY
        for place in range(work.number):
            i = self.order[place]
            self.on_first[i], self.on_second[i] = last[work.first_group[i]], last[work.second_group[i]]
            last[work.first_group[i]] = last[work.second_group[i]] = i
        self.end[NOBODY] = 0

    cdef int replay(self) noexcept nogil:
        """Ends of all activities in the order that was best last time; the activity that ends last."""
        cdef const Work* work = &self.work
        cdef const Arc* arc
        cdef const Arc* behind
        cdef long long* end = self.end
        cdef long long start
        cdef int place, i, last = NOBODY
        for place in range(work.number):
            i = self.order[place]
            start = most(end[self.on_first[i]], end[self.on_second[i]])
            arc = work.arcs + work.first_arc[i]
            behind = work.arcs + work.first_arc[i + 1]
            while arc < behind:
                start = most(start, end[arc.source] + arc.transfer)
                arc += 1
            end[i] = start + work.seconds[i]
            if end[i] >= end[last]:
                last = i
        return last

    cdef bint proven(self, int last) noexcept nogil:
        """Whether the schedule replayed is a shortest one by what decides on its end; False if that cannot be told.

        From the end back, that is runs of activities, each one after the other on one group, and arcs between the runs. A run takes
        its time in whatever order, and cannot start earlier if it must wait for the whole run before (see `waits`). ``decides`` is
        left as the activities of all runs: it is a shortest one whatever less the others take.
        """
        cdef const Work* work = &self.work
        cdef const Arc* arc
        cdef unsigned int run = 0, behind = 0
        cdef long long start, gap = 0
        cdef int i = last, group = -1, before
        self.decides = 0
        while True:
            run |= <unsigned int>1 << i
            self.decides |= <unsigned int>1 << i
            start = self.end[i] - work.seconds[i]
            if start == 0:
                return self.waits(behind, run, gap)
            before = NOBODY
            if group < 0:
                before, group = self.on_first[i], work.first_group[i]
                if self.end[before] != start:
                    before, group = self.on_second[i], work.second_group[i]
            elif group == work.first_group[i]:
                before = self.on_first[i]
            elif group == work.second_group[i]:
                before = self.on_second[i]
            if self.end[before] == start:
                i = before
                continue
            if not self.waits(behind, run, gap):
                return False
            arc = work.arcs + work.first_arc[i]
            while arc < work.arcs + work.first_arc[i + 1] and self.end[arc.source] + arc.transfer != start:
                arc += 1
            if arc == work.arcs + work.first_arc[i + 1]:
                return False  # it waits for another group than that of the run
            behind, gap, run = run, arc.transfer, 0
            i, group = arc.source, -1

    cdef bint waits(self, unsigned int run, unsigned int before, long long gap) noexcept nogil:
        """Whether all of a run must wait for all of another, and the gap that follows it: directly, or for such of their own run."""
        cdef const Work* work = &self.work
        cdef const Arc* arc
        cdef unsigned int left = run, found
        cdef int i
        while left:
            i = lowest_bit(left)
            left &= left - 1
            if work.before[i] & run:
                continue
            found = work.before[i] if gap == 0 else 0
            arc = work.arcs + work.first_arc[i]
            while arc < work.arcs + work.first_arc[i + 1]:
                found |= <unsigned int>(arc.transfer >= gap) << arc.source
                arc += 1
            if before & ~found:
                return False
        return True

    cdef long long shortest(self, double limit) noexcept nogil:
        """Ticks of the shortest schedule, or -1 if a lower bound exceeds the limit."""
        if limit < INFINITY and self.largest_load() > limit:
            return -1
        return self.best if self.replayed() else self.searched(limit)

    cdef bint replayed(self) noexcept nogil:
        """Leave ``best`` as the end of the order that was best last time; whether that is proven to be the shortest."""
        cdef int last = self.replay()
        self.best = self.end[last]
        return self.proven(last)

    cdef long long searched(self, double limit) noexcept nogil:
        """The same as `shortest` where the order of last time is replayed but not proven."""
        cdef int i
        self.floor = self.bound()
        if self.best == self.floor:
            return self.best
        if self.floor > limit:
            return -1
        self.num_searched += 1
        for i in range(self.work.num_groups):
            self.free_at[i] = 0
        self.place(0, 0, 0)
        self.arrange()
        return self.best

    cdef void place(self, int depth, unsigned int done, long long latest) noexcept nogil:
        cdef const Work* work = &self.work
        cdef long long[MAX_GROUPS] busy
        cdef long long[MAX_GROUPS] behind  # least that must follow the last activity
        cdef long long start, first_free, second_free, left
        cdef unsigned int wanted = 0, shared = 0, mine
        cdef int i, n, only = -1
        cdef bint ready
        if depth == work.number:
            if latest < self.best:
                self.best = latest
                for i in range(work.number):
                    self.order[i] = self.trial[i]
            return
        for i in range(work.num_groups):
            busy[i] = self.free_at[i]
            behind[i] = <long long>1 << 60
        for i in range(work.number):
            if done >> i & 1:
                continue
            mine = (<unsigned int>1 << work.first_group[i]) | (<unsigned int>1 << work.second_group[i])
            shared |= wanted & mine
            wanted |= mine
            left = self.tails[i] - work.seconds[i]
            busy[work.first_group[i]] += work.seconds[i]
            behind[work.first_group[i]] = least(behind[work.first_group[i]], left)
            if work.second_group[i] != work.first_group[i]:
                busy[work.second_group[i]] += work.seconds[i]
                behind[work.second_group[i]] = least(behind[work.second_group[i]], left)
        for i in range(work.num_groups):
            if wanted >> i & 1 and busy[i] + behind[i] >= self.best:
                return
        for i in range(work.number):  # nobody else wants its groups: no choice to make
            if done >> i & 1 or shared >> work.first_group[i] & 1 or shared >> work.second_group[i] & 1:
                continue
            ready = True
            for n in range(work.first_arc[i], work.first_arc[i + 1]):
                ready = ready and done >> work.arcs[n].source & 1
            if ready:
                only = i
                break
        for i in range(work.number):
            if done >> i & 1 or (only >= 0 and i != only):
                continue
            first_free, second_free = self.free_at[work.first_group[i]], self.free_at[work.second_group[i]]
            start = most(first_free, second_free)
            ready = True
            for n in range(work.first_arc[i], work.first_arc[i + 1]):
                if not (done >> work.arcs[n].source & 1):
                    ready = False
                    break
                start = most(start, self.end[work.arcs[n].source] + work.arcs[n].transfer)
            if not ready or start + self.tails[i] >= self.best:
                continue
            self.end[i] = start + work.seconds[i]
            self.free_at[work.first_group[i]] = self.free_at[work.second_group[i]] = self.end[i]
            self.trial[depth] = i
            self.place(depth + 1, done | (<unsigned int>1 << i), most(latest, self.end[i]))
            self.free_at[work.second_group[i]] = second_free
            self.free_at[work.first_group[i]] = first_free
            if self.best == self.floor:
                return


def shortest_schedules(list activities, list ticks):
    """Shortest schedules of some activities, one after the other, as while a plan is annealed.

    Parameters
    ----------
    activities
        ``(group, group, needs)`` of each: the groups that it keeps busy, twice the same if it is one, and the earlier activities
        that it needs.
    ticks
        ``(seconds, transfers)`` of every schedule: of each activity, and of each of its needs, as lists of whole numbers.

    Returns
    -------
    list of int
        End of every schedule.

    Raises
    ------
    ValueError
        More activities or groups than there is room for.
    """
    cdef Orders orders = Orders()
    cdef int i, j
    if len(activities) > MAX_ACTIVITIES or not all([0 <= g < MAX_GROUPS for first, second, _ in activities for g in (first, second)]):
        raise ValueError(f"at most {MAX_ACTIVITIES} activities of {MAX_GROUPS} groups")
    for first, second, needs in activities:
        orders.add(first, second, needs)
        orders.work.num_groups = max(orders.work.num_groups, first + 1, second + 1)
    orders.arrange()
    ends = []
    for seconds, transfers in ticks:
        for i in range(len(activities)):
            orders.work.seconds[i] = seconds[i]
            for j in range(len(activities[i][2])):
                orders.work.arcs[orders.work.first_arc[i] + j].transfer = transfers[i][j]
        ends.append(orders.shortest(INFINITY))
    return ends
