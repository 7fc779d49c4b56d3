# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What pipelines of whole layers take at least: all of a task's, and the busiest replica's."""

from libc.math cimport INFINITY, ceil, floor, sqrt

from hetrl_kernels.training_bound_tables cimport (
    AMOUNT, LEAST_SHARE, MAX_PIPELINE, MAX_TYPES, MOST_SHARE, ONCE, PHI, PROMPT, WORK, BoundTables, Slots, largest,
    least,
)

cdef enum:
    NUM_FILL_ROUNDS = 3
    NUM_HALVINGS = 20  # of the slowest stage's seconds


cdef class PipelineBound(BoundTables):
    """Pipelines."""

    cdef double flowing(self, long q, long stages, long most) noexcept nogil:
        """Seconds of all micro-batches on the fastest R P groups, each pipeline losing its fill."""
        cdef double work = self.setting[q, WORK], amount = self.setting[q, AMOUNT]
        cdef double low = self.setting[q, LEAST_SHARE], high = self.setting[q, MOST_SHARE], phi = self.setting[q, PHI]
        cdef double[MAX_TYPES] take
        cdef double throughput = 0.0, slow = INFINITY, seconds, fill, y, x, handled, full, lost, slope
        cdef long left = most * stages, i, kind, turn, way
        for i in range(self.num_types):
            kind = self.fastest[q, i]
            take[i] = min(left, self.groups[kind])
            left -= <long>take[i]
            throughput += take[i] * self.speed[q, kind]
            if self.groups[kind] > 0:
                slow = least(slow, self.speed[q, kind])
        seconds = work * amount / throughput
        if stages == 1:
            return seconds
        for turn in range(NUM_FILL_ROUNDS):  # the more time there is, the fuller the micro-batches of slow replicas
            if most == 1:
                fill = amount / ceil(amount)
            else:
                y = seconds * stages * slow / work
                x = largest(high * stages, 0.0)
                handled = largest(0.5 * (y - 1.0 - x + sqrt((y - 1.0 - x) * (y - 1.0 - x) + 4.0 * y)), 0.0)
                fill = handled / (handled + 1.0)
            for way in range(2):
                full = high * (1.0 + phi * (stages - 1.0)) if way == 0 else high
                slope = 1.0 if way == 0 else 1.0 - phi
                lost = largest(fill * full, full - (1.0 - fill) * low / slope)
                seconds = largest(seconds, self.spread(q, take, slope * (amount - most * lost), fill * low))
        return seconds

    cdef double spread(self, long q, const double* take, double amount, double per_group) noexcept nogil:
        """Seconds of ``amount`` units of work on groups that each lose ``per_group`` units; any fastest part may work."""
        cdef double work = self.setting[q, WORK], number = 0.0, throughput = 0.0, result = INFINITY
        cdef long i
        for i in range(self.num_types):
            if take[i] == 0.0:
                continue
            number += take[i]
            throughput += take[i] * self.speed[q, self.fastest[q, i]]
            result = least(result, work * (amount + per_group * number) / throughput)
        return result

    cdef double busiest(
        self, long q, long share, long stages, const long* slots, long between, bint head_between, double slowest,
        double limit,
    ) noexcept nogil:
        """Seconds of a replica with at least ``share`` prompts, whose slowest stage takes at least ``slowest``.

        With m micro-batches, ``fill`` full, stage j of A_j seconds needs ``fill (kappa_j A_j + S)``, S being all stages'
        seconds, and kappa_j is smallest for the first stage; old log-probabilities fill the pipeline once. Stages lie
        on the quickest types of ``slots``, but for stages with up to ``between`` layers whose devices are not known.
        Above ``limit`` less care is taken.
        """
        cdef double prompt = self.setting[q, PROMPT], high = self.setting[q, MOST_SHARE], once = self.once(q)
        cdef double low = self.setting[q, LEAST_SHARE] + (1.0 - high) / self.mini_batches
        cdef double phi = self.setting[q, PHI], amount, number, fill, rate, k, value, head = INFINITY, best = INFINITY
        cdef double[MAX_TYPES] each
        cdef double[MAX_PIPELINE] kappa
        cdef long[MAX_TYPES] take
        cdef long left = stages, i, j, turn, position, kind, num_kinds = 0
        if self.by_layer[q, self.quickest[q, 0]] <= 0.0:  # layers of several kinds
            amount = share * prompt
            return low * self.setting[q, ONCE] * amount / (amount + 1.0)
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            take[i] = min(left, self.groups[kind] if between > 0 else slots[kind])
            left -= take[i]
            if take[i] > 0:
                num_kinds = i + 1
                head = least(head, self.head[q, kind])
        for turn in range(min(2 + <long>(stages / prompt), self.num_prompts - share + 1)):
            amount = (share + turn) * prompt
            number = ceil(amount)
            fill = amount / number
            if (amount - once - high * (1.0 + phi * (stages - 1.0))) * slowest >= best:
                break  # more prompts take longer
            for j in range(stages):
                kappa[j] = largest(1e-9, number - once - high * (1.0 + phi * (least(number, stages - j) - 1.0)))
            position, rate = 0, 0.0
            for i in range(num_kinds):  # layers per second of kappa_j A_j
                each[i] = 0.0
                for j in range(take[i]):
                    each[i] += 1.0 / kappa[position] / self.by_layer[q, self.quickest[q, i]]
                    position += 1
                rate += each[i]
            k = largest(kappa[0] * slowest, self.num_layers / rate)
            value = fill * (self.passed(q, num_kinds, each, k, low) + low * head)
            if value < best and value < limit:
                k = self.whole_layers(q, stages, kappa, slots, between, head_between, k)
                value = fill * (self.passed(q, num_kinds, each, k, low) + low * head)
            best = least(best, value)
        return best

    cdef double once(self, long q) noexcept nogil:
        """Most of a stage's seconds that one micro-batch of the old log-probabilities takes."""
        return (1.0 - self.setting[q, LEAST_SHARE]) / self.mini_batches

    cdef double whole_layers(
        self, long q, long stages, const double* kappa, const long* slots, long between, bint head_between, double low,
    ) noexcept nogil:
        """Least K, at least ``low``, with which stages whose ``kappa_j A_j`` is at most K hold all layers."""
        cdef double high = low, middle
        cdef long turn
        for turn in range(NUM_HALVINGS):
            if self.held_layers(q, stages, kappa, slots, between, head_between, high) >= self.num_layers:
                break
            low = high
            high *= 1.5
        else:
            return low
        if turn == 0:
            return low
        for turn in range(NUM_HALVINGS // 2):
            middle = (low + high) / 2
            if self.held_layers(q, stages, kappa, slots, between, head_between, middle) >= self.num_layers:
                high = middle
            else:
                low = middle
        return low

    cdef double held_layers(
        self, long q, long stages, const double* kappa, const long* slots, long between, bint head_between, double k,
    ) noexcept nogil:
        """Layers that stages with ``kappa_j A_j`` up to K hold, every type on the first positions it may have."""
        cdef double result = between, lost = 0.0 if head_between else INFINITY, most, here
        cdef double[MAX_TYPES] layers
        cdef long[MAX_TYPES] taken
        cdef long left = stages - (1 if between > 0 else 0), y, best
        for y in range(self.num_types):
            taken[y] = 0
            layers[y] = floor(k / kappa[0] / self.by_layer[q, y]) if slots[y] > 0 else 0.0
        while left > 0:
            best, most = -1, between
            for y in range(self.num_types):
                if layers[y] > most:
                    best, most = y, layers[y]
            if best < 0:
                result += <double>left * between
                break
            result += most
            left -= 1
            taken[best] += 1
            layers[best] = 0.0
            if taken[best] < min(slots[best], stages):
                layers[best] = floor(k / kappa[taken[best]] / self.by_layer[q, best])
        for y in range(self.num_types):
            if slots[y] > 0:  # the last stage has the head
                most = floor((k / kappa[stages - 1] - self.head[q, y]) / self.by_layer[q, y] * (1 + 1e-12))
                here = floor(k / kappa[min(taken[y], min(slots[y], stages) - 1)] / self.by_layer[q, y])
                if most >= 1.0:
                    lost = least(lost, largest(0.0, here - most))
        return result - lost

    cdef double passed(self, long q, long num_kinds, const double* each, double slowest, double low) noexcept nogil:
        """Least of K and ``low`` times the seconds of a pass where types take ``each`` layers per second of K.

        The larger K, at least ``slowest``, the more layers may lie on the quickest types; the sum is least at a K where
        these hold all layers.
        """
        cdef double rate = 0.0, k = slowest, best = INFINITY, left, here, through
        cdef long i, j
        for i in range(-1, num_kinds):
            if i >= 0:
                if each[i] == 0.0:
                    continue
                rate += each[i]
                k = self.num_layers / rate
                if k <= slowest:
                    break
            left, through = self.num_layers, 0.0
            for j in range(num_kinds):
                here = least(left, each[j] * k)
                left -= here
                through += here * self.by_layer[q, self.quickest[q, j]]
            best = least(best, k + low * through)
        return best

    cdef double dealt(self, long q, long stages, const Slots* slots) noexcept nogil:
        """Seconds of the slowest stage where whole layers are dealt to P stages so that it is as fast as can be.

        Without ``slots`` to the P quickest groups; else as they say, and infinite if that is not possible.
        """
        cdef double low = 0.0, high = 0.0, middle
        cdef long y, turn
        if self.by_layer[q, self.quickest[q, 0]] <= 0.0:
            return 0.0  # layers of several kinds
        for y in range(self.num_types):
            if self.groups[y] > 0:
                high = largest(high, self.by_layer[q, y] * self.num_layers + self.head[q, y])
        if slots != NULL and self.most_layers(q, stages, slots, high) < self.num_layers:
            return INFINITY
        for turn in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if (self.quickest_layers(q, stages, middle) if slots == NULL else self.most_layers(q, stages, slots, middle)) \
                    >= self.num_layers:
                high = middle
            else:
                low = middle
        return low

    cdef double quickest_layers(self, long q, long stages, double slowest) noexcept nogil:
        """Layers that the P quickest groups hold at most where none takes longer than ``slowest``."""
        cdef double result = 0.0, lost = INFINITY, here
        cdef long left = stages, i, kind, number
        for i in range(self.num_types):
            kind = self.quickest[q, i]
            number = min(left, self.groups[kind])
            left -= number
            here = 0.0
            if number > 0:
                here = floor(slowest / self.by_layer[q, kind])
                result += number * here
            if self.groups[kind] > 0:
                lost = least(lost, self.lost_to_head(q, kind, here, slowest))
        return result - lost

    cdef double lost_to_head(self, long q, long kind, double layers, double slowest) noexcept nogil:
        """Fewer layers that a stage on a type holds if it is the last one, which has the head."""
        cdef double most = floor((slowest - self.head[q, kind]) / self.by_layer[q, kind] * (1 + 1e-12))
        return INFINITY if most < 1.0 else largest(0.0, layers - most)

    cdef double most_layers(self, long q, long stages, const Slots* slots, double slowest) noexcept nogil:
        """Layers that P stages hold at most where no stage with its ring in one node takes longer than ``slowest``.

        Kinds of stages are taken by the number of layers. Stages that have no groups but of the types with the fastest
        links up to some type are limited by the number of these groups: sets inside each other, so this is best.
        """
        cdef double result = 0.0, most, lost = 0.0 if slots.head_between else INFINITY
        cdef double[MAX_TYPES] inside
        cdef long[MAX_TYPES] free_inside, free_until
        cdef bint[MAX_TYPES] between
        cdef long left = stages, i, j, best, number, crossing = 0
        cdef bint best_inside
        for i in range(slots.num_types):
            inside[i] = least(slots.cap[i], floor(slowest / self.by_layer[q, slots.kind[i]]))
            free_inside[i], free_until[i], between[i] = slots.inside[i], slots.until[i], slots.between[i] > 0
            if slots.inside[i] > 0 and inside[i] > 0.0:
                lost = least(lost, self.lost_to_head(q, slots.kind[i], inside[i], slowest))
        if slots.crosses:  # at least one stage's ring does
            best = -1
            for i in range(slots.num_types):
                if between[i] and free_until[i] > 0 and (best < 0 or slots.between[i] > slots.between[best]):
                    best = i
            if best < 0:
                return 0.0
            result = slots.between[best]
            left -= 1
            for j in range(best, slots.num_types):
                free_until[j] -= 1
        while left > 0:
            best, most, best_inside = -1, 0.0, False
            for i in range(slots.num_types):
                number = free_until[i]
                for j in range(i + 1, slots.num_types):
                    number = min(number, free_until[j])
                if number <= 0:
                    continue
                if free_inside[i] > 0 and inside[i] > most:
                    best, most, best_inside = i, inside[i], True
                if between[i] and slots.between[i] > most:
                    best, most, best_inside = i, slots.between[i], False
            if best < 0:
                return result - lost
            number = left
            for j in range(best, slots.num_types):
                number = min(number, free_until[j])
            if best_inside:
                number = min(number, free_inside[best])
                free_inside[best] -= number
            for j in range(best, slots.num_types):
                free_until[j] -= number
            result += number * most
            left -= number
        return result - lost
