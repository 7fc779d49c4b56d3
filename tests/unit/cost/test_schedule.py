"""Schedules against brute force over all orders, and by hand."""

import itertools
import random

import pytest

from hetrl.cost.schedule import Activity, asynchronous_period, best_schedule, replay


def brute_force(activities: list[Activity]) -> float:
    """Shortest of all permutations that respect the needs."""
    best = float("inf")
    for order in itertools.permutations(activities):
        seen: set[str] = set()
        for activity in order:
            if any(need not in seen for need, _ in activity.needs):
                break
            seen.add(activity.name)
        else:
            best = min(best, replay(order).seconds)
    return best


def test_ppo_by_hand() -> None:
    """Generate 10; reward 2 and reference 3 on one group, critic 4 on another; train 5 after all of them."""
    activities = [
        Activity(name="generate", seconds=10, groups=(0,)),
        Activity(name="reward", seconds=2, groups=(0,), needs=(("generate", 0.0),)),
        Activity(name="reference", seconds=3, groups=(0,), needs=(("generate", 0.0),)),
        Activity(name="critic", seconds=4, groups=(1,), needs=(("generate", 1.0),)),
        Activity(name="train", seconds=5, groups=(0,), needs=(("reward", 0.0), ("reference", 0.0), ("critic", 0.5))),
    ]
    schedule = best_schedule(activities)
    assert schedule.end["critic"] == 15.0
    assert schedule.start["train"] == 15.5  # the critic's scores arrive half a second later
    assert schedule.seconds == 20.5
    assert schedule.critical_path == ("generate", "critic", "train")


@pytest.mark.parametrize("seed", range(60))
def test_best_of_all_orders(seed: int) -> None:
    rng = random.Random(seed)
    names = "abcdef"[: rng.randint(2, 6)]
    activities = []
    for index, name in enumerate(names):
        needs = tuple((names[i], rng.choice([0.0, 0.3])) for i in range(index) if rng.random() < 0.3)
        groups = tuple(sorted(rng.sample(range(3), rng.choice([1, 1, 2]))))
        activities.append(Activity(name=name, seconds=rng.uniform(0.1, 3.0), groups=groups, needs=needs))
    assert best_schedule(activities).seconds == pytest.approx(brute_force(activities))


def test_asynchronous_period() -> None:
    activities = [
        Activity(name="generate", seconds=8, groups=(0,)),
        Activity(name="train", seconds=6, groups=(1,), needs=(("generate", 0.0),)),
        Activity(name="sync", seconds=1, groups=(0, 1), needs=(("train", 0.0),)),
    ]
    # group 0 works 9 s per step; the loop of 15 s may be 2 steps deep
    assert asynchronous_period(activities, 1) == 9.0
    activities[1] = Activity(name="train", seconds=12, groups=(1,), needs=(("generate", 0.0),))
    assert asynchronous_period(activities, 1) == 13.0
