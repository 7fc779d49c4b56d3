"""Stage times of replicas by the kind of node, so that only their composition is left to work out."""

from hetrl_kernels.tables cimport MAX_STAGES, Tables


cdef struct Pattern:  # replicas of one task with the same layers and prompts
    int num_stages
    int num_micro_batches  # of an update, or of all
    int num_scored  # micro-batches of the old log-probabilities; 0 where there are none
    bint ordered  # each kind of node is slower at nothing than those of higher rank
    double* forward  # [P, ranks of kinds of nodes] seconds of one micro-batch, as the following
    double* backward
    double* scoring
    double* send  # [1 + kinds of links], the first of none
    int* kind_rank  # [kinds of nodes] equal where all times are equal
    int* link_rank  # [1 + kinds of links] in the order of their seconds, equal where these are equal
    double* ranked_send  # by rank


cdef struct Passage:  # one micro-batch through a stage of a scoring replica
    double work
    double send  # 0 after the last stage


cdef struct Bounds:  # of one update's pipeline
    double low
    double high
    double first  # exact seconds of the old log-probabilities ahead of it


cdef enum:
    LINK_BITS = 16
    LINK_MASK = (1 << LINK_BITS) - 1


cdef inline int stage_word(int kind, int link) noexcept nogil:
    """What a stage looks like: the rank of the kind of its node, and that of the link to the next stage."""
    return kind << LINK_BITS | link


cdef void rank_kinds(Pattern* pattern, int num_kinds) except *
cdef void rank_links(Pattern* pattern, int num_links) except *
cdef void train_seconds(const Pattern* pattern, int num_kinds, const int* words, double* slow, double* first) noexcept nogil
cdef void train_bounds(const Pattern* pattern, int num_kinds, const int* words, Bounds* bounds) noexcept nogil
cdef double score_seconds(int num_stages, int num_micro_batches, const Passage* stages) noexcept nogil
