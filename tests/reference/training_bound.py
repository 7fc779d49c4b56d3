"""The training bound in plain Python, walking every strategy class to the end: what the kernel is tested against.

Nothing is left out because something better was found before; sums and minima are written as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, inf, isinf, sqrt

from hetrl.search.bounds.training import SETTING, TrainingTables

HALVINGS = 20
FILL_ROUNDS = 3
UNEVEN = 24
SHARDINGS = ("none", "zero1", "fsdp")


class TrainingReference:
    """Seconds that no layout undercuts, as `hetrl_kernels.training_bound.TrainingBound`."""

    def __init__(self, tables: TrainingTables) -> None:
        self.t = tables

    def seconds(self, counts: Sequence[int]) -> float:
        """Return the least over all classes."""
        best = inf
        for q in range(len(self.t.setting)):
            groups = self.groups_of(q, counts)
            for stages in self.t.pipelines.tolist():
                for r, (fewest, most) in enumerate(self.t.replicas.tolist()):
                    if stages <= self.t.num_layers and fewest * stages <= sum(groups):
                        one = ClassReference(
                            self.t, q, r, counts, groups, stages, fewest, min(most, sum(groups) // stages)
                        )
                        best = min(best, one.seconds())
        return best

    def groups_of(self, q: int, counts: Sequence[int]) -> list[int]:
        """Tensor groups of every type."""
        index, degree = self.t.setting_degree[q].tolist()
        return [
            min(count // degree, most) if speed > 0 else 0
            for count, most, speed in zip(counts, self.t.most_groups[index].tolist(), self.t.speed[q], strict=True)
        ]


class ClassReference:
    """One setting, P and interval of R."""

    def __init__(
        self,
        tables: TrainingTables,
        q: int,
        r: int,
        counts: Sequence[int],
        groups: list[int],
        stages: int,
        fewest: int,
        most: int,
    ) -> None:
        self.t, self.q, self.r, self.counts, self.groups = tables, q, r, counts, groups
        self.stages, self.fewest, self.most = stages, fewest, most
        self.s = dict(zip(SETTING, tables.setting[q].tolist(), strict=True))
        self.index, self.degree = tables.setting_degree[q].tolist()
        self.types = range(len(groups))
        self.speed, self.layer, self.head = tables.speed[q], tables.by_layer[q], tables.head[q]
        self.alike = self.layer[tables.quickest[q, 0]] > 0
        self.share = -(-tables.num_prompts // most)

    def seconds(self) -> float:
        """Return the least over shardings and places of the states."""
        if self.fewest > self.s["amount"] and self.s["micro_batch"] != 1:
            return inf
        slowest = self.dealt(self.quickest_layers)
        pipelined = max(self.flowing(), self.busiest(self.groups, 0, False, slowest))
        best = inf
        for sharding in SHARDINGS[: 1 if self.most == 1 else 3]:
            for on_host in (False, True):
                if not self.fits(sharding, on_host):
                    continue
                step, seconds = self.step(sharding, on_host), pipelined
                present = [y for y in self.types if self.groups[y] > 0]
                if len(present) == 1:
                    z = self.longest_stage(sharding, on_host, present[0])
                    seconds = max(seconds, self.busiest(self.groups, 0, False, z))
                seconds = self.placed(sharding, on_host, seconds) + step
                if on_host and self.most == 1:
                    seconds = max(seconds, self.joint())
                best = min(best, seconds)
        return best

    def taken(self, order: Sequence[int], wanted: int) -> list[tuple[int, int]]:
        """Groups taken in an order of types: (type, number)."""
        result = []
        for y in order:
            number = min(wanted, self.groups[y])
            wanted -= number
            result.append((int(y), number))
        return result

    def flowing(self) -> float:
        """All micro-batches on the fastest R P groups."""
        take = self.taken(self.t.fastest[self.q], self.most * self.stages)
        work, amount, phi = self.s["work"], self.s["amount"], self.s["phi"]
        low, high = self.s["least_share"], self.s["most_share"]
        seconds = work * amount / sum(number * self.speed[y] for y, number in take)
        if self.stages == 1:
            return float(seconds)
        slow = min(self.speed[y] for y in self.types if self.groups[y] > 0)
        for _ in range(FILL_ROUNDS):
            y, x = seconds * self.stages * slow / work, max(high * self.stages, 0.0)
            handled = max(0.5 * (y - 1 - x + sqrt((y - 1 - x) ** 2 + 4 * y)), 0.0)
            fill = amount / ceil(amount) if self.most == 1 else handled / (handled + 1)
            for full, slope in ((high * (1 + phi * (self.stages - 1)), 1.0), (high, 1 - phi)):
                lost = max(fill * full, full - (1 - fill) * low / slope)
                number, through, least = 0, 0.0, inf
                for kind, here in take:
                    if here > 0:
                        number, through = number + here, through + here * self.speed[kind]
                        spread = slope * (amount - self.most * lost) + fill * low * number
                        least = min(least, work * spread / through)
                seconds = max(seconds, least)
        return float(seconds)

    def busiest(self, slots: Sequence[int], between: int, head_between: bool, slowest: float) -> float:
        """A replica with at least the mean share."""
        prompt, high = self.s["prompt"], self.s["most_share"]
        once = (1 - self.s["least_share"]) / self.t.mini_batches
        low = self.s["least_share"] + (1 - high) / self.t.mini_batches
        if not self.alike:
            amount = self.share * prompt
            return low * self.s["once"] * amount / (amount + 1)
        if isinf(slowest):
            return inf
        take, left = [], self.stages
        for y in self.t.quickest[self.q].tolist():
            number = min(left, self.groups[y] if between else slots[y])
            left -= number
            take.append((y, number))
        head = min(self.head[y] for y, number in take if number > 0)
        best = inf
        for turn in range(min(2 + int(self.stages / prompt), self.t.num_prompts - self.share + 1)):
            amount = (self.share + turn) * prompt
            number = ceil(amount)
            fill = amount / number
            kappa = [
                max(1e-9, number - once - high * (1 + self.s["phi"] * (min(number, self.stages - j) - 1)))
                for j in range(self.stages)
            ]
            positions = iter(kappa)
            each = [(y, sum(1 / next(positions) / self.layer[y] for _ in range(here))) for y, here in take]
            k = max(kappa[0] * slowest, self.t.num_layers / sum(rate for _, rate in each))
            k = self.whole_layers(kappa, slots, between, head_between, k)
            best = min(best, fill * (self.passed(each, k, low) + low * head))
        return best

    def passed(self, each: Sequence[tuple[int, float]], k: float, low: float) -> float:
        """Least of K and a pass."""
        corners = [
            self.t.num_layers / sum(rate for _, rate in each[: i + 1]) for i in range(len(each)) if each[i][1] > 0
        ]
        best = inf
        for here in [k, *(corner for corner in corners if corner > k)]:
            left, through = float(self.t.num_layers), 0.0
            for y, rate in each:
                layers = min(left, rate * here)
                left -= layers
                through += layers * self.layer[y] if layers > 0 else 0.0
            best = min(best, here + low * through)
        return best

    def whole_layers(
        self, kappa: Sequence[float], slots: Sequence[int], between: int, head_between: bool, low: float
    ) -> float:
        """Least K that holds all layers."""

        def enough(k: float) -> bool:
            return self.held_layers(kappa, slots, between, head_between, k) >= self.t.num_layers

        if enough(low):
            return low
        high = low * 1.5
        for _ in range(HALVINGS - 1):
            if enough(high):
                break
            low, high = high, high * 1.5
        else:
            return high
        for _ in range(HALVINGS // 2):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return low

    def held_layers(
        self, kappa: Sequence[float], slots: Sequence[int], between: int, head_between: bool, k: float
    ) -> float:
        """Layers held: the largest of what every type holds on its first positions."""
        numbers = {y: min(slots[y], self.stages) for y in self.types if slots[y] > 0}
        held = {y: [floor(k / kappa[j] / self.layer[y]) for j in range(number)] for y, number in numbers.items()}
        places = sorted(((n, -y) for y, each in held.items() for n in each if n > between), reverse=True)
        places = places[: self.stages - (1 if between else 0)]
        total = sum(n for n, _ in places) + (self.stages - len(places)) * between
        if head_between:
            return float(total)
        lost = inf
        for y, each in held.items():
            last = floor((k / kappa[-1] - self.head[y]) / self.layer[y] * (1 + 1e-12))
            taken = sum(1 for _, kind in places if -kind == y)
            if last >= 1:
                lost = min(lost, max(0, each[min(taken, len(each) - 1)] - last))
        return total - lost

    def dealt(self, layers: Callable[[float], float]) -> float:
        """Least seconds of the slowest stage with which ``layers`` are enough."""
        if not self.alike:
            return 0.0
        low = 0.0
        high = max(self.layer[y] * self.t.num_layers + self.head[y] for y in self.types if self.groups[y] > 0)
        if layers(high) < self.t.num_layers and layers != self.quickest_layers:
            return inf
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if layers(middle) >= self.t.num_layers else (middle, high)
        return float(low)

    def lost_to_head(self, y: int, layers: float, slowest: float) -> float:
        """Fewer layers of a last stage."""
        most = floor((slowest - self.head[y]) / self.layer[y] * (1 + 1e-12))
        return inf if most < 1 else max(0.0, layers - most)

    def quickest_layers(self, slowest: float) -> float:
        """Layers of the P quickest groups."""
        total, lost = 0.0, inf
        for y, number in self.taken(self.t.quickest[self.q], self.stages):
            here = floor(slowest / self.layer[y]) if number > 0 else 0
            total += number * here
            if self.groups[y] > 0:
                lost = min(lost, self.lost_to_head(y, here, slowest))
        return total - lost

    def sharded(self, sharding: str, on_host: bool) -> float:
        """Bytes that one replica keeps."""
        weights, gradients, optimizer = self.t.states
        every = self.most if sharding == "fsdp" else 1
        states = self.most if sharding != "none" else 1
        return weights / every + gradients / every + (0.0 if on_host else optimizer / states)

    def caps(self, sharding: str, on_host: bool) -> tuple[float, list[float], float]:
        """Bytes of a layer's state, of a whole layer by position from the end, and of one sequence of the busiest."""
        biggest = self.share * self.s["prompt"]
        size = min(self.s["micro_batch"], max(1.0, ceil(biggest * self.s["micro_batch"])))
        state = self.sharded(sharding, on_host) / self.t.parameters * self.s["layer_parameters"]
        flying = [min(max(1.0, ceil(biggest)), n + 1) for n in range(self.stages)]
        return state, [state + self.s["kept_bytes"] * size * each for each in flying], size

    def fits(self, sharding: str, on_host: bool) -> bool:
        """Whether all states, the busiest replica, and the common split of layers fit."""
        state, caps, _ = self.caps(sharding, on_host)
        order = self.t.roomiest.tolist()
        held = sum(number * self.t.room[y] for y, number in self.taken(order, self.most * self.stages))
        rooms = [self.t.room[y] for y in order for _ in range(self.groups[y])]
        lean = state + self.s["kept_bytes"]
        blocks = [rooms[(block + 1) * self.fewest - 1] for block in range(self.stages)]
        return bool(
            self.fewest * self.sharded(sharding, on_host) / self.degree <= held * (1 + 1e-12)
            and sum(room / cap for room, cap in zip(rooms, caps, strict=False)) >= self.t.num_layers * (1 - 1e-12)
            and sum(floor(room / lean * (1 + 1e-12)) for room in blocks) >= self.t.num_layers
        )

    def longest_stage(self, sharding: str, on_host: bool, y: int) -> float:
        """Return the seconds of the longest stage on devices of one type."""
        if not self.alike:
            return 0.0
        per_parameter = self.sharded(sharding, on_host) / self.t.parameters
        _, caps, size = self.caps(sharding, on_host)
        most = []
        for number, cap in enumerate(caps):
            outside = 0.0
            if number == 0:
                outside += self.s["last_parameters"] * per_parameter + self.s["logits_bytes"] * size
            if number == self.stages - 1:
                outside += self.s["first_parameters"] * per_parameter
            most.append(max(0, floor((self.t.room[y] - outside) / cap)))
        if sum(most) < self.t.num_layers:
            return inf
        head = self.head[y] / self.layer[y]
        length = floor(self.t.num_layers / self.stages)
        for _ in range(UNEVEN):
            last = floor(length - head + 1e-9)
            if min(most[0], last) + sum(min(cap, floor(length)) for cap in most[1:]) >= self.t.num_layers:
                break
            length = min(floor(length) + 1.0, last + 1.0 + head)
        return float(length * self.layer[y])

    def exposed(self, sharding: str, reduce: float, gather: float) -> float:
        """Return what nothing hides of one update's communication."""
        gradient, weight = self.t.exposed
        rounds = {"none": 0.0, "zero1": 1.0, "fsdp": 2 * ceil(self.s["amount"] / self.most) * weight}[sharding]
        return self.t.scales[0] * (reduce * gradient + gather * rounds)

    def inside(self, sharding: str, here: Sequence[int], gradients: float, weights: float) -> float:
        """Return a ring inside the best node."""

        def ring(operation: int, y: int, num_bytes: float) -> float:
            offset, root, each = self.t.inside[operation, self.r, y].tolist()
            return float(offset + root * sqrt(num_bytes / self.degree) + each * num_bytes / self.degree)

        return min(
            (
                self.exposed(sharding, ring(0 if sharding == "none" else 2, y, gradients), ring(1, y, weights))
                for y in self.types
                if here[y] > 0
            ),
            default=inf,
        )

    def between(self, sharding: str, y: int, layers: float, flows: int) -> float:
        """Return a ring over the fastest link of a type."""
        width, latency = self.t.bandwidth[y] / self.degree / flows, self.t.latency[y]
        gradients, weights = (layers * each / self.degree for each in self.t.layer_states)
        ranks = self.fewest
        reduce = (ranks - 1) * (latency + gradients / (ranks * width))
        if sharding == "none":
            reduce = min(2 * reduce, 2 * latency + gradients / width)
        return self.exposed(sharding, float(reduce), float((ranks - 1) * (latency + weights / (ranks * width))))

    def placed(self, sharding: str, on_host: bool, pipelined: float) -> float:
        """Pipeline and reduce: every ring inside a node, or rings between nodes with up to so many layers."""
        if self.fewest == 1:
            return pipelined
        t, layers = self.t, self.t.num_layers
        here = [min(t.slots[self.index, self.r, y], self.groups[y] // self.fewest) for y in self.types]
        state = self.caps(sharding, on_host)[0] + self.s["kept_bytes"]
        kinds = [y for y in t.linked.tolist() if self.groups[y] > 0]
        cap = {y: min(layers, floor(t.room[y] / state * (1 + 1e-12))) for y in kinds}
        result = inf
        if sum(here) >= self.stages:
            longest = ceil(layers / self.stages)
            gradients = max(t.states[1] / self.stages, longest * t.layer_states[0])
            weights = max(t.states[0] / self.stages, longest * t.layer_states[1])
            z = self.dealt(lambda slowest: self.most_layers(kinds, here, cap, None, False, slowest))
            result = max(pipelined, self.busiest(here, 0, False, z)) + t.updates * self.inside(
                sharding, here, gradients, weights
            )
        best = kinds[0]
        if t.bandwidth[best] <= 0:
            return result
        most_inside = min(sum(here), self.stages - 1)
        flows = self.stages - most_inside if t.num_nodes == 2 else 1
        for head_between in (False, True):
            head = self.s["last_parameters"] / self.s["layer_parameters"] if head_between else 0.0
            for crossing in range(1, layers + 1):
                enough = crossing * self.stages >= layers
                if most_inside == 0 and not (enough and head_between):
                    continue
                after = self.between(sharding, best, crossing + 1 + head, flows)
                reduce = self.between(sharding, best, crossing + head, flows)
                if not enough:
                    longest = ceil(crossing + (layers - crossing * self.stages) / most_inside)
                    amounts = [longest * each for each in t.layer_states]
                    reduce = max(reduce, self.inside(sharding, here, *amounts))
                crossed = {}
                for y in kinds:
                    number = crossing
                    if t.bandwidth[y] < t.bandwidth[best] or t.latency[y] != t.latency[best]:
                        limit = max(reduce, after)
                        number = max(
                            n for n in range(layers + 1) if n == 0 or self.between(sharding, y, n, flows) <= limit
                        )
                    crossed[y] = min(number, cap[y])

                def held(slowest: float, crossed: dict[int, int] = crossed, head_between: bool = head_between) -> float:
                    return self.most_layers(kinds, here, cap, crossed, head_between, slowest)

                z = self.dealt(held)
                seconds = pipelined
                if isinf(z):
                    seconds = inf
                elif z > 0:
                    seconds = max(pipelined, self.busiest(here, crossing, head_between, z))
                result = min(result, seconds + t.updates * reduce)
        return result

    def most_layers(
        self,
        kinds: Sequence[int],
        here: Sequence[int],
        cap: dict[int, int],
        crossed: dict[int, int] | None,
        head_between: bool,
        slowest: float,
    ) -> float:
        """Layers of P stages, the largest first, as long as there are groups of types with links so fast."""
        until = [sum(self.groups[y] for y in kinds[: i + 1]) // self.fewest for i in range(len(kinds))]
        inside = [min(cap[y], floor(slowest / self.layer[y])) for y in kinds]
        slots = [here[y] for y in kinds]
        lost = 0.0 if head_between else inf
        for i, y in enumerate(kinds):
            if slots[i] > 0 and inside[i] > 0:
                lost = min(lost, self.lost_to_head(y, inside[i], slowest))
        total, left = 0.0, self.stages
        across = [crossed[y] if crossed is not None else 0 for y in kinds]
        if crossed is not None:
            first = max(
                (i for i in range(len(kinds)) if across[i] > 0 and until[i] > 0), key=lambda i: across[i], default=-1
            )
            if first < 0:
                return 0.0
            total, left = float(across[first]), left - 1
            until = [n - (i >= first) for i, n in enumerate(until)]
        while left > 0:
            free = [min(until[i:]) > 0 for i in range(len(kinds))]
            choices = [(across[i], -i, False) for i in range(len(kinds)) if free[i] and across[i] > 0]
            choices += [(inside[i], -i, True) for i in range(len(kinds)) if free[i] and slots[i] > 0 and inside[i] > 0]
            if not choices:
                break
            layers, i, is_inside = max(choices)
            total, left = total + layers, left - 1
            slots[-i] -= is_inside
            until = [n - (j >= -i) for j, n in enumerate(until)]
        return total - lost

    def step(self, sharding: str, on_host: bool) -> float:
        """All optimizer steps."""
        state = self.fewest * self.sharded(sharding, False)
        if on_host:
            last = self.t.host_bandwidth.shape[1] - 1
            through = sum(self.t.host_bandwidth[y, min(self.counts[y], last)] for y in self.types)
            return float(self.t.updates * self.t.scales[1] * state / through)
        take = self.taken(self.t.widest.tolist(), self.most * self.stages)
        through = sum(number * self.t.type_bandwidth[y] for y, number in take)
        return float(self.t.updates * self.t.scales[1] * state / self.degree / through)

    def joint(self) -> float:
        """Pipeline and host step of a single replica."""
        if self.t.joint_states <= 0:
            return 0.0
        number = ceil(self.s["amount"])
        fill = self.s["amount"] / number
        once = (1 - self.s["least_share"]) / self.t.mini_batches
        low = self.s["least_share"] + (1 - self.s["most_share"]) / self.t.mini_batches
        kappa = number - once - self.s["most_share"] * (1 + self.s["phi"] * (min(number, self.stages) - 1))
        last, amount = self.t.host_bandwidth.shape[1] - 1, self.t.joint_states * self.t.scales[1] * self.t.updates
        kinds = [y for y in self.t.quickest[self.q].tolist() if self.groups[y] > 0]
        whole = {y: self.layer[y] * self.t.num_layers for y in kinds}
        pipe = {y: min(self.groups[y], self.stages) / whole[y] for y in kinds}
        host = {y: self.t.host_bandwidth[y, min(self.counts[y], last)] / amount for y in kinds}
        best = inf
        for turn in kinds:
            ratio = pipe[turn] / host[turn]
            caps = [min(pipe[y], ratio * host[y]) for y in kinds]
            for used in range(1, len(kinds) + 1):
                z = 1 / sum(caps[:used])
                passing = sum(cap * whole[y] for cap, y in zip(caps[:used], kinds, strict=False))
                best = min(best, (fill * kappa + ratio) * z + fill * low * passing * z)
        return 0.0 if isinf(best) else float(best)
