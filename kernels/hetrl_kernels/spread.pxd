"""Which nodes every task stands on, and what moves between them: the best links, and weight syncs."""

from cython cimport final

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.tables cimport Tables
from hetrl_kernels.undo cimport Log


cdef struct Pair:  # two areas between which something moves, and the best link from one to the other
    int source
    int target
    long long rank
    long long a  # a pair of nodes that has it
    long long b
    long long stale  # that pair is gone


cdef struct Sync:
    int source
    int target
    double whole  # bytes of all weights
    double seconds  # over the network, without calibration and the way inside nodes
    bint stale


cdef struct Sources:  # nodes that have sent equally much
    double sent
    long long* nodes


@final
cdef class Spread(Arena):
    cdef Tables t
    cdef Links links
    cdef readonly int num_areas, num_pairs, num_syncs
    cdef long long* on_node  # [areas, N] blocks
    cdef long long* nodes  # [areas, words]
    cdef Pair* pairs
    cdef Sync* syncs
    cdef double* received  # [syncs, N] bytes, without the limit of all weights
    cdef Sources* sources
    cdef long long* source_nodes

    cdef void empty(self)
    cdef void change(self, Log* log, int area, int node, int number) noexcept nogil
    cdef void enter(self, Log* log, int area, int node) noexcept nogil
    cdef void receive(self, Log* log, int sync, int node, double num_bytes) noexcept nogil
    cdef double transfer(self, Log* log, int pair, double num_bytes) noexcept nogil
    cdef void search(self, Log* log, Pair* pair) noexcept nogil
    cdef double network(self, Log* log, int sync) noexcept nogil
    cdef double distribute(self, Sync* sync, const double* received) noexcept nogil
    cdef void nothing_stale(self) noexcept nogil
