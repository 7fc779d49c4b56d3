"""Gradient rings of one training task, kept up to date while tensor groups change nodes."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.links cimport Links
from hetrl_kernels.memory cimport State
from hetrl_kernels.tables cimport Tables
from hetrl_kernels.undo cimport Log, Tally


cdef struct Hops:  # how often each kind of link occurs, and which do, by latency and by bandwidth
    long long* count
    long long* by_latency
    long long* by_bandwidth


cdef struct Look:  # all of a ring that its seconds depend on; links by rank
    int latency
    int bandwidth
    int inner_latency
    int inner_bandwidth  # -1 if no node has several members
    int flows  # that share a card; 0 for a ring inside one node
    int own  # the slowest link inside a node
    int most  # members of a node, then the fewest
    int least
    int num_nodes
    int kind  # type of the first node's devices


cdef struct Rings:
    int task
    int num_stages
    int num_replicas
    int degree
    int sharding
    int num_micro_batches  # of the replica with the most
    bint on_host  # the optimizer runs on the hosts
    bint few  # members of a ring: no counts are kept
    State* states  # [P]
    long long* members  # [N, P] tensor groups of a stage on a node
    long long* stages  # [N] bit set of the stages on a node
    long long* present  # [P, words] nodes of a stage
    long long* own  # [P, words] the same in the order of the nodes' own links
    long long* num_nodes  # [P]
    Hops* outer  # [P] hops between nodes
    Hops* inner  # [P] nodes with several members
    int hop_words
    Tally* on_node  # [P] nodes by number of members
    Tally* flows  # [P] nodes by how many rings leave them
    long long* leaving  # [N] stages on the node whose rings leave it
    long long* counted  # [N] the same as far as `flows` knows
    Look* looks  # [P] as of `seconds`
    double* seconds  # [P]
    double* worst  # [1] largest of them
    double* optimizer  # tree over nodes, of an optimizer on the hosts
    int tree
    unsigned long long stale  # stages
    int* touched  # [N] nodes whose `leaving` or optimizer may have changed
    int num_touched
    char* noted  # [N] whether a node is among them


cdef void make_rings(
    Rings* rings, Arena arena, Tables t, Links links, int task, list layers, int degree, int num_replicas, int sharding,
    int most_members, bint on_host) except *
cdef void change_members(Tables t, Links links, Rings* rings, Log* log, int stage, int node, int number) noexcept nogil
cdef void refresh_nodes(Tables t, Rings* rings, Log* log) noexcept nogil
cdef double reduce_seconds(Tables t, Links links, Rings* rings, Log* log) noexcept nogil
cdef void nothing_stale(Rings* rings) noexcept nogil
