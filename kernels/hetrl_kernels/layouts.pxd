"""Devices of a group, and the parallel layouts of a task on them."""

from hetrl_kernels.tables cimport MAX_STAGES, Tables
from hetrl_kernels.timing cimport Replica


cdef class Devices:
    """Devices of a group by node; nodes that are alike for the group form a cell."""

    cdef readonly int num_cells, num_devices
    cdef int* counts  # [N]
    cdef int* cell  # [N]
    cdef int* cell_node  # [num_cells] one node of each
    cdef readonly bytes key


cdef struct StageRing:  # the ring over the same stage of all replicas of a training task
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


cdef struct Stepper:  # ranks of a stage whose optimizer steps take equally long
    int stage
    int node  # one of theirs
    int num_ranks  # of the task on that node


cdef class Layout:
    """Replicas as stages of (node, layers); all stages have the same tensor degree."""

    cdef readonly int degree, degree_index, num_replicas, num_slots, max_stages, num_classes
    cdef int* first  # [R + 1] first slot of a replica; the following arrays are in the same block
    cdef int* node  # [slots]
    cdef int* layers  # [slots]
    cdef int* class_of  # [R]
    cdef int* representative  # [num_classes]
    cdef int* class_size  # [num_classes]
    cdef readonly Devices devices
    cdef StageRing* rings  # [max_stages] of a training task; NULL until they are worked out, as the steppers
    cdef Stepper* steppers
    cdef int num_steppers

    cdef Replica replica(self, int index) noexcept nogil


cdef enum:
    MAX_TYPES = 64

cdef double[4] SPLIT_BYTES  # bytes per parameter that a stage's memory must hold


cdef class Splitter:
    cdef Tables t
    cdef int task, degree_index, degree
    cdef double[MAX_TYPES] per_layer, head  # seconds of a layer, and of the last stage's head, by device type
    cdef int[MAX_TYPES] caps  # most layers of a stage
    cdef dict known  # sets of device types, one a stage -> layers of the stages, nothing if there is no split

    cdef bint split(self, int num_stages, const unsigned long long* kinds, int* layers) except? -1
    cdef bint caps_hold(self, Layout layout) noexcept nogil


cdef Splitter known_splitter(Tables t, dict known, int task, int degree_index, int number)
cdef Splitter new_splitter(Tables t, int task, int degree_index, double state_bytes)
cdef bint same_layers(Layout a, Layout b) noexcept
cdef Layout build(
    Tables t, Splitter splitter, Devices devices, int num_replicas, const int* first, const int* nodes, const int* layers=*,
    const int* shared=*)
cdef list layouts(Tables t, dict splitters, int task, Devices devices, bint pipelines, bint tensors)
cdef Layout given_layout(Tables t, int task, Devices devices, int degree, list replicas)
