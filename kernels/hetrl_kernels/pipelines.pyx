# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stage times of replicas by the kind of node, so that only their composition is left to work out."""

from hetrl_kernels.tables cimport MAX_STAGES, forward_only, one_f_one_b


cdef void rank_kinds(Pattern* pattern, int num_kinds) except *:
    """Order the kinds of nodes by their times; equal ones become one, so that replicas which differ only in these look alike."""
    cdef double* table = pattern.forward  # and the two others behind it
    cdef int kind, place
    times = [tuple([table[place] for place in range(kind, 3 * pattern.num_stages * num_kinds, num_kinds)]) for kind in range(num_kinds)]
    ordered = sorted(set(times))
    pattern.ordered = all([
        all([a <= b for a, b in zip(faster, slower)]) for faster, slower in zip(ordered, ordered[1:])
    ])
    rank = {each: number for number, each in enumerate(ordered)}
    for kind in range(num_kinds):
        pattern.kind_rank[kind] = rank[times[kind]]
    for kind, each in enumerate(ordered):
        for place in range(3 * pattern.num_stages):
            table[place * num_kinds + kind] = each[place]


cdef void rank_links(Pattern* pattern, int num_links) except *:
    """Order the kinds of links by their seconds; equal ones become one."""
    cdef int kind
    times = sorted({pattern.send[kind] for kind in range(1, num_links + 1)})
    rank = {seconds: number + 1 for number, seconds in enumerate(times)}
    for kind in range(1, num_links + 1):
        pattern.link_rank[kind] = rank[pattern.send[kind]]
        pattern.ranked_send[pattern.link_rank[kind]] = pattern.send[kind]


cdef void train_seconds(const Pattern* pattern, int num_kinds, const int* words, double* slow, double* first) noexcept nogil:
    """One update's pipeline, alone and with the old log-probabilities of the step ahead of it."""
    cdef double[MAX_STAGES] forward
    cdef double[MAX_STAGES] backward
    cdef double[MAX_STAGES] scoring
    cdef double[MAX_STAGES] send
    cdef int j, place
    if pattern.num_micro_batches == 0:
        slow[0] = first[0] = 0.0
        return
    for j in range(pattern.num_stages):
        place = j * num_kinds + (words[j] >> LINK_BITS)
        forward[j] = pattern.forward[place]
        backward[j] = pattern.backward[place]
        scoring[j] = pattern.scoring[place]
        send[j] = pattern.ranked_send[words[j] & LINK_MASK]
    slow[0] = one_f_one_b(pattern.num_stages, forward, backward, send, pattern.num_micro_batches)
    first[0] = slow[0]
    if pattern.num_scored:
        first[0] += forward_only(pattern.num_stages, scoring, send, pattern.num_scored)


cdef int slowest_link(int num_stages, const int* words) noexcept nogil:
    """Rank of a pipeline's slowest link; 0 where all are alike."""
    cdef int j, link, slowest = 0, fastest = LINK_MASK
    for j in range(num_stages - 1):
        link = words[j] & LINK_MASK
        slowest = link if link > slowest else slowest
        fastest = link if link < fastest else fastest
    return 0 if slowest == fastest else slowest


cdef double score_seconds(int num_stages, int num_micro_batches, const Passage* stages) noexcept nogil:
    """A scoring replica's pipeline: filled once, then the slowest stage decides. Two sums, so that neither waits for the other."""
    cdef double even = 0.0, odd = 0.0, slowest = 0.0, slow = 0.0
    cdef int j
    if num_micro_batches == 0:
        return 0.0
    for j in range(0, num_stages - 1, 2):
        even += stages[j].work + stages[j].send
        odd += stages[j + 1].work + stages[j + 1].send
        slowest = stages[j].work if stages[j].work > slowest else slowest
        slow = stages[j + 1].work if stages[j + 1].work > slow else slow
    if num_stages & 1:
        even += stages[num_stages - 1].work
        slowest = stages[num_stages - 1].work if stages[num_stages - 1].work > slowest else slowest
    return even + odd + (num_micro_batches - 1) * (slowest if slowest > slow else slow)
