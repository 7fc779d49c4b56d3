"""Devices of a group, and the parallel layouts of a task on them."""

from hetrl_kernels.tables cimport Tables
from hetrl_kernels.timing cimport Replica


cdef class Devices:
    """Devices of a group by node; nodes that are alike for the group form a cell."""

    cdef readonly int num_cells, num_devices
    cdef int* counts  # [N]
    cdef int* cell  # [N]
    cdef int* cell_node  # [num_cells] one node of each
    cdef readonly bytes key


cdef class Layout:
    """Replicas as stages of (node, layers); all stages have the same tensor degree."""

    cdef readonly int degree, degree_index, num_replicas, num_slots, max_stages, num_classes
    cdef int* first  # [R + 1] first slot of a replica
    cdef int* node  # [slots]
    cdef int* layers  # [slots]
    cdef int* class_of  # [R]
    cdef int* representative  # [num_classes]
    cdef int* class_size  # [num_classes]
    cdef readonly Devices devices

    cdef Replica replica(self, int index) noexcept nogil


cdef list layouts(Tables t, int task, Devices devices, bint pipelines, bint tensors)
cdef Layout given_layout(Tables t, int task, Devices devices, int degree, list replicas)
