"""What the replicas of a training task share per update: gradient rings and the optimizer step."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.memory cimport State
from hetrl_kernels.tables cimport Tables


cdef struct StageRing:  # the ring over the same stage of all replicas
    double latency
    double bandwidth
    bint two_level  # several nodes with equally many members each, at least two
    int per_node
    int num_nodes
    int inner_node  # the node with the slowest link inside
    double inner_bandwidth
    double outer_latency
    double outer_bandwidth
    int kind  # device type of its first member
    int most_ranks  # of the stage on any node
    double slowest_host_link


cdef void stage_rings(Tables t, Layout layout, StageRing* rings)
cdef void rings_of_nodes(Tables t, int stages, int num_slots, int degree, const int* slots, StageRing* rings) noexcept nogil
cdef double update_seconds(
    Tables t, const StageRing* rings, int num_stages, int num_replicas, int sharding, const State* states, int num_micro_batches) noexcept nogil
cdef double optimizer_seconds(Tables t, Layout layout, const State* states, bint on_host)
