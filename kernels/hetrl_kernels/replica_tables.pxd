"""Replicas of a plan as tables: stages, the edges between blocks that they form, units inside blocks, times by kind of node."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.maxima cimport Maxima
from hetrl_kernels.pipelines cimport Passage, Pattern
from hetrl_kernels.tables cimport MAX_TASKS, Tables


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
    int trust  # in upper bounds; it decides what is worked out first, not what comes out
    bint bounded  # whether some are long training pipelines, of which bounds come first


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
    int bounded  # whether it is a long training pipeline, of which bounds come first
    int unordered  # kinds of nodes are not slower or faster in everything
    int stamp
    int slower  # whether a stage of it may have become slower in this turn
    double useful  # tokens that a KV pool has use for
    long long unresolved  # 1 where its leaf holds an upper bound


cdef struct Touch:  # a stage that an edge describes
    Replica* replica
    void* where  # its passage if it scores, else its word
    const void* by_kind  # of nodes: seconds if it scores, else rank
    const void* by_link  # of links: the same


cdef struct Edge:  # a block of stages, and that of those which follow: all of them look different when either moves
    int block
    int next  # -1 after the last stage
    int first_touch  # of those that score
    int first_other
    int end_touch


cdef class ReplicaTables(Arena):
    cdef Tables t
    cdef Links links
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
    cdef Touch* touches
    # units by what they look like and kind of node, and the replicas they consist of
    cdef int num_looks
    cdef double* look_slow
    cdef double* look_first
    cdef int* look_replicas
    cdef int* first_look_replica
    cdef Replica** touched  # room for all

    cdef Maxima maxima(self, int number) except *
    cdef void read_pattern(self, Pattern* pattern, const Replica* replica) except *
