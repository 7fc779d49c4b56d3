"""Seconds of all replicas of a plan, kept up to date while blocks change nodes."""

from cython cimport final

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.maxima cimport Maxima
from hetrl_kernels.pipelines cimport Passage, Pattern
from hetrl_kernels.signatures cimport Entry, Signatures
from hetrl_kernels.tables cimport MAX_STAGES, MAX_TASKS, Tables
from hetrl_kernels.undo cimport Log


cdef struct Strategy:  # of one task
    int kind
    int degree_index
    int degree
    int shape
    int micro_batch
    int recompute
    int sharding
    int weights
    int optimizer
    int group
    int area


cdef struct Slowest:  # what a task's replicas take
    Maxima slow  # seconds of the pipeline, or of all
    Maxima first  # with the old log-probabilities ahead, where `scores_first`
    bint scores_first
    int* replica_of  # [number] -1 for units


cdef struct Unit:  # replicas of one task that lie inside one block
    int task
    int leaf
    int look  # number of what they look like, equal ones share it


cdef struct Replica:  # one that spans blocks has a leaf of its own
    int task
    int leaf  # -1 inside one block
    int first  # slot
    int num_stages
    int pattern
    int prompts
    int scores  # whether it is one of a scoring task
    int stamp
    int slower  # whether a stage of it may have become slower in this turn
    double useful  # tokens that a KV pool has use for
    long long unresolved  # 1 where its leaf holds an upper bound


cdef struct Touch:  # a stage that an edge describes
    int replica
    int slot
    int scores  # whether it is one of a scoring task
    int unordered  # kinds of nodes are not slower or faster in everything
    const void* by_kind  # of nodes: seconds if it scores, else rank
    const void* by_link  # of links: the same


cdef struct Edge:  # a block of stages, and that of those which follow: all of them look different when either moves
    int block
    int next  # -1 after the last stage
    int number
    int first_touch
    int end_touch


@final
cdef class Replicas(Arena):
    cdef Tables t
    cdef Links links
    cdef Signatures signatures
    cdef readonly int num_tasks, num_kinds, num_blocks, num_slots, num_replicas
    cdef Strategy[MAX_TASKS] strategies
    cdef Slowest[MAX_TASKS] slowest
    cdef Replica* replicas
    cdef Pattern* patterns  # of training and scoring
    # slots: the stages of all replicas, one replica after the other
    cdef int* slot_block
    cdef int* slot_layers
    cdef int* slot_word  # of those that train or generate
    cdef Passage* passages  # of those that score
    cdef double* slot_need
    cdef double* slot_kv
    # of every block
    cdef int* node  # [B]
    cdef int* first_unit  # [B + 1], as the following
    cdef Unit* units
    cdef int* first_edge
    cdef int* first_inner  # [B] first edge that depends on the kind of its own node alone
    cdef Edge* edges  # those of every block, one block after the other
    cdef int* edge_word  # by number: kind of the block's node and of the link to the next; 0 at first, which no edge has
    cdef Touch* touches
    # units by what they look like and kind of node, and the replicas they consist of
    cdef int num_looks
    cdef double* look_slow
    cdef double* look_first
    cdef int* look_replicas
    cdef int* first_look_replica
    # replicas that a proposal touches
    cdef unsigned long long[MAX_STAGES + 1] weights  # of places in a hash
    cdef int* touched
    cdef int num_touched
    cdef int turn
    cdef bint fresh  # no replica has been worked out yet
    cdef unsigned int stale_tasks
    cdef unsigned int unresolved_tasks  # whose slowest replica may be known by a bound only
    cdef double[MAX_TASKS] least  # lower bounds of what a task's slowest replica takes, by those that were touched last
    cdef double[MAX_TASKS] least_first

    cdef Maxima maxima(self, int number) except *
    cdef void read_pattern(self, Pattern* pattern, const Replica* replica) except *
    cdef void place_all(self, Log* log) noexcept nogil
    cdef void write_unit(self, Log* log, const Unit* unit, int node) noexcept nogil
    cdef void fill_look(self, int look, int node) noexcept nogil
    cdef double tokens_of(self, const Replica* replica, const int* nodes) noexcept nogil
    cdef void seconds_of(
        self, const Replica* replica, const int* nodes, const int* words, double tokens, double* slow, double* first) noexcept nogil
    cdef void shift(self, Log* log, int block, int target) noexcept nogil
    cdef void touch(self, Log* log, int block, bint all_stages) noexcept nogil
    cdef void refresh(self, Log* log) noexcept nogil
    cdef Entry* find(self, const Replica* replica, double tokens, const int* words) noexcept nogil
    cdef Entry* entry_of(self, const Replica* replica) noexcept nogil
    cdef double scoring_seconds(self, const Replica* replica) noexcept nogil
    cdef void write_leaves(self, Log* log, const Replica* replica, double slow, double first) noexcept nogil
    cdef void loosen(self, Log* log, Replica* replica) noexcept nogil
    cdef void resolve(self, Log* log, int task) noexcept nogil
