# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Level 4: simulated annealing over how many devices of which node each group gets."""

from libc.math cimport exp, log, pow
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from hetrl_kernels.tables cimport fmax
from hetrl_kernels.groups cimport Steps


cdef class Random:
    """splitmix64: the same numbers on every machine.

    Parameters
    ----------
    seed
        Any integer.
    """

    cdef unsigned long long state

    def __init__(self, seed):
        self.state = seed & 0xFFFFFFFFFFFFFFFF

    cdef unsigned long long next(self) noexcept nogil:
        cdef unsigned long long z
        self.state += <unsigned long long>0x9E3779B97F4A7C15
        z = self.state
        z = (z ^ (z >> 30)) * <unsigned long long>0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <unsigned long long>0x94D049BB133111EB
        return z ^ (z >> 31)

    cdef double uniform(self) noexcept nogil:
        return <double>(self.next() >> 11) / 9007199254740992.0

    cdef int below(self, int limit) noexcept nogil:
        return <int>(self.next() % <unsigned long long>limit)


cdef bint move(Random random, int* counts, int groups, int nodes, const int[::1] kinds, int block, int* source, int* target) noexcept nogil:
    """Move devices between two groups in place: of one node or of several alike, perhaps with some back.

    False if nothing changed.
    """
    cdef int node, other, amount, back, g, wanted, n
    cdef bint left = False, right = False
    if groups < 2:
        return False
    node = random.below(nodes)
    source[0] = random.below(groups)
    target[0] = (source[0] + 1 + random.below(groups - 1)) % groups
    if counts[source[0] * nodes + node] == 0:
        g = source[0]
        source[0], target[0] = target[0], g
    if counts[source[0] * nodes + node] == 0:
        return False
    if nodes > 8 and random.below(3) > 0:
        # several nodes of one kind, a random share of what the source has
        wanted = 1 << random.below(1 + ilog2(nodes))
        for n in range(nodes):
            other = (node + n) % nodes
            if kinds[other] == kinds[node] and counts[source[0] * nodes + other]:
                counts[target[0] * nodes + other] += counts[source[0] * nodes + other]
                counts[source[0] * nodes + other] = 0
                wanted -= 1
                if wanted == 0:
                    break
    else:
        amount = counts[source[0] * nodes + node]
        if amount > block and random.uniform() >= 0.3:
            amount = block
        counts[source[0] * nodes + node] -= amount
        counts[target[0] * nodes + node] += amount
    if nodes > 1 and random.below(2):
        other = random.below(nodes)
        back = counts[target[0] * nodes + other]
        if other != node and back:
            if back > block and random.uniform() >= 0.3:
                back = block
            counts[target[0] * nodes + other] -= back
            counts[source[0] * nodes + other] += back
    for n in range(nodes):
        left = left or counts[source[0] * nodes + n] > 0
        right = right or counts[target[0] * nodes + n] > 0
    return left and right


cdef inline int ilog2(int number) noexcept nogil:
    cdef int result = 0
    while number > 1:
        number >>= 1
        result += 1
    return result


def anneal(
    Steps steps, tuple grouping, tuple assignment, double cost, const int[::1] kinds, *, long long seed, int num_moves, int block,
    double start_temperature, double end_temperature, fixed=None):
    """Anneal the assignment of one grouping.

    Parameters
    ----------
    assignment
        Per group the int32 device counts of all nodes, as bytes.
    cost
        Its cost.
    kinds
        Kind of every node.
    block
        Devices moved at once where a node has more.
    start_temperature, end_temperature
        Relative to the current cost.
    fixed
        (group tasks, counts) -> whether a group may hold these devices, or None.

    Returns
    -------
    (assignment, cost, counters)
        The best seen, never worse than the start; counters: null, rejected by bound, costed, accepted moves.
    """
    cdef Random random = Random(seed)
    cdef int groups = len(grouping), nodes = kinds.shape[0]
    cdef size_t size = groups * nodes * sizeof(int)
    cdef int* counts = <int*>malloc(size)
    cdef int* proposal = <int*>malloc(size)
    cdef int i, turn, source = 0, target = 0
    cdef double best = cost, temperature, below, proposed, threshold
    cdef long long null = 0, accepted = 0, costed = 0, before = steps.num_costed
    best_assignment = assignment
    current = list(assignment)
    try:
        for i in range(groups):
            memcpy(counts + i * nodes, <char*>(<bytes>assignment[i]), nodes * sizeof(int))
        for turn in range(num_moves):
            memcpy(proposal, counts, size)
            threshold = random.uniform()
            if not move(random, proposal, groups, nodes, kinds, block, &source, &target):
                null += 1
                continue
            tried = list(current)
            tried[source] = (<char*>(proposal + source * nodes))[: nodes * sizeof(int)]
            tried[target] = (<char*>(proposal + target * nodes))[: nodes * sizeof(int)]
            if fixed is not None and not (fixed(grouping[source], tried[source]) and fixed(grouping[target], tried[target])):
                null += 1
                continue
            temperature = start_temperature * pow(end_temperature / start_temperature, turn / fmax(1, num_moves - 1))
            below = cost * (1.0 - temperature * log(fmax(threshold, 1e-12)))
            costed += 1
            proposed = steps.cost(grouping, tuple(tried), below)
            if proposed < below:
                accepted += 1
                memcpy(counts, proposal, size)
                current = tried
                cost = proposed
                if cost < best:
                    best, best_assignment = cost, tuple(tried)
    finally:
        free(counts)
        free(proposal)
    return best_assignment, best, (null, costed, accepted)
