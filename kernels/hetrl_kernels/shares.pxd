"""How a task's prompts are shared out to its replicas."""

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.replica_times cimport ReplicaTimes
from hetrl_kernels.tables cimport Tables


cdef class Shares:
    cdef Tables t
    cdef dict times
    cdef double cutoff  # seconds from which on the threshold fill is not worth working out

    cdef ReplicaTimes times_of(self, int task, Layout layout, int c, int shape, int micro_batch, bint recompute, double kv)
    cdef double share(
        self, int task, Layout layout, int shape, int micro_batch, bint recompute, const double* kv, bint exact, int* base,
        int* extra) except? -1.0
    cdef double even_shares(self, Layout layout, list times, int* base, int* extra)
    cdef double threshold_shares(self, Layout layout, list times, double slowest, int* base, int* extra)


cdef long long room_for(Layout layout, list times, double threshold)
