"""Options of training tasks."""

from hetrl_kernels.layouts cimport Devices, Layout
from hetrl_kernels.memory cimport StageActivations, State
from hetrl_kernels.options cimport Option
from hetrl_kernels.pipeline_bounds cimport PipelineBounds
from hetrl_kernels.tables cimport MAX_STAGES
from hetrl_kernels.task_options cimport TaskOptions
from hetrl_kernels.timing cimport TrainTime


cdef struct Candidate:
    double bound
    double active  # largest fraction of a device
    double idle
    double host
    int layout
    int micro_batch  # index
    int recompute
    int sharding
    int residency


cdef struct StageMemory:  # of a stage, whatever the micro-batch
    double limit  # bytes of its smallest device
    double process
    double spread  # of the activations, by fragmentation
    double gathered
    StageActivations activations


cdef struct Variants:  # of a layout with one sharding of the states
    State[MAX_STAGES] states
    double[MAX_STAGES] fixed  # bytes of weights and gradients
    double update  # seconds of the gradient rings
    int updated  # micro-batches that these are of; negative until they are worked out
    bint known  # whether the following are
    double[2] optimizer  # seconds of a step on the devices and on the host; negative until they are worked out
    double[5] idle  # largest fraction of a device, by residency
    double[5] moved  # seconds
    double[5] host  # bytes of a node


cdef int compare_candidates(const void* a, const void* b) noexcept nogil


cdef class TrainOptions(TaskOptions):
    cdef PipelineBounds pipelines

    cdef tuple train_options(self, int task, Devices devices)
    cdef double train_candidates(
        self, int task, Layout layout, int number_of_layout, Candidate** candidates, int* number, int* room, double fastest) except? -1.0
    cdef int below(self, Candidate* candidates, int number, double limit)
    cdef int shardings(self, int replicas, int* shardings) noexcept
    cdef bint stage_memory(self, int task, Layout layout, StageMemory* memory, Variants* variants) noexcept
    cdef void residencies(self, Layout layout, const StageMemory* memory, int sharding, Variants* variants)
    cdef Option train_variant(self, int task, Layout layout, const Candidate* candidate)
    cdef Option train_option(self, int task, Layout layout, const Candidate* candidate)
    cdef TrainTime train_time(self, Option option, int c, int prompts) noexcept
    cdef void train_cost(self, Option option, double moved)
    cdef double train_memory(self, Option option)
