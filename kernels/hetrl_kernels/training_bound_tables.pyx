# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A lowered training task, as the parts of its lower bound read it."""

SETTING = {
    "work": WORK,  # seconds of all updates, per micro-batch of one update, on the best type
    "amount": AMOUNT,  # micro-batches of one update, as if all were full
    "micro_batch": MICRO_BATCH,
    "prompt": PROMPT,  # micro-batches of one prompt in one update
    "least_share": LEAST_SHARE,  # of the updates in the work, the old log-probabilities being the rest
    "most_share": MOST_SHARE,
    "phi": PHI,  # forward's share of a pass forward and backward
    "kept_bytes": KEPT_BYTES,  # by one layer for one sequence
    "layer_parameters": LAYER_PARAMETERS,  # on one rank
    "once": ONCE,  # seconds of one micro-batch through all stages
    "first_parameters": FIRST_PARAMETERS,
    "last_parameters": LAST_PARAMETERS,
    "logits_bytes": LOGITS_BYTES,  # of one sequence
}
"""Columns of `TrainingTables.setting`."""


cdef class BoundTables:
    """Arrays as in `hetrl.search.bounds.training.TrainingTables`; ``count``, ``groups`` and ``host`` are a point's."""

    def __init__(self, tables):
        self.num_layers, self.num_prompts, self.num_nodes = tables.num_layers, tables.num_prompts, tables.num_nodes
        self.updates, self.mini_batches, self.parameters = tables.updates, tables.mini_batches, tables.parameters
        self.weights, self.gradients, self.optimizer = tables.states
        self.layer_gradients, self.layer_weights = tables.layer_states
        self.reduce_scale, self.step_scale = tables.scales
        self.gradient_exposed, self.gather_exposed = tables.exposed
        self.latency, self.bandwidth, self.linked = tables.latency, tables.bandwidth, tables.linked
        self.joint_states = tables.joint_states
        self.room, self.type_bandwidth, self.host_bandwidth = tables.room, tables.type_bandwidth, tables.host_bandwidth
        self.roomiest, self.widest = tables.roomiest, tables.widest
        self.pipelines, self.replicas, self.inside = tables.pipelines, tables.replicas, tables.inside
        self.most_groups, self.slots = tables.most_groups, tables.slots
        self.setting_degree, self.setting = tables.setting_degree, tables.setting
        self.speed, self.by_layer, self.head = tables.speed, tables.by_layer, tables.head
        self.fastest, self.quickest = tables.fastest, tables.quickest
        self.num_types, self.num_pipelines = self.room.shape[0], self.pipelines.shape[0]
        self.num_replicas, self.num_settings = self.replicas.shape[0], self.setting.shape[0]
        if self.num_types > MAX_TYPES or self.num_pipelines and max(tables.pipelines) > MAX_PIPELINE:
            raise ValueError(f"{self.num_types} device types, pipelines {list(tables.pipelines)}")
