# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shortest schedule in whole ticks: sums are exact, so that it does not matter in which order they are built.

The order that was best last time gives an upper bound, paths and loads of groups a lower one. Where they meet, nothing is
searched; else all orders that matter are tried, depth first.
"""


cdef inline long long most(long long a, long long b) noexcept nogil:
    return a if a > b else b


cdef class Orders:
    """A schedule; the caller fills in ``work`` with activities in a topological order."""

    cdef void start(self) noexcept nogil:
        cdef int i
        for i in range(self.work.number):
            self.order[i] = i

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
        cdef Work* work = &self.work
        cdef long long worst = 0
        cdef int i, n
        for i in range(work.number):
            self.tails[i] = 0
        for i in range(work.number - 1, -1, -1):
            self.tails[i] += work.seconds[i]
            worst = most(worst, self.tails[i])
            for n in range(work.num_needs[i]):
                self.tails[work.needs[i][n]] = most(self.tails[work.needs[i][n]], self.tails[i] + work.transfer[i][n])
        return worst

    cdef long long bound(self) noexcept nogil:
        """Lower bound: the longest path, and for every group and every set of its activities that become ready last: when
        the first of them is ready, their load, and what must follow the last."""
        cdef Work* work = &self.work
        cdef int[MAX_GROUPS][MAX_ACTIVITIES] queue
        cdef int[MAX_GROUPS] length
        cdef long long[MAX_ACTIVITIES] heads
        cdef long long worst = self.longest_path(), head, load, behind
        cdef int i, n, g, place
        for g in range(work.num_groups):
            length[g] = 0
        for i in range(work.number):
            head = 0
            for n in range(work.num_needs[i]):
                head = most(head, heads[work.needs[i][n]] + work.seconds[work.needs[i][n]] + work.transfer[i][n])
            heads[i] = head
            g = work.first_group[i]
            while True:  # in order of their heads
                place = length[g]
                while place > 0 and heads[queue[g][place - 1]] > head:
                    queue[g][place] = queue[g][place - 1]
                    place -= 1
                queue[g][place] = i
                length[g] += 1
                if g == work.second_group[i]:
                    break
                g = work.second_group[i]
        for g in range(work.num_groups):
            load = 0
            behind = <long long>1 << 62
            for place in range(length[g] - 1, -1, -1):
                i = queue[g][place]
                load += work.seconds[i]
                if self.tails[i] - work.seconds[i] < behind:
                    behind = self.tails[i] - work.seconds[i]
                worst = most(worst, heads[i] + load + behind)
        return worst

    cdef long long replay(self) noexcept nogil:
        """End of the schedule in the order that was best last time."""
        cdef Work* work = &self.work
        cdef long long latest = 0, start
        cdef int place, i, n
        for i in range(work.num_groups):
            self.free_at[i] = 0
        for place in range(work.number):
            i = self.order[place]
            start = most(self.free_at[work.first_group[i]], self.free_at[work.second_group[i]])
            for n in range(work.num_needs[i]):
                start = most(start, self.end[work.needs[i][n]] + work.transfer[i][n])
            start += work.seconds[i]
            self.end[i] = start
            self.free_at[work.first_group[i]] = start
            self.free_at[work.second_group[i]] = start
            latest = most(latest, start)
        return latest

    cdef long long shortest(self) noexcept nogil:
        cdef int i
        self.floor = self.bound()
        self.best = self.replay()
        if self.best == self.floor:
            return self.best
        self.num_searched += 1
        for i in range(self.work.num_groups):
            self.free_at[i] = 0
        self.place(0, 0, 0)
        return self.best

    cdef void place(self, int depth, unsigned int done, long long latest) noexcept nogil:
        cdef Work* work = &self.work
        cdef long long[MAX_GROUPS] busy
        cdef long long start, first_free, second_free
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
        for i in range(work.number):
            if done >> i & 1:
                continue
            mine = (<unsigned int>1 << work.first_group[i]) | (<unsigned int>1 << work.second_group[i])
            shared |= wanted & mine
            wanted |= mine
            busy[work.first_group[i]] += work.seconds[i]
            if work.second_group[i] != work.first_group[i]:
                busy[work.second_group[i]] += work.seconds[i]
        for i in range(work.num_groups):
            if busy[i] >= self.best:
                return
        for i in range(work.number):  # nobody else wants its groups: no choice to make
            if done >> i & 1 or shared >> work.first_group[i] & 1 or shared >> work.second_group[i] & 1:
                continue
            ready = True
            for n in range(work.num_needs[i]):
                ready = ready and done >> work.needs[i][n] & 1
            if ready:
                only = i
                break
        for i in range(work.number):
            if done >> i & 1 or (only >= 0 and i != only):
                continue
            first_free, second_free = self.free_at[work.first_group[i]], self.free_at[work.second_group[i]]
            start = most(first_free, second_free)
            ready = True
            for n in range(work.num_needs[i]):
                if not (done >> work.needs[i][n] & 1):
                    ready = False
                    break
                start = most(start, self.end[work.needs[i][n]] + work.transfer[i][n])
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
