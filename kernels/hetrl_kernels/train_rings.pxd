"""Gradient rings of one training task, kept up to date while tensor groups change nodes."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.lanes cimport Maxima
from hetrl_kernels.links cimport Links
from hetrl_kernels.memory cimport State
from hetrl_kernels.tables cimport Tables
from hetrl_kernels.undo cimport Log, Tally


cdef struct Hops:  # how often each kind of link occurs, and which do, by latency and by bandwidth
    long long* count
    long long* by_latency
    long long* by_bandwidth


cdef struct Look:  # all of a ring that its seconds depend on
    unsigned long long links  # ranks of the slowest, between nodes and inside those with several members; see `look_of`
    unsigned long long nodes
    unsigned long long rest


cdef struct Known:  # seconds of a ring that has been seen before
    Look look
    double seconds


cdef struct Heavy:  # stages whose ranks have equally many bytes
    double bytes
    unsigned long long stages


cdef struct Rings:
    int task
    int num_stages
    int num_lanes  # words of eight counts, one for each stage; none where nothing asks for members
    int num_replicas
    int all  # members of a stage on a node if none is elsewhere; more than any node has if so many cannot be on one
    int degree
    int sharding
    int num_micro_batches  # of the replica with the most
    bint on_host  # the optimizer runs on the hosts
    bint few  # members of a ring: no counts are kept
    bint two_levels  # gradients may be reduced inside nodes first
    State* states  # [P]
    long long* members  # [N, lanes] tensor groups of every stage on a node
    long long* present  # [P, words] nodes of a stage
    long long* leaving  # [N] rings that leave a node
    long long* with_leaving  # [P + 1, words] nodes by rings that leave them; unless `few`
    long long* flows  # [lanes] most rings that leave a node of the stage, as of `seconds`
    Hops* outer  # [P] hops between nodes
    Hops* inner  # [P] nodes with several members
    int hop_words
    long long* own  # [P, words] nodes of a stage in the order of their own links; this and the next for `two_levels` alone
    Tally* on_node  # [P] nodes by number of members
    Maxima* of_hop  # [kinds] what a link between nodes adds to a look
    Maxima* of_node  # [N, 2] what a node adds with one member, and with several
    Known* known
    double* seconds  # [P]
    double* worst  # [1] largest of them
    Heavy* by_state  # [P] all bytes that an optimizer on the host works on, the most first
    Heavy* by_transfer  # [P] those that come and go
    double* optimizer  # tree over nodes, of an optimizer on the hosts
    int tree
    unsigned long long stale  # stages
    int most_leaving  # of the nodes that have changed since


cdef void make_rings(
    Rings* rings, Arena arena, Tables t, Links links, int task, list layers, int degree, int num_replicas, int sharding,
    int most_members, bint on_host) except *
cdef void change_members(Tables t, Links links, Rings* rings, Log* log, int node, const long long* added, int sign) noexcept nogil
cdef void move_members(Tables t, Links links, Rings* rings, Log* log, int source, int target, const long long* moved) noexcept nogil
cdef double reduce_seconds(Tables t, Links links, Rings* rings, Log* log) noexcept nogil
cdef void nothing_stale(Rings* rings) noexcept nogil
