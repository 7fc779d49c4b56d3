# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The links of a fleet in the orders in which rings and transfers compare them."""


cdef class Links(Arena):
    """Orders and levels of all links, worked out once.

    Parameters
    ----------
    t
        The lowered job.
    """

    def __init__(self, Tables t):
        cdef int a, b, kind, place
        cdef int n = t.num_nodes
        cdef dict pair_of = {}
        self.t = t
        self.num_nodes = n
        self.words = (n + 63) // 64
        for a in range(n):
            for b in range(n):
                kind = t.link_kind[a, b]
                if kind not in pair_of:
                    pair_of[kind] = (t.link_latency[a, b], t.link_bandwidth[a, b])
        kinds = sorted(pair_of)
        self.num_kinds = max(kinds) + 1
        self.latency_rank = <int*>self.room(self.num_kinds * sizeof(int))
        self.bandwidth_rank = <int*>self.room(self.num_kinds * sizeof(int))
        self.best_rank = <int*>self.room(self.num_kinds * sizeof(int))
        self.latency = <double*>self.room(self.num_kinds * sizeof(double))
        self.bandwidth = <double*>self.room(self.num_kinds * sizeof(double))
        self.best_latency = <double*>self.room(self.num_kinds * sizeof(double))
        self.best_bandwidth = <double*>self.room(self.num_kinds * sizeof(double))
        for place, kind in enumerate(sorted(kinds, key=lambda each: pair_of[each][0])):
            self.latency_rank[kind] = place
            self.latency[place] = pair_of[kind][0]
        for place, kind in enumerate(sorted(kinds, key=lambda each: pair_of[each][1])):
            self.bandwidth_rank[kind] = place
            self.bandwidth[place] = pair_of[kind][1]
        for place, kind in enumerate(sorted(kinds, key=lambda each: (-pair_of[each][1], pair_of[each][0]))):
            self.best_rank[kind] = place
            self.best_latency[place], self.best_bandwidth[place] = pair_of[kind]
        self.own_rank = <int*>self.room(n * sizeof(int))
        self.own_node = <int*>self.room(n * sizeof(int))
        for place, a in enumerate(sorted(range(n), key=lambda each: (t.link_bandwidth[each, each], each))):
            self.own_rank[a] = place
            self.own_node[place] = a
        to, source, fast = [], [], []
        for a in range(n):
            to.append({})
            source.append({})
            fast.append({})
            for b in range(n):
                to[a].setdefault(self.best_rank[t.link_kind[a, b]], []).append(b)
                source[a].setdefault(self.best_rank[t.link_kind[b, a]], []).append(b)
                fast[a].setdefault(-t.link_bandwidth[b, a], []).append(b)
        total = sum([len(levels) for levels in to + source + fast])
        self.masks = <long long*>self.room(total * self.words * sizeof(long long))
        self.first_to = <int*>self.room((n + 1) * sizeof(int))
        self.first_from = <int*>self.room((n + 1) * sizeof(int))
        self.first_fast = <int*>self.room((n + 1) * sizeof(int))
        self.to = self.lay(to, self.first_to)
        self.source = self.lay(source, self.first_from)
        self.fast = self.lay(fast, self.first_fast)
        self.read_places()

    cdef void read_places(self) except *:
        """Groups of alike nodes: each node is compared with the first of every group so far."""
        cdef int a, b, g, n = self.num_nodes
        self.places = <Place*>self.room(n * sizeof(Place))
        firsts = []
        for a in range(n):
            self.places[a].kind = self.t.node_kind[a]
            self.places[a].own_link = self.t.link_kind[a, a]
            self.places[a].group = len(firsts)
            for g, b in enumerate(firsts):
                if self.alike(a, b):
                    self.places[a].group = g
                    break
            else:
                firsts.append(a)
        self.num_groups = len(firsts)
        self.between = <int*>self.room(self.num_groups * self.num_groups * sizeof(int))
        for a in range(n):
            for b in range(n):
                if a != b:
                    self.between[self.places[a].group * self.num_groups + self.places[b].group] = self.t.link_kind[a, b]

    cdef bint alike(self, int a, int b) noexcept nogil:
        cdef int c
        if self.t.link_kind[a, b] != self.t.link_kind[b, a]:
            return False
        for c in range(self.num_nodes):
            if c != a and c != b and (
                self.t.link_kind[a, c] != self.t.link_kind[b, c] or self.t.link_kind[c, a] != self.t.link_kind[c, b]
            ):
                return False
        return True

    cdef Level* lay(self, list by_node, int* first) except NULL:
        """Write the levels of all nodes, best first, and their masks."""
        cdef Level* levels = <Level*>self.room(sum([len(each) for each in by_node]) * sizeof(Level))
        cdef int number = 0, node, b
        for node, each in enumerate(by_node):
            first[node] = number
            for rank in sorted(each):
                levels[number].rank = rank if rank >= 0 else 0
                levels[number].mask = self.num_masks * self.words
                for b in each[rank]:
                    self.masks[levels[number].mask + (b >> 6)] |= <long long>1 << (b & 63)
                self.num_masks += 1
                number += 1
        first[len(by_node)] = number
        return levels
