"""A lowered training task and what the parts of its lower bound have in common."""

cdef enum:
    MAX_TYPES = 64
    MAX_PIPELINE = 16
    NONE = 0
    ZERO1 = 1
    FSDP = 2
    ALL_REDUCE = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    INDEX = 0  # columns of `setting_degree`
    DEGREE = 1


cdef enum:  # columns of `setting`, see `SETTING`
    WORK
    AMOUNT
    MICRO_BATCH
    PROMPT
    LEAST_SHARE
    MOST_SHARE
    PHI
    KEPT_BYTES
    LAYER_PARAMETERS
    ONCE
    FIRST_PARAMETERS
    LAST_PARAMETERS
    LOGITS_BYTES



cdef inline double least(double a, double b) noexcept nogil:
    return a if a < b else b


cdef inline double largest(double a, double b) noexcept nogil:
    return a if a > b else b


cdef struct Slots:
    # Kinds of stages by the types of their groups, the type with the fastest links first.
    long num_types
    long[MAX_TYPES] kind
    long[MAX_TYPES] inside  # stages that may have their ring in one node of the type
    long[MAX_TYPES] until  # stages that may have groups of the types so far only
    double[MAX_TYPES] cap  # layers that fit into memory
    double[MAX_TYPES] between  # layers that a stage with a ring between nodes may have
    bint crosses  # whether some stage's ring lies between nodes
    bint head_between  # whether the last stage's does


cdef class BoundTables:
    cdef public long num_points  # points worked out so far
    cdef long num_types, num_layers, num_prompts, num_nodes, num_pipelines, num_replicas, num_settings
    cdef double updates, mini_batches, weights, gradients, optimizer, parameters, layer_gradients, layer_weights
    cdef double reduce_scale, step_scale, gradient_exposed, gather_exposed, joint_states
    cdef const double[::1] room, type_bandwidth, latency, bandwidth
    cdef const double[:, ::1] host_bandwidth
    cdef const long[::1] roomiest, widest, linked, pipelines
    cdef const long[:, ::1] replicas
    cdef const double[:, :, :, ::1] inside
    cdef const long[:, ::1] most_groups
    cdef const long[:, :, ::1] slots
    cdef const long[:, ::1] setting_degree
    cdef const double[:, ::1] setting
    cdef const double[:, ::1] speed, by_layer, head
    cdef const long[:, ::1] fastest, quickest
    cdef long[MAX_TYPES] count, groups
    cdef double[MAX_TYPES] host
