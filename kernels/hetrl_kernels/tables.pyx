# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The lowered job as C sees it, and the amounts and times that follow from it directly: stages and pipelines."""

from libc.math cimport fabs, sqrt
from libc.stdlib cimport free, malloc

cdef double SAME_SHIFT = 2.0 ** -49


cdef class Tables:
    """Arrays of a job.

    Parameters
    ----------
    arrays
        Any object whose attributes are the arrays that the package's documentation lists, C-contiguous, int32 and
        float64.
    scalars
        Name -> number.
    """

    def __init__(self, arrays, scalars):
        cdef int index
        self.keep = arrays
        self.node_type = arrays.node_type
        self.node_devices = arrays.node_devices
        self.node_kind = arrays.node_kind
        self.node_limit = arrays.node_limit
        self.node_host_ram = arrays.node_host_ram
        self.node_host_link = arrays.node_host_link
        self.node_host_memory = arrays.node_host_memory
        self.node_nic = arrays.node_nic
        self.node_usd = arrays.node_usd
        self.link_latency = arrays.link_latency
        self.link_bandwidth = arrays.link_bandwidth
        self.link_kind = arrays.link_kind
        self.node_collective = arrays.node_collective
        self.type_flops = arrays.type_flops
        self.type_memory = arrays.type_memory
        self.type_bandwidth = arrays.type_bandwidth
        self.type_vendor = arrays.type_vendor
        self.type_is_cpu = arrays.type_is_cpu
        self.type_supported = arrays.type_supported
        self.type_allowance = arrays.type_allowance
        self.calibration = arrays.calibration
        self.model_layers = arrays.model_layers
        self.model_kinds = arrays.model_kinds
        self.model_tied = arrays.model_tied
        self.model_is_lm = arrays.model_is_lm
        self.model_outside = arrays.model_outside
        self.model_parameters = arrays.model_parameters
        self.model_lora = arrays.model_lora
        self.model_hidden_bytes = arrays.model_hidden_bytes
        self.parameters_before = arrays.parameters_before
        self.kinds_before = arrays.kinds_before
        self.kind_parameters = arrays.kind_parameters
        self.kind_window = arrays.kind_window
        self.kind_activation = arrays.kind_activation
        self.kind_kv = arrays.kind_kv
        self.model_widest_activation = arrays.model_widest_activation
        self.model_logits = arrays.model_logits
        self.tensor_allowed = arrays.tensor_allowed
        self.layer_seconds = arrays.layer_seconds
        self.head_seconds = arrays.head_seconds
        self.decode_projections = arrays.decode_projections
        self.decode_attention = arrays.decode_attention
        self.decode_head = arrays.decode_head
        self.concurrency_grid = arrays.concurrency_grid
        self.decode_contexts = arrays.decode_contexts
        self.task_kind = arrays.task_kind
        self.task_model = arrays.task_model
        self.task_role = arrays.task_role
        self.task_sequences = arrays.task_sequences
        self.task_trained = arrays.task_trained
        self.task_role_is_actor = arrays.task_role_is_actor
        self.task_in_flight = arrays.task_in_flight
        self.task_needs = arrays.task_needs
        self.transfer_bytes = arrays.transfer_bytes
        self.transfer_weights = arrays.transfer_weights
        self.tail_times = arrays.tail_times
        self.tail_alive = arrays.tail_alive
        self.num_nodes = self.node_type.shape[0]
        self.num_types = self.type_flops.shape[0]
        self.num_models = self.model_layers.shape[0]
        self.num_tasks = self.task_kind.shape[0]
        self.num_degrees = self.tensor_allowed.shape[1]
        self.num_shapes = self.head_seconds.shape[3]
        self.num_grid = self.concurrency_grid.shape[0]
        self.first_prefill_shape = self.num_shapes - scalars["prefill_chunk"]
        if self.tail_times.shape[0] != NUM_TAIL or self.num_tasks > MAX_TASKS:
            raise ValueError(f"the kernels are built for {NUM_TAIL} tail segments and at most {MAX_TASKS} tasks")
        self.num_prompts = scalars["num_prompts"]
        self.num_mini_batches = scalars["num_mini_batches"]
        self.num_updates = scalars["num_epochs"] * scalars["num_mini_batches"]
        self.prefill_chunk = scalars["prefill_chunk"]
        self.bytes_per_element = scalars["bytes_per_element"]
        self.online = scalars["online"]
        self.prompt_tokens = scalars["prompt_tokens"]
        self.mean_response = scalars["mean_response"]
        self.max_response = scalars["max_response"]
        self.max_sequence = scalars["max_sequence"]
        self.prefill_activation_tokens = scalars["prefill_activation_tokens"]
        self.staleness = scalars["staleness"]
        self.weight_bytes = scalars["weight_bytes"]
        self.gradient_bytes = scalars["gradient_bytes"]
        self.optimizer_bytes = scalars["optimizer_bytes"]
        self.gradient_overlap = scalars["gradient_overlap"]
        self.gather_overlap = scalars["gather_overlap"]
        self.train_logits_factor = scalars["train_logits_factor"]
        self.lora = scalars["lora"] != 0
        self.most_running = <int>self.concurrency_grid[self.num_grid - 1]
        self.any_alive = <double*>malloc((self.most_running + 1) * NUM_TAIL * sizeof(double))
        for index in range((self.most_running + 1) * NUM_TAIL):
            self.any_alive[index] = -1.0

    def __dealloc__(self):
        free(self.any_alive)

    cdef double inside(self, int node, int operation, int n, double v) noexcept nogil:
        """A collective of ``n`` ranks inside a node."""
        return (
            self.node_collective[node, operation, n, 0]
            + self.node_collective[node, operation, n, 1] * sqrt(v)
            + self.node_collective[node, operation, n, 2] * v
        )

    cdef double stage_parameters(self, int model, int first, int layers) noexcept nogil:
        cdef int last = first + layers
        cdef double total = self.parameters_before[model, last] - self.parameters_before[model, first]
        if first == 0:
            total += self.model_outside[model, 0]
        if last == self.model_layers[model]:
            total += self.model_outside[model, 1]
            if self.model_tied[model] and first > 0:
                total += self.model_outside[model, 0]
        return total

    cdef double stage_seconds(self, int model, int kind, int degree, int shape, int first, int layers) noexcept nogil:
        """Forward seconds of a stage on device type ``kind``, head included on the last stage."""
        cdef double total = 0.0
        cdef int k, count
        for k in range(self.model_kinds[model]):
            count = self.kinds_before[model, k, first + layers] - self.kinds_before[model, k, first]
            if count:
                total += count * self.layer_seconds[model, kind, degree, shape, k]
        if first + layers == self.model_layers[model]:
            total += self.head_seconds[model, kind, degree, shape]
        return total


cdef inline bint shifted(int number, const double* now, const double* before, double shift, double tolerance) noexcept nogil:
    """Whether all values have moved by the same amount."""
    cdef int j
    for j in range(number - 1, -1, -1):
        if fabs(now[j] - before[j] - shift) > tolerance:
            return False
    return True


cdef double one_f_one_b(int num_stages, const double* forward, const double* backward, const double* send, int m) noexcept nogil:
    """1F1B recurrence in rounds: in round i stage j runs the backward of micro-batch i - (P - j), then the forward of i.

    Going up the stages, a stage reads the next stage's backward of the round before, and the previous stage's forward
    of this round, so one value of each per stage is kept. In rounds P to m - 1 every stage does both. A round of maxima and
    sums does not move two states farther apart, so once a few rounds have shifted all values by the same amount, to the last
    bits, as many rounds more shift them by as much again, and are not worked out one by one. They are a single round where
    one stage decides, and up to P where the way there and back does, for which only so many micro-batches are under way.
    """
    cdef double free_at[MAX_STAGES]
    cdef double backward_done[MAX_STAGES + 1]
    cdef double free_before[MAX_STAGES]
    cdef double backward_before[MAX_STAGES]
    cdef double sent[MAX_STAGES]  # 0 after the last stage
    cdef double now, arrival, shift, tolerance, end = 0.0
    cdef int i = 0, j, p = num_stages, before = -1, turns  # before: the round whose values are kept
    if p == 1:
        return m * (forward[0] + backward[0])
    for j in range(p):
        free_at[j] = backward_done[j] = 0.0
        sent[j] = send[j] if j < p - 1 else 0.0
    backward_done[p] = 0.0
    while i < m:
        arrival = 0.0
        for j in range(p - i):  # stages without a backward as yet
            now = fmax(free_at[j], arrival) + forward[j]
            free_at[j] = now
            arrival = now + sent[j]
        for j in range(p - i if i < p else 0, p):
            now = fmax(free_at[j], backward_done[j + 1] + sent[j]) + backward[j]
            backward_done[j] = now
            now = fmax(now, arrival) + forward[j]
            free_at[j] = now
            arrival = now + sent[j]
        if i >= p:
            turns = (m - 1 - i) // (i - before) if before >= 0 else 0
            if turns > 0:
                shift, tolerance = free_at[0] - free_before[0], SAME_SHIFT * free_at[0]
                if shifted(p, free_at, free_before, shift, tolerance) and shifted(p, backward_done, backward_before, shift, tolerance):
                    for j in range(p):
                        free_at[j] += turns * shift
                        backward_done[j] += turns * shift
                    i += turns * (i - before)
                    before = m  # what is left is less than once more
            if i - before >= p or before < 0:
                for j in range(p):
                    free_before[j], backward_before[j] = free_at[j], backward_done[j]
                before = i
        i += 1
    for i in range(m, m + p):  # backwards of the stages that have one left
        for j in range(p - i if i < p else 0, m + p - i if i > m else p):
            now = fmax(free_at[j], backward_done[j + 1] + sent[j]) + backward[j]
            backward_done[j] = now
            free_at[j] = now
    for j in range(p):
        end = fmax(end, free_at[j])
    return end


cdef double one_f_one_b_bound(int num_stages, const double* forward, const double* backward, const double* send, int m) noexcept nogil:
    """Lower bound of `one_f_one_b` in O(P)."""
    cdef double best = 0.0, before = 0.0, later = 0.0, stage, hidden
    cdef int j, warm_up
    for j in range(1, num_stages):
        later += forward[j] + backward[j] + 2 * send[j - 1]
    for j in range(num_stages):
        warm_up = m if m < num_stages - j else num_stages - j
        hidden = later - (warm_up - 1) * forward[j]
        stage = before + m * (forward[j] + backward[j]) + (hidden if hidden > 0 else 0.0)
        if stage > best:
            best = stage
        if j < num_stages - 1:
            before += forward[j] + backward[j] + 2 * send[j]
            later -= forward[j + 1] + backward[j + 1] + 2 * send[j]
    return best


cdef double forward_only(int num_stages, const double* forward, const double* send, int m) noexcept nogil:
    cdef double total = 0.0, sends = 0.0, slowest = 0.0
    cdef int j
    for j in range(num_stages):
        total += forward[j]
        if j < num_stages - 1:
            sends += send[j]
        if forward[j] > slowest:
            slowest = forward[j]
    return total + sends + (m - 1) * slowest
