"""The links of a fleet in the orders in which rings and transfers compare them."""

from hetrl_kernels.arena cimport Arena
from hetrl_kernels.tables cimport Tables


cdef struct Level:  # nodes that a node reaches equally well
    int rank
    int mask  # first word in the masks


cdef class Links(Arena):
    cdef readonly Tables t
    cdef readonly int num_kinds, num_nodes, words
    cdef int num_classes
    cdef int* node_class  # [N] nodes of one class have equal links to and from all others
    cdef int* class_kind  # [classes, classes] kind of link between different nodes
    cdef int* own_kind  # [N] of the link of a node to itself
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

    cdef void classify(self) except *
    cdef bint alike(self, int a, int b) noexcept nogil
    cdef Level* lay(self, list by_node, int* first) except NULL


cdef inline int link_of(Links links, int source, int target) noexcept nogil:
    """Kind of the link between two nodes, out of a table that fits into the cache."""
    if source == target:
        return links.own_kind[source]
    return links.class_kind[links.node_class[source] * links.num_classes + links.node_class[target]]
