# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Level 5: which of a task's tensor groups plays which stage of which replica, annealed with delta cost.

Only nodes of one device type change places, so that layers, shares and memory per rank stay what they are; what changes
is which links carry the stages' sends and the gradient rings. A swap changes at most two replicas and the rings of two
stages; nothing else is worked out again.
"""

from libc.math cimport INFINITY, log, pow
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from hetrl_kernels.layouts cimport Layout
from hetrl_kernels.memory cimport State, train_state
from hetrl_kernels.options cimport Finder, Option
from hetrl_kernels.rings cimport StageRing, rings_of_nodes, update_seconds
from hetrl_kernels.tables cimport GENERATE, MAX_STAGES, SCORE, TRAIN, Tables, fmax
from hetrl_kernels.timing cimport Replica, TrainTime, generate_replica, score_replica, train_replica


cdef class Placement:
    """Slots of one option on nodes, and what a step of the task then costs.

    Parameters
    ----------
    finder
        The option's finder.
    option
        A costed option.
    """

    cdef Tables t
    cdef Option option
    cdef Layout layout
    cdef int num_slots, num_replicas, kind
    cdef int* node  # [slots]
    cdef int* replica_of  # [slots]
    cdef double* pipeline  # [R] of one update, or all seconds of scoring and generation
    cdef double* ahead  # [R] old log-probabilities
    cdef int most_micro_batches
    cdef State[MAX_STAGES] states
    cdef double update

    def __cinit__(self, Finder finder, Option option, object nodes=None):
        cdef int i, s, first = 0
        self.t = finder.t
        self.option = option
        self.layout = option.layout
        self.num_slots = self.layout.num_slots
        self.num_replicas = self.layout.num_replicas
        self.kind = self.t.task_kind[option.task]
        self.node = <int*>malloc(self.num_slots * sizeof(int))
        self.replica_of = <int*>malloc(self.num_slots * sizeof(int))
        self.pipeline = <double*>calloc(2 * self.num_replicas, sizeof(double))
        self.ahead = self.pipeline + self.num_replicas
        for s in range(self.num_slots):
            self.node[s] = self.layout.node[s] if nodes is None else nodes[s]
        for i in range(self.num_replicas):
            for s in range(self.layout.first[i], self.layout.first[i + 1]):
                self.replica_of[s] = i
        if self.kind == TRAIN:
            for s in range(self.layout.max_stages):
                self.states[s] = train_state(
                    self.t, self.t.task_model[option.task], self.layout.degree, first, self.layout.layers[s], self.num_replicas,
                    option.sharding,
                )
                first += self.layout.layers[s]
        for i in range(self.num_replicas):
            self.time_replica(i)
        self.time_rings()

    def __dealloc__(self):
        free(self.node)
        free(self.replica_of)
        free(self.pipeline)

    cdef void time_replica(self, int i) noexcept nogil:
        cdef Replica replica
        cdef TrainTime time
        replica.num_stages = self.layout.first[i + 1] - self.layout.first[i]
        replica.node = self.node + self.layout.first[i]
        replica.layers = self.layout.layers + self.layout.first[i]
        if self.kind == TRAIN:
            time = train_replica(
                self.t, self.option.task, self.layout.degree_index, self.layout.degree, self.option.shape, self.option.micro_batch, self.option.recompute,
                &replica, self.option.prompts[i], False,
            )
            self.pipeline[i] = time.pipeline
            self.ahead[i] = time.old_log_probs
            if time.num_micro_batches > self.most_micro_batches:
                self.most_micro_batches = time.num_micro_batches  # depends on shares only
        elif self.kind == SCORE:
            self.pipeline[i] = score_replica(
                self.t, self.option.task, self.layout.degree_index, self.layout.degree, self.option.shape, self.option.micro_batch, &replica,
                self.option.prompts[i],
            )
        else:
            self.pipeline[i] = generate_replica(
                self.t, self.option.task, self.layout.degree_index, self.layout.degree, self.option.micro_batch, &replica, self.option.prompts[i],
                self.option.kv[self.layout.class_of[i]],
            )

    cdef void time_rings(self) noexcept nogil:
        cdef StageRing[MAX_STAGES] rings
        self.update = 0.0
        if self.kind == TRAIN and self.num_replicas > 1:
            rings_of_nodes(self.t, self.layout.max_stages, self.num_slots, self.layout.degree, self.node, rings)
            self.update = update_seconds(
                self.t, rings, self.layout.max_stages, self.num_replicas, self.option.sharding, self.states, self.most_micro_batches
            )

    cdef double total(self) noexcept nogil:
        """Seconds of what placement decides: pipelines and rings, or the slowest replica."""
        cdef double slowest = 0.0, first = 0.0
        cdef int i
        for i in range(self.num_replicas):
            slowest = fmax(slowest, self.pipeline[i])
            first = fmax(first, self.pipeline[i] + self.ahead[i])
        if self.kind != TRAIN:
            return slowest
        return first + (self.t.num_updates - 1) * slowest + self.t.num_updates * self.update

    cdef bint swap(self, int a, int b) noexcept nogil:
        """Exchange the nodes of two slots and update what depends on them; False if that changes nothing."""
        cdef int node = self.node[a]
        if node == self.node[b] or self.t.node_type[node] != self.t.node_type[self.node[b]]:
            return False
        self.node[a] = self.node[b]
        self.node[b] = node
        self.time_replica(self.replica_of[a])
        if self.replica_of[b] != self.replica_of[a]:
            self.time_replica(self.replica_of[b])
        if a - self.layout.first[self.replica_of[a]] != b - self.layout.first[self.replica_of[b]]:
            self.time_rings()
        return True

    @property
    def seconds(self):
        """Seconds of what placement decides."""
        return self.total()

    def nodes(self):
        """Node of every slot, replica by replica."""
        return [self.node[s] for s in range(self.num_slots)]

    def swap_slots(self, int a, int b):
        """Exchange two slots; whether anything changed."""
        if not (0 <= a < self.num_slots and 0 <= b < self.num_slots):
            raise IndexError("no such slot")
        return self.swap(a, b)

    def anneal(self, unsigned long long seed, int num_moves, double start_temperature, double end_temperature):
        """Anneal; ends in the best placement seen.

        Returns
        -------
        (null, costed, accepted)
            Moves that changed nothing, that were costed by delta, that were kept.
        """
        cdef unsigned long long state = seed, z
        cdef int turn, a, b, i
        cdef long long null = 0, costed = 0, accepted = 0
        cdef double current = self.total(), best = current, proposed, threshold, temperature
        cdef int* best_node = <int*>malloc(self.num_slots * sizeof(int))
        memcpy(best_node, self.node, self.num_slots * sizeof(int))
        with nogil:
            for turn in range(num_moves):
                a = <int>(random_bits(&state) % <unsigned long long>self.num_slots)
                b = <int>(random_bits(&state) % <unsigned long long>self.num_slots)
                z = random_bits(&state)
                if not self.swap(a, b):
                    null += 1
                    continue
                costed += 1
                threshold = <double>((z >> 11) + 1) / 9007199254740993.0
                temperature = start_temperature * pow(end_temperature / start_temperature, <double>turn / (num_moves if num_moves > 1 else 1))
                proposed = self.total()
                if proposed <= current * (1.0 - temperature * log(threshold)):
                    accepted += 1
                    current = proposed
                    if current < best:
                        best = current
                        memcpy(best_node, self.node, self.num_slots * sizeof(int))
                else:
                    self.swap(a, b)
            memcpy(self.node, best_node, self.num_slots * sizeof(int))
            for i in range(self.num_replicas):
                self.time_replica(i)
            self.time_rings()
        free(best_node)
        return null, costed, accepted


cdef inline unsigned long long random_bits(unsigned long long* state) noexcept nogil:
    cdef unsigned long long z
    state[0] += <unsigned long long>0x9E3779B97F4A7C15
    z = state[0]
    z = (z ^ (z >> 30)) * <unsigned long long>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <unsigned long long>0x94D049BB133111EB
    return z ^ (z >> 31)
