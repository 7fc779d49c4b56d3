# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shortest schedule in whole ticks: sums are exact, so that it does not matter in which order they are built.

The order that was best last time gives an upper bound, paths and loads of groups a lower one. Where they meet, nothing is
searched; else all orders that matter are tried, depth first.
"""


from cython cimport final


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

    cdef long long quick_bound(self) noexcept nogil:
        """Lower bound, after `longest_path`: when a group's first activity is ready, its load, and the least that must follow.

        ``heads`` is left with a time before which no activity is ready: the longest path to it, where those that it needs of
        one group count one after the other.
        """
        cdef const Work* work = &self.work
        cdef const Arc* arc = &work.arcs[0]
        cdef const Arc* needed
        cdef const Join* join = &work.joins[0]
        cdef long long[MAX_ACTIVITIES] ends
        cdef long long[MAX_GROUPS] load
        cdef long long[MAX_GROUPS] ready
        cdef long long[MAX_GROUPS] behind
        cdef long long worst = 0, head, left, start, time, gap
        cdef int i, g, n
        for g in range(work.num_groups):
            load[g] = 0
            ready[g] = behind[g] = <long long>1 << 60
        for i in range(work.number):
            head = 0
            while arc < work.arcs + work.first_arc[i + 1]:
                head = most(head, ends[arc.source] + arc.transfer)
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
            worst = most(worst, head + self.tails[i])
            ends[i] = head + work.seconds[i]
            left = self.tails[i] - work.seconds[i]
            g = work.first_group[i]
            while True:
                load[g] += work.seconds[i]
                ready[g] = head if head < ready[g] else ready[g]
                behind[g] = left if left < behind[g] else behind[g]
                if g == work.second_group[i]:
                    break
                g = work.second_group[i]
        for g in range(work.num_groups):
            if load[g] > 0:
                worst = most(worst, ready[g] + load[g] + behind[g])
        return worst

    cdef long long bound(self) noexcept nogil:
        """Lower bound, after `quick_bound`: the same for every set of a group's activities that become ready last."""
        cdef const Work* work = &self.work
        cdef int[MAX_GROUPS][MAX_ACTIVITIES] queue
        cdef int[MAX_GROUPS] length
        cdef long long worst = 0, load, behind
        cdef int i, g, place
        for g in range(work.num_groups):
            length[g] = 0
        for i in range(work.number):
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
                if self.tails[i] - work.seconds[i] < behind:
                    behind = self.tails[i] - work.seconds[i]
                worst = most(worst, self.heads[i] + load + behind)
        return worst

    cdef long long replay(self) noexcept nogil:
        """End of the schedule in the order that was best last time."""
        cdef const Work* work = &self.work
        cdef long long latest = 0, start
        cdef long long[MAX_ACTIVITIES] ends
        cdef long long[MAX_GROUPS] free_at
        cdef int place, i, a
        for i in range(work.num_groups):
            free_at[i] = 0
        for place in range(work.number):
            i = self.order[place]
            start = most(free_at[work.first_group[i]], free_at[work.second_group[i]])
            for a in range(work.first_arc[i], work.first_arc[i + 1]):
                start = most(start, ends[work.arcs[a].source] + work.arcs[a].transfer)
            start += work.seconds[i]
            ends[i] = free_at[work.first_group[i]] = free_at[work.second_group[i]] = start
            latest = most(latest, start)
        return latest

    cdef long long shortest(self, double limit) noexcept nogil:
        """Ticks of the shortest schedule, or -1 if a lower bound exceeds the limit."""
        cdef int i
        self.best = self.replay()
        self.floor = self.largest_load()
        if self.floor > limit:
            return -1
        if self.best == self.floor:
            return self.best
        self.floor = most(self.floor, self.longest_path())
        if self.floor > limit:
            return -1
        if self.best == self.floor:
            return self.best
        self.floor = most(self.floor, self.quick_bound())
        if self.floor > limit:
            return -1
        if self.best == self.floor:
            return self.best
        self.floor = most(self.floor, self.bound())
        if self.floor > limit:
            return -1
        if self.best == self.floor:
            return self.best
        self.num_searched += 1
        for i in range(self.work.num_groups):
            self.free_at[i] = 0
        self.place(0, 0, 0)
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
