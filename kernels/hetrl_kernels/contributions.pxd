"""What blocks add to the nodes they stand on: gradient rings, areas, tallies, weight syncs, host RAM."""

from cython cimport final

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.replicas cimport Replicas
from hetrl_kernels.spread cimport Spread
from hetrl_kernels.tables cimport MAX_TASKS, Tables
from hetrl_kernels.train_rings cimport Rings
from hetrl_kernels.undo cimport Log, Tally


cdef struct Values:  # a tally of values that depend on a row and on the kind of node
    Tally tally
    bint of_sync
    unsigned int of_tasks  # whose seconds depend on it
    double* value  # by rank


cdef struct Row:  # what blocks add to a tally
    Values* values
    int* rank  # [kinds] of the value on a kind of node


cdef struct Need:  # data that one activity gets from another
    int activity
    int position  # among its needs
    int pair
    double num_bytes


cdef struct OfTask:  # of one task: numbers of its rings and tallies, or -1
    int rings
    int moved  # host traffic
    int step  # optimizer steps on devices


cdef struct Alike:  # of one block: equal where it adds the same, wherever it stands
    int members
    int areas
    int rows
    int bytes


@final
cdef class Contributions(Arena):
    cdef Tables t
    cdef Links links
    cdef Spread spread
    cdef Replicas replicas
    cdef Rings* rings
    cdef int num_rings, num_blocks, num_kinds
    cdef OfTask[MAX_TASKS] of_task
    cdef double* need  # [B] bytes of its fullest device
    cdef long long* host  # [B] bytes
    cdef Alike* alike  # [B]
    cdef int num_lanes  # of all rings
    cdef long long* members  # [B, lanes] tensor groups of each stage
    cdef long long* net  # [lanes] those that an exchange brings to the second node
    cdef unsigned int* areas  # [B] bit sets
    cdef int num_rows, row_words
    cdef long long* of_rows  # [B, words] bit sets
    cdef Row* rows
    cdef double* received  # [B, syncs] bytes of weights
    cdef unsigned int* stale_of  # [B] tasks whose seconds depend on where it stands
    cdef Values* values
    cdef int* sync_local  # [syncs] numbers of tallies
    cdef int* sync_types
    cdef list sync_tasks  # (training task, target)
    cdef Need* needs
    cdef int num_needs
    cdef long long* host_used  # [N]
    cdef long long* num_over  # blocks and hosts over their limits
    cdef unsigned int stale_tasks
    cdef bint transfers_stale

    cdef int add_rows(self, list tallies, list rows, dict blocks_of, value) except -1
    cdef void change_host(self, Log* log, int node, long long num_bytes) noexcept nogil
    cdef void change_limits(self, Log* log, int block, int node, int sign) noexcept nogil
    cdef void move_rings(self, Log* log, int source, int target) noexcept nogil
    cdef void change_areas(self, Log* log, unsigned int areas, int node, int number) noexcept nogil
    cdef void note(self, const Values* values) noexcept nogil
    cdef void change_rows(self, Log* log, int block, int node, int number) noexcept nogil
    cdef void change_bytes(self, Log* log, int sync, int node, double num_bytes) noexcept nogil
    cdef void settle(self, Log* log, int block, int node, int sign) noexcept nogil
    cdef unsigned int changes(self, const int* blocks, int number, bint other_kind) noexcept nogil
    cdef void exchange(self, Log* log, int block, int other, int node, int target) noexcept nogil
    cdef void move_bytes(self, Log* log, int sync, int source, int target, double num_bytes) noexcept nogil
    cdef void exchange_rows(self, Log* log, int block, int other, int node, int target) noexcept nogil
    cdef void exchange_many(self, Log* log, const int* blocks, int from_first, int number, int first, int second) noexcept nogil
    cdef void hand_over(self, Log* log, const int* blocks, int number, int source, int target) noexcept nogil
    cdef double largest(self, int number) noexcept nogil
    cdef double sync_seconds(self, Log* log, int sync) noexcept nogil
    cdef void nothing_stale(self) noexcept nogil
