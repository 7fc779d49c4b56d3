"""Advantages and loss of GRPO against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hetrl.runtime.algorithms.grpo import group_advantages, policy_loss
from hetrl.runtime.data import prompts_of_step
from hetrl.runtime.sequences import split_by_shares, split_evenly


def test_advantages_are_normalised_within_each_prompt() -> None:
    advantages = group_advantages(np.array([[0.0, 1.0, 1.0, 0.0], [10.0, 10.0, 10.0, 14.0]]))
    assert advantages[0] == pytest.approx([-1, 1, 1, -1], abs=1e-5)
    assert advantages[1] == pytest.approx([-1 / math.sqrt(3)] * 3 + [math.sqrt(3)], abs=1e-5)


def test_a_prompt_without_differences_teaches_nothing() -> None:
    assert group_advantages(np.full((1, 4), 0.7)).tolist() == [[0.0] * 4]


def test_loss_clips_gains_only_and_counts_response_tokens_only() -> None:
    torch = pytest.importorskip("torch")
    ratio = torch.tensor([[1.5, 0.5, 99.0], [1.5, 0.5, 1.0]])
    is_response = torch.tensor([[True, True, False], [True, True, True]])
    terms = policy_loss(
        ratio.log(),
        torch.zeros(2, 3),
        None,
        torch.tensor([1.0, -2.0]),
        is_response,
        clip_ratio=0.2,
        kl_coefficient=1.0,
    )
    # advantage 1: -min(1.5, 1.2) - min(0.5, 0.8); advantage -2: -min(-3, -2.4) - min(-1, -1.6) - (-2)
    assert float(terms.loss) == pytest.approx(-1.2 - 0.5 + 3 + 1.6 + 2)
    assert int(terms.num_clipped) == 4
    assert float(terms.kl) == 0


def test_kl_is_the_k3_estimate() -> None:
    torch = pytest.importorskip("torch")
    log_probs, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]])
    terms = policy_loss(
        log_probs,
        log_probs,
        reference,
        torch.zeros(1),
        torch.ones(1, 2, dtype=torch.bool),
        clip_ratio=0.2,
        kl_coefficient=0.1,
    )
    k3 = math.exp(-0.5) + 0.5 - 1
    assert float(terms.kl) == pytest.approx(k3)
    assert float(terms.loss) == pytest.approx(0.1 * k3)


def test_gradient_at_the_old_policy_is_the_policy_gradient() -> None:
    torch = pytest.importorskip("torch")
    log_probs = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    is_response = torch.tensor([[True, True, False]])
    terms = policy_loss(
        log_probs,
        log_probs.detach(),
        None,
        torch.tensor([1.5]),
        is_response,
        clip_ratio=0.2,
        kl_coefficient=0.0,
    )
    terms.loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[-1.5, -1.5, 0.0]]


@pytest.mark.parametrize(("num_items", "num_parts"), [(7, 3), (8, 2), (1, 4), (0, 2)])
def test_even_parts_differ_by_at_most_one(num_items: int, num_parts: int) -> None:
    parts = split_evenly(num_items, num_parts)
    assert sum(parts) == num_items
    assert max(parts) - min(parts) <= 1


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        split_by_shares([1, 2, 3], [1, 1])


def test_a_pass_shows_every_prompt_once_and_the_next_in_another_order() -> None:
    records = [{"prompt": f"p{number}"} for number in range(12)]
    passes = [
        [prompt.index for step in range(start, start + 4) for prompt in prompts_of_step(records, 3, step, seed=5)]
        for start in (0, 4)
    ]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(12))
    assert passes[0] != passes[1]
    assert prompts_of_step(records, 3, 2, seed=5) == prompts_of_step(records, 3, 2, seed=5)
