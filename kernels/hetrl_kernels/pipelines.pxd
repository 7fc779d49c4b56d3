"""Stage times of replicas by the kind of node, so that only their composition is left to work out."""

from hetrl_kernels.tables cimport Tables


cdef struct Pattern:  # replicas of one task with the same layers and prompts
    int num_stages
    int num_micro_batches  # of an update, or of all
    int num_scored  # micro-batches of the old log-probabilities; 0 where there are none
    double* forward  # [P, kinds of nodes] seconds of one micro-batch, as the following
    double* backward
    double* scoring
    double* send  # [1 + kinds of links]


cdef void train_seconds(const Pattern* pattern, int num_kinds, const long long* key, double* slow, double* first) noexcept nogil
cdef int slowest_link(const Pattern* pattern, const long long* key) noexcept nogil
cdef double score_seconds(const Pattern* pattern, int num_kinds, const long long* key) noexcept nogil
