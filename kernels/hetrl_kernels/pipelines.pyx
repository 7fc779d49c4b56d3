# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stage times of replicas by the kind of node, so that only their composition is left to work out."""

from hetrl_kernels.tables cimport MAX_STAGES, fmax, fmin, forward_only, one_f_one_b


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


cdef void train_bounds(const Pattern* pattern, int num_kinds, const int* words, Bounds* bounds) noexcept nogil:
    """Bounds of `train_seconds` that cost next to nothing, where the pipeline has work.

    A path through the schedule goes up the stages and down again once; each of the other micro-batches adds a stay on a stage
    with the ways to it, or a forward of the warm-up with a backward of the wind-down: a path that turns W stages below
    the last one makes W of both. The lower bound is a stage's own work with the way of the first micro-batch to it and back, or
    with the way of its first micro-batch to the end and back less the forwards that it makes meanwhile.
    """
    cdef double once = 0.0, stay = 0.0, slow_forward = 0.0, slow_backward = 0.0, behind = 0.0, forward, backward, send, both
    cdef double scored = 0.0, scoring = 0.0, through = 0.0, beyond = 0.0, others = pattern.num_micro_batches - 1
    cdef int j, place
    for j in range(pattern.num_stages):
        place = j * num_kinds + (words[j] >> LINK_BITS)
        forward, backward, send = pattern.forward[place], pattern.backward[place], pattern.ranked_send[words[j] & LINK_MASK]
        both = forward + backward
        beyond = fmax(beyond, once + both + others * both)
        through = fmax(through, others * both - fmin(others, pattern.num_stages - 1 - j) * forward)
        once += both + 2 * send
        stay = fmax(stay, both + behind + send)
        slow_forward = fmax(slow_forward, forward)
        slow_backward = fmax(slow_backward, backward)
        behind = send
        scored += pattern.scoring[place] + send
        scoring = fmax(scoring, pattern.scoring[place])
    bounds.low = fmax(beyond, once + through)
    bounds.high = once + others * fmax(stay, slow_forward + slow_backward)
    bounds.first = scored + (pattern.num_scored - 1) * scoring if pattern.num_scored else 0.0


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


def training_pipeline(list forward, list backward, list send, int num_micro_batches):
    """One training pipeline by itself.

    Parameters
    ----------
    forward, backward
        Seconds of a micro-batch, by stage.
    send
        Seconds from each stage to the next.
    num_micro_batches
        At least 1.

    Returns
    -------
    (low, exact, high)
        Seconds of the 1F1B schedule between their bounds.
    """
    cdef double[4 * MAX_STAGES] times
    cdef double[MAX_STAGES + 1] ranked_send
    cdef int[MAX_STAGES] words
    cdef int j, stages = len(forward)
    cdef double exact, first
    cdef Pattern pattern
    cdef Bounds bounds
    if not 0 < stages <= MAX_STAGES or len(backward) != stages or len(send) != stages - 1 or num_micro_batches < 1:
        raise ValueError("one to 64 stages with as many backward times, a send between any two, and a micro-batch")
    pattern.num_stages, pattern.num_micro_batches, pattern.num_scored = stages, num_micro_batches, 0
    pattern.forward, pattern.backward, pattern.scoring = times, times + stages, times + 2 * stages
    pattern.ranked_send = ranked_send
    ranked_send[0] = 0.0
    for j in range(stages):
        pattern.forward[j], pattern.backward[j], pattern.scoring[j] = forward[j], backward[j], 0.0
        words[j] = stage_word(0, j + 1 if j + 1 < stages else 0)
        if j + 1 < stages:
            ranked_send[j + 1] = send[j]
    train_seconds(&pattern, 1, words, &exact, &first)
    train_bounds(&pattern, 1, words, &bounds)
    return bounds.low, exact, bounds.high
