"""1F1B against an independent event simulation, layer splits and shares against brute force."""

import heapq
import itertools
import random

import pytest

from hetrl.cost.pipeline import (
    forward_only_seconds,
    one_f_one_b_lower_bound,
    one_f_one_b_seconds,
    split_layers,
    threshold_fill,
)


def simulate_1f1b(forward: list[float], backward: list[float], send: list[float], m: int) -> float:
    """Event-driven: each stage has its fixed 1F1B order; messages arrive as events; a stage runs its next item when
    the item's message is there."""
    stages = len(forward)
    queues = []
    for j in range(stages):
        warm = min(m, stages - j)
        order: list[tuple[str, int]] = [("F", i) for i in range(warm)]
        done_f = warm
        for i in range(m):
            order.append(("B", i))
            if done_f < m:
                order.append(("F", done_f))
                done_f += 1
        queues.append(order)
    arrived = {(0, "F", i): 0.0 for i in range(m)}
    free, head, events, now_end = [0.0] * stages, [0] * stages, [(0.0, 0)], 0.0
    while events:
        _, j = heapq.heappop(events)
        while head[j] < len(queues[j]) and (j, *queues[j][head[j]]) in arrived:
            kind, i = queues[j][head[j]]
            start = max(free[j], arrived[j, kind, i])
            end = start + (forward[j] if kind == "F" else backward[j])
            free[j] = end
            head[j] += 1
            now_end = max(now_end, end)
            if kind == "F":
                if j + 1 < stages:
                    arrived[j + 1, "F", i] = end + send[j]
                    heapq.heappush(events, (end + send[j], j + 1))
                else:
                    arrived[j, "B", i] = end
            elif j > 0:
                arrived[j - 1, "B", i] = end + send[j - 1]
                heapq.heappush(events, (end + send[j - 1], j - 1))
    assert all(head[j] == len(queues[j]) for j in range(stages))
    return now_end


def random_pipelines(count: int) -> list[tuple[list[float], list[float], list[float], int]]:
    rng = random.Random(7)
    found = []
    for _ in range(count):
        stages = rng.randint(1, 6)
        forward = [rng.uniform(0.1, 2.0) for _ in range(stages)]
        backward = [rng.uniform(1.0, 3.0) * each for each in forward]
        send = [rng.uniform(0.0, 0.5) for _ in range(stages - 1)]
        found.append((forward, backward, send, rng.randint(1, 12)))
    return found


def test_one_stage_is_a_plain_sum() -> None:
    assert one_f_one_b_seconds([2.0], [4.0], [], 5) == 30.0


def test_two_equal_stages_by_hand() -> None:
    # f=1, b=2, no sends, m=2. Stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7. Stage 0: F0, F1, B0 4-6, B1 7-9.
    assert one_f_one_b_seconds([1.0, 1.0], [2.0, 2.0], [0.0], 2) == 9.0


@pytest.mark.parametrize("pipeline", random_pipelines(200))
def test_recurrence_equals_event_simulation(pipeline: tuple[list[float], list[float], list[float], int]) -> None:
    assert one_f_one_b_seconds(*pipeline) == pytest.approx(simulate_1f1b(*pipeline), rel=1e-12)


@pytest.mark.parametrize("pipeline", random_pipelines(200))
def test_lower_bound_holds(pipeline: tuple[list[float], list[float], list[float], int]) -> None:
    assert one_f_one_b_lower_bound(*pipeline) <= one_f_one_b_seconds(*pipeline) * (1 + 1e-12)


def test_forward_only_by_hand() -> None:
    # three micro-batches through stages of 1 and 3 s with a 0.5 s send: 1 + 0.5 + 3 * 3
    assert forward_only_seconds([1.0, 3.0], [0.5], 3) == pytest.approx(10.5)


def test_split_layers_is_optimal() -> None:
    rng = random.Random(3)
    for _ in range(200):
        stages, layers = rng.randint(2, 4), rng.randint(4, 12)
        per = [rng.choice([0.5, 1.0, 1.5, 3.0]) for _ in range(stages)]
        fixed = [rng.choice([0.0, 0.7]) for _ in range(stages)]
        caps = [rng.randint(1, layers) for _ in range(stages)]
        options = [
            split
            for split in itertools.product(range(1, layers + 1), repeat=stages)
            if sum(split) == layers and all(s <= cap for s, cap in zip(split, caps, strict=True))
        ]
        found = split_layers(per, fixed, caps, layers)
        if not options:
            assert found is None
            continue
        assert found is not None and sum(found) == layers
        assert all(1 <= s <= cap for s, cap in zip(found, caps, strict=True))

        def slowest(split: tuple[int, ...], per: list[float] = per, fixed: list[float] = fixed) -> float:
            return max(f + s * p for s, p, f in zip(split, per, fixed, strict=True))

        assert slowest(found) == pytest.approx(min(map(slowest, options)))


def test_threshold_fill_is_optimal() -> None:
    rng = random.Random(5)
    for _ in range(100):
        replicas, total = rng.randint(1, 3), rng.randint(1, 9)
        tables = [
            list(itertools.accumulate((rng.choice([0.0, 0.5, 1.0, 2.0]) for _ in range(total)), initial=0.0))
            for _ in range(replicas)
        ]
        best = min(
            max(table[n] for table, n in zip(tables, split, strict=True))
            for split in itertools.product(range(total + 1), repeat=replicas)
            if sum(split) == total
        )
        found = threshold_fill([table.__getitem__ for table in tables], total)
        assert sum(found) == total
        assert max(table[n] for table, n in zip(tables, found, strict=True)) == pytest.approx(best, abs=1e-7)


def test_threshold_fill_says_when_nothing_fits() -> None:
    assert threshold_fill([lambda n: 0.0 if n < 2 else float("inf")], 3) == ()
