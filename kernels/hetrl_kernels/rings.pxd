"""What the replicas of a training task share per update: gradient rings and the optimizer step."""

from hetrl_kernels.layouts cimport Layout, StageRing
from hetrl_kernels.memory cimport State
from hetrl_kernels.tables cimport Tables


cdef void stage_rings(Tables t, Layout layout)
cdef double update_seconds(
    Tables t, const StageRing* rings, int num_stages, int num_replicas, int sharding, const State* states,
    int num_micro_batches) noexcept nogil
cdef double optimizer_seconds(Tables t, Layout layout, const State* states, bint on_host)
