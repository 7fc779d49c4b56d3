# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Lower bound of a training task's seconds on given numbers of devices by type (`hetrl.search.bounds.training`).

All strategy classes are walked: micro-batch, tensor degree and recomputation (a *setting*, whose work and speeds are
lowered), then stages P, replicas R, sharding and place of the optimizer states. The least is the bound, and what the
work alone shows to be slower than the least so far is left out.
"""

from libc.math cimport INFINITY, ceil

from hetrl_kernels.training_bound_tables cimport AMOUNT, DEGREE, INDEX, MICRO_BATCH, NONE, PROMPT, WORK, largest, least
from hetrl_kernels.training_bound_updates cimport UpdateBound


cdef class TrainingBound(UpdateBound):
    """The lowered task's bound; arrays as in `hetrl.search.bounds.training.TrainingTables`."""

    def seconds(self, const long[::1] counts):
        """Seconds that no layout on ``counts`` devices by type undercuts; infinite where nothing fits."""
        cdef long y, q
        cdef double best = INFINITY
        if counts.shape[0] != self.num_types:
            raise ValueError(f"{counts.shape[0]} counts for {self.num_types} types")
        self.num_points += 1
        for y in range(self.num_types):
            self.count[y] = counts[y]
            self.host[y] = self.host_bandwidth[y, min(counts[y], self.host_bandwidth.shape[1] - 1)]
        for q in range(self.num_settings):
            best = self.of_setting(q, best)
        return best

    cdef double of_setting(self, long q, double best) noexcept nogil:
        """The least of ``best`` and all P, R, shardings and places of the states of one setting."""
        cdef long y, i, p, r, stages, fewest, most, total = 0, num_types = 0, alone = -1, degree_index
        cdef long needed = 0, taken
        cdef double work = self.setting[q, WORK], amount = self.setting[q, AMOUNT], micro_batch = self.setting[q, MICRO_BATCH]
        cdef double throughput = 0.0, wanted
        degree_index = self.setting_degree[q, INDEX]
        for y in range(self.num_types):
            self.groups[y] = min(self.count[y] // self.setting_degree[q, DEGREE], self.most_groups[degree_index, y])
            if self.speed[q, y] <= 0.0:
                self.groups[y] = 0
            total += self.groups[y]
            if self.groups[y] > 0:
                num_types += 1
                alone = y
        if num_types > 1:
            alone = -1
        # fewer groups than these take too long, whatever else they do
        wanted = work * amount / best
        for i in range(self.num_types):
            y = self.fastest[q, i]
            if throughput >= wanted or self.groups[y] == 0:
                continue
            taken = min(self.groups[y], <long>ceil((wanted - throughput) / self.speed[q, y] * (1 - 1e-12)))
            throughput += taken * self.speed[q, y]
            needed += taken
        if throughput < wanted * (1 - 1e-9):
            return best
        for p in range(self.num_pipelines):
            stages = self.pipelines[p]
            if stages > self.num_layers or stages > total:
                break
            for r in range(self.num_replicas - 1, -1, -1):  # those with all groups first, they tend to be the best
                fewest = self.replicas[r, 0]
                most = min(self.replicas[r, 1], total // stages)
                if fewest * stages > total or (fewest > amount and micro_batch != 1.0):
                    continue
                if most * stages < needed:
                    break
                best = self.of_class(q, r, stages, fewest, most, alone, best)
        return best

    cdef double of_class(
        self, long q, long r, long stages, long fewest, long most, long alone, double best) noexcept nogil:
        """The least of ``best`` and one P and R."""
        cdef double micro_batch = self.setting[q, MICRO_BATCH], prompt = self.setting[q, PROMPT]
        cdef double biggest, size, in_flight, step, z, slowest, pipelined, seconds, rest
        cdef long share = (self.num_prompts + most - 1) // most, sharding, on_host
        pipelined = self.flowing(q, stages, most)
        if pipelined >= best:
            return best
        slowest = self.dealt(q, stages, NULL)
        pipelined = largest(pipelined, self.busiest(q, share, stages, self.groups, 0, False, slowest, best))
        if pipelined >= best:
            return best
        biggest = share * prompt
        size = least(micro_batch, largest(1.0, ceil(biggest * micro_batch)))
        in_flight = largest(1.0, ceil(biggest))
        for sharding in range(3):
            if sharding != NONE and most == 1:
                break  # the same as unsharded
            for on_host in range(2):
                step = self.updates * self.step(q, sharding, on_host, stages, fewest, most)
                if pipelined + step >= best:
                    continue
                if not self.fits(q, sharding, on_host, stages, fewest, most, size, in_flight):
                    continue
                seconds = pipelined
                if alone >= 0:
                    z = self.longest_stage(q, sharding, on_host, stages, most, alone, size, in_flight)
                    seconds = largest(seconds, self.busiest(q, share, stages, self.groups, 0, False, z, best - step))
                rest = self.placed(q, r, sharding, on_host, stages, fewest, most, share, seconds, best - step)
                seconds = rest + step
                if on_host and most == 1:
                    seconds = largest(seconds, self.joint(q, stages))
                best = least(best, seconds)
        return best
