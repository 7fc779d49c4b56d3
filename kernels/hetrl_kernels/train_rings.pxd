"""Gradient rings of one training task, kept up to date while tensor groups change nodes."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.memory cimport State
from hetrl_kernels.tables cimport Tables
from hetrl_kernels.undo cimport Log, Tally


cdef struct Rings:
    int num_stages
    int num_replicas
    int degree
    int sharding
    int num_micro_batches  # of the replica with the most
    bint on_host  # the optimizer runs on the hosts
    State* states  # [P]
    long long* members  # [N, P] tensor groups of a stage on a node
    long long* present  # [P, words] nodes of a stage
    long long* num_nodes  # [P]
    long long* leaving  # [N] stages on the node whose rings leave it
    Tally* outer_latency  # [P] hops between nodes, as the following
    Tally* outer_bandwidth
    Tally* inner_latency  # nodes with several members
    Tally* inner_bandwidth
    Tally* own  # nodes by their own links' bandwidth
    Tally* on_node  # nodes by number of members
    Tally* flows  # nodes by `leaving`
    double* seconds  # [P]
    double* optimizer  # tree over nodes, of an optimizer on the hosts
    int tree
    unsigned long long stale  # stages
    int* stale_nodes
    int num_stale_nodes
    bint all_nodes_stale


cdef void make_rings(
    Rings* rings, Arena arena, Tables t, Links links, int model, list layers, int degree, int num_replicas, int sharding,
    int most_members, bint on_host) except *
cdef void change_members(Tables t, Links links, Rings* rings, Log* log, int stage, int node, int number) noexcept nogil
cdef double reduce_seconds(Tables t, Links links, Rings* rings, Log* log) noexcept nogil
cdef double host_optimizer(Tables t, Rings* rings, Log* log) noexcept nogil
cdef void nothing_stale(Rings* rings) noexcept nogil
