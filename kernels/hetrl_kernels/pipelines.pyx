# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stage times of replicas by the kind of node, so that only their composition is left to work out."""

from hetrl_kernels.tables cimport MAX_STAGES, fmax, forward_only, one_f_one_b

cdef double SAME = 2.0 ** -48


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
    """Bounds of `train_seconds` in O(P), where the pipeline has work.

    The schedule is a graph of operations, and its end the longest path through it. A stage j first runs W forwards (as many
    as there are stages from it on, or all), then backwards and forwards in turn, N rounds of them, then W - 1 backwards. In
    the middle part, a path that gains one round per stage of a stretch of stages returns to where it was, so no round takes
    longer on average than the heaviest such stretch: ``period``. Operations that start at one time plus the round's number
    times the period keep all the order's rules if these times do; the smallest such times make a schedule, whose end is an
    upper bound. Any single path is a lower one: into a stage's first backward, round it N times, and out. Where one stage
    decides, both meet.
    """
    cdef double[MAX_STAGES] forward
    cdef double[MAX_STAGES] backward
    cdef double[MAX_STAGES] send  # 0 after the last stage
    cdef double[MAX_STAGES] start  # of the first backward
    cdef double[MAX_STAGES] tail  # from the last backward of the middle part, itself included, to the end
    cdef int[MAX_STAGES] width  # forwards ahead of the first backward
    cdef double period = 0.0, gain, best, ahead = 0.0, behind = 0.0, slow_forward = 0.0, slow_backward = 0.0, follows
    cdef double scored = 0.0, slow_scoring = 0.0, low = 0.0, high = 0.0
    cdef int j, place, first, end, length, rounds, full, last = pattern.num_stages - 1, m = pattern.num_micro_batches
    cdef int stretch = 1, stretch_end = -1
    cdef bint later = False
    for j in range(last + 1):
        place = j * num_kinds + (words[j] >> LINK_BITS)
        forward[j] = pattern.forward[place]
        backward[j] = pattern.backward[place]
        send[j] = pattern.ranked_send[words[j] & LINK_MASK]
        width[j] = m if m < last + 1 - j else last + 1 - j
        period = fmax(period, forward[j] + backward[j])
        # warm-up and wind-down: the stage that is slowest so far decides
        slow_forward = fmax(slow_forward, forward[j])
        slow_backward = fmax(slow_backward, backward[j])
        behind += backward[j]
        start[j] = ahead + forward[j] + (width[j] - 1) * slow_forward
        tail[j] = behind + (width[j] - 1) * slow_backward
        ahead += forward[j] + send[j]
        behind += send[j]
        scored += pattern.scoring[place] + send[j]
        slow_scoring = fmax(slow_scoring, pattern.scoring[place])
    while True:  # the heaviest stretch, by raising the period until none weighs more: mostly one or two turns
        gain = best = 0.0
        first = end = length = 0
        for j in range(last + 1):
            gain += 2 * send[j - 1] if j > 0 else 0.0
            if gain <= 0.0:
                gain = 0.0
                first = j
            gain += forward[j] + backward[j] - period
            if gain > best:
                best, length, end = gain, j + 1 - first, j
        if best <= SAME * period:
            break
        stretch, stretch_end = length, end
        period += best / length
    for j in range(last, -1, -1):
        if j < last:
            start[j] = fmax(start[j], start[j + 1] + backward[j + 1] + send[j])
        rounds = m - width[j]
        low = fmax(low, start[j] + tail[j] + rounds * (forward[j] + backward[j]))
        if j == stretch_end:
            full = rounds // stretch * stretch
            low = fmax(low, start[j] + tail[j] + full * period * (1.0 - SAME) + (rounds - full) * (forward[j] + backward[j]))
        high = fmax(high, start[j] + tail[j] + rounds * period)
    follows = start[0] + backward[0]  # the forward after the first backward
    for j in range(1, last + 1):
        follows = fmax(start[j] + backward[j], follows + forward[j - 1] + send[j - 1] - period)
        if follows + forward[j] - period > start[j]:
            start[j] = follows + forward[j] - period
            later = True
    if later:
        for j in range(last, -1, -1):
            if j < last:
                start[j] = fmax(start[j], start[j + 1] + backward[j + 1] + send[j])
            high = fmax(high, start[j] + tail[j] + (m - width[j]) * period)
    bounds.low, bounds.high = low, high
    bounds.first = scored + (pattern.num_scored - 1) * slow_scoring if pattern.num_scored else 0.0
    bounds.sure = high <= low * (1.0 + SAME)


cdef void rough_bound(const Pattern* pattern, int num_kinds, const int* words, double* slow, double* first) noexcept nogil:
    """Upper bounds of `train_seconds` that cost next to nothing, where the pipeline has work.

    A path through the schedule goes up the stages and down again once; each of the other micro-batches adds a stay on a stage
    with the ways to it, or a forward of the warm-up with a backward of the wind-down: a path that turns W stages below
    the last one makes W of both.
    """
    cdef double once = 0.0, stay = 0.0, slow_forward = 0.0, slow_backward = 0.0, behind = 0.0, forward, backward, send
    cdef double scored = 0.0, scoring = 0.0
    cdef int j, place
    for j in range(pattern.num_stages):
        place = j * num_kinds + (words[j] >> LINK_BITS)
        forward, backward, send = pattern.forward[place], pattern.backward[place], pattern.ranked_send[words[j] & LINK_MASK]
        once += forward + backward + 2 * send
        stay = fmax(stay, forward + backward + behind + send)
        slow_forward = fmax(slow_forward, forward)
        slow_backward = fmax(slow_backward, backward)
        behind = send
        scored += pattern.scoring[place] + send
        scoring = fmax(scoring, pattern.scoring[place])
    slow[0] = once + (pattern.num_micro_batches - 1) * fmax(stay, slow_forward + slow_backward)
    first[0] = slow[0] + scored + (pattern.num_scored - 1) * scoring if pattern.num_scored else slow[0]


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
    (low, exact, high, rough, sure)
        Seconds of the 1F1B schedule between their bounds, the rough upper bound, and whether the two others say that they meet.
    """
    cdef double[4 * MAX_STAGES] times
    cdef double[MAX_STAGES + 1] ranked_send
    cdef int[MAX_STAGES] words
    cdef int j, stages = len(forward)
    cdef double exact, rough, first
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
    rough_bound(&pattern, 1, words, &rough, &first)
    return bounds.low, exact, bounds.high, rough, bool(bounds.sure)
