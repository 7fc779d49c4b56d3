"""A whole plan on nodes, and its cost kept up to date while blocks of devices change places."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.orders cimport Orders
from hetrl_kernels.pipelines cimport Pattern
from hetrl_kernels.signatures cimport Entry, Signatures
from hetrl_kernels.spread cimport Spread
from hetrl_kernels.tables cimport MAX_TASKS, Tables
from hetrl_kernels.train_rings cimport Rings
from hetrl_kernels.undo cimport Log, Tally


cdef struct TaskState:
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
    int rings  # number of its gradient rings, or -1
    int moved  # number of a tally of host traffic, or -1
    int step  # number of a tally of optimizer steps on devices, or -1
    int tree  # leaves
    double* slow  # tree over replicas and units: seconds of the pipeline, or of all
    double* first  # with the old log-probabilities ahead; NULL where there are none
    int* replica_of  # [leaves] -1 for units


cdef struct Unit:  # replicas of one task that lie inside one block
    int task
    int leaf
    int look  # number of what they look like, equal ones share it


cdef struct Members:  # tensor groups of one stage of a training task in a block
    int rings
    int stage
    int number


cdef struct Row:  # what a block adds to a tally, by the kind of its node
    int tally
    int row


cdef struct Bytes:  # weights that a block receives in a sync
    int sync
    double number


cdef struct Need:  # data that one activity gets from another
    int activity
    int position  # among its needs
    int pair
    double num_bytes


cdef struct Values:  # a tally of values that depend on a row and on the kind of node
    Tally tally
    int* rank  # [rows, kinds]
    double* value  # by rank


cdef enum Outcome:
    COSTED
    INFEASIBLE
    ABOVE_LIMIT


cdef class PlanState(Arena):
    cdef Tables t
    cdef Links links
    cdef Signatures signatures
    cdef Orders orders
    cdef Spread spread
    cdef Rings* rings
    cdef int num_rings
    cdef readonly int num_blocks, num_tasks, num_kinds, num_groups, num_slots, num_replicas
    cdef readonly double scale, unit
    cdef Log log
    cdef TaskState[MAX_TASKS] tasks
    # blocks
    cdef int* node  # [B]
    cdef int* size
    cdef int* group
    cdef int* kind  # equal where everything but replicas' seconds is
    cdef long long* types  # device types that it may stand on
    cdef double* need  # bytes of its fullest device
    cdef long long* host  # bytes
    cdef int* first_unit  # [B + 1], as the following
    cdef Unit* units
    cdef int* first_slot
    cdef int* slots
    cdef int* first_members
    cdef Members* members
    cdef int* first_area
    cdef int* areas
    cdef int* first_row
    cdef Row* rows
    cdef int* first_bytes
    cdef Bytes* bytes_of
    # replicas that span blocks
    cdef int* slot_replica
    cdef int* slot_node
    cdef int* slot_layers
    cdef double* slot_need
    cdef double* slot_kv
    cdef long long* slot_key
    cdef int* replica_task  # [R]
    cdef int* replica_leaf
    cdef int* replica_prompts
    cdef int* replica_first  # [R + 1] slots
    cdef int* replica_pattern
    cdef Pattern* patterns  # of training and scoring
    cdef double* replica_useful
    cdef long long* replica_hash
    cdef long long* unresolved  # [R] 1 where the leaf holds an upper bound
    cdef int* touched
    cdef int num_touched
    cdef int* stamp
    cdef int turn
    # units by what they look like and kind of node, and the replicas they consist of
    cdef int num_looks
    cdef double* look_slow
    cdef double* look_first
    cdef int* look_replicas
    cdef int* first_look_replica
    # the whole
    cdef Values* values
    cdef int num_values
    cdef int* sync_local  # [syncs] numbers of tallies
    cdef int* sync_types
    cdef int* sync_activity
    cdef Need* needs
    cdef int num_needs
    cdef long long* host_used  # [N]
    cdef long long* num_over  # blocks and hosts over their limits
    cdef double* total  # [1] the current cost
    cdef unsigned int stale_tasks
    cdef bint transfers_stale, schedule_stale
    cdef Outcome outcome

    cdef void* copy(self, object values, str kind) except NULL
    cdef int* starts(self, list by_block) except NULL
    cdef int add_rows(self, list tallies, list rows, dict blocks_of, value) except -1
    cdef long long key_of(self, int slot, int replica) noexcept nogil
    cdef void write_unit(self, const Unit* unit, int node) noexcept nogil
    cdef void fill_look(self, int look, int node) noexcept nogil
    cdef double tokens_of(self, int replica, const int* nodes) noexcept nogil
    cdef void read_pattern(self, Pattern* pattern, int replica) except *
    cdef void time_replica(
        self, int replica, const int* nodes, const long long* key, double tokens, double* slow, double* first) noexcept nogil
    cdef void shift(self, int block, int target) noexcept nogil
    cdef void settle(self, int block, int node, int sign) noexcept nogil
    cdef void touch(self, int block) noexcept nogil
    cdef void refresh_replicas(self) noexcept nogil
    cdef Entry* entry_of(self, int replica, double tokens) noexcept nogil
    cdef Entry* upper_bound(self, int replica, int link) noexcept nogil
    cdef void write_leaves(self, int replica, double slow, double first) noexcept nogil
    cdef void resolve(self, int task) noexcept nogil
    cdef bint exceeds(self, double limit) noexcept nogil
    cdef double task_seconds(self, int task) noexcept nogil
    cdef double largest(self, int number) noexcept nogil
    cdef void write_ticks(self, long long* where, double seconds) noexcept nogil
    cdef double cost(self, double limit) noexcept nogil
    cdef double sync_seconds(self, int sync) noexcept nogil
    cdef double step(self, double limit) noexcept nogil
    cdef bint fits(self, const int* blocks, int number, int target) noexcept nogil
    cdef bint may_hold(self, const int* blocks, int number, int target) noexcept nogil
    cdef bint move(self, const int* blocks, int from_first, int number, int first, int second, double limit) noexcept nogil
    cdef void undo(self, const int* blocks, int from_first, int number, int first, int second) noexcept nogil
