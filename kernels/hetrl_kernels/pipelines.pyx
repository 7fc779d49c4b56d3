# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stage times of replicas by the kind of node, so that only their composition is left to work out.

A key has one word per stage: the kind of its node in the upper half, one more than the kind of the link to the next stage in
the lower.
"""

from hetrl_kernels.tables cimport MAX_STAGES, forward_only, one_f_one_b


cdef inline int node_of_key(long long word) noexcept nogil:
    return <int>(word >> 32)


cdef inline int link_of_key(long long word) noexcept nogil:
    return <int>(word & 0x7FFFFFFF)


cdef void train_seconds(const Pattern* pattern, int num_kinds, const long long* key, double* slow, double* first) noexcept nogil:
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
        place = j * num_kinds + node_of_key(key[j])
        forward[j] = pattern.forward[place]
        backward[j] = pattern.backward[place]
        scoring[j] = pattern.scoring[place]
        send[j] = pattern.send[link_of_key(key[j])]
    slow[0] = one_f_one_b(pattern.num_stages, forward, backward, send, pattern.num_micro_batches)
    first[0] = slow[0]
    if pattern.num_scored:
        first[0] += forward_only(pattern.num_stages, scoring, send, pattern.num_scored)


cdef int slowest_link(const Pattern* pattern, const long long* key) noexcept nogil:
    """Lower half of the key's word with the slowest link; 0 where all links are alike."""
    cdef int j, link, slowest = link_of_key(key[0])
    cdef bint alike = True
    for j in range(1, pattern.num_stages - 1):
        link = link_of_key(key[j])
        alike = alike and link == slowest
        if pattern.send[link] > pattern.send[slowest]:
            slowest = link
    return 0 if alike else slowest


cdef double score_seconds(const Pattern* pattern, int num_kinds, const long long* key) noexcept nogil:
    """A scoring replica's pipeline: filled once, then the slowest stage decides."""
    cdef double total = 0.0, sends = 0.0, slowest = 0.0, stage
    cdef int j
    if pattern.num_micro_batches == 0:
        return 0.0
    for j in range(pattern.num_stages):
        stage = pattern.forward[j * num_kinds + node_of_key(key[j])]
        total += stage
        sends += pattern.send[link_of_key(key[j])]  # 0 after the last stage
        slowest = stage if stage > slowest else slowest
    return total + sends + (pattern.num_micro_batches - 1) * slowest
