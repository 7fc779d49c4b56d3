"""The links of a fleet in the orders in which rings and transfers compare them."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.tables cimport Tables


cdef struct Level:  # nodes that a node reaches equally well
    int rank
    int mask  # first word in the masks


cdef struct Place:  # of a node
    int kind  # nodes of one kind are alike in everything but their links to others
    int own_link  # kind of its link to itself
    int group  # nodes of one group have equal links to and from all others


cdef class Links(Arena):
    cdef readonly Tables t
    cdef readonly int num_kinds, num_nodes, words
    cdef Place* places  # [N]
    cdef int num_groups
    cdef int* between  # [groups, groups] kind of link between different nodes
    cdef int* latency_rank  # [kinds] position in the order of latencies
    cdef int* bandwidth_rank  # [kinds] position in the order of bandwidths
    cdef double* latency  # [kinds] by latency rank
    cdef double* bandwidth  # [kinds] by bandwidth rank
    cdef int* own_rank  # [N] position of the node's own link by bandwidth, equal ones in node order
    cdef int* own_node  # [N] its inverse
    cdef int* best_rank  # [kinds] fastest first; of equally fast ones those with the smaller latency
    cdef double* best_latency  # [kinds] by best rank
    cdef double* best_bandwidth
    cdef int* first_to  # [N + 1] levels of the nodes that a node sends to, best first
    cdef Level* to
    cdef int* first_from  # [N + 1] levels of the nodes that a node receives from, best first
    cdef Level* source
    cdef int* first_fast  # [N + 1] the same by bandwidth alone
    cdef Level* fast
    cdef long long* masks
    cdef int num_masks

    cdef void read_places(self) except *
    cdef bint alike(self, int a, int b) noexcept nogil
    cdef Level* lay(self, list by_node, int* first) except NULL


cdef inline int link_of(const Place* places, const int* between, int num_groups, int source, int target) noexcept nogil:
    """Kind of the link between two nodes, out of tables that fit into the cache."""
    if source == target:
        return places[source].own_link
    return between[places[source].group * num_groups + places[target].group]
