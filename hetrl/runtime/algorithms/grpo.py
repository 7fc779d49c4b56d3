"""Group relative policy optimisation: advantages against the other responses of the prompt, clipped loss, KL term.

Source: DeepSeekMath, arXiv 2402.03300, equations 3 and 4 (outcome supervision). Normalisation of the loss is by all
response tokens of the mini-batch, so that it does not depend on how sequences are shared out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

ADVANTAGE_EPSILON = 1e-6


def group_advantages(rewards_PN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rewards minus their prompt's mean, over their prompt's standard deviation; P prompts, N responses.

    >>> group_advantages(np.array([[0.0, 1.0], [0.5, 0.5]])).round(3).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    centred_PN = rewards_PN - rewards_PN.mean(axis=1, keepdims=True)
    advantages: NDArray[np.float64] = centred_PN / (rewards_PN.std(axis=1, keepdims=True) + ADVANTAGE_EPSILON)
    return advantages


class LossTerms(NamedTuple):
    """Sums over the response tokens of a micro-batch."""

    loss: torch.Tensor
    kl: torch.Tensor
    num_clipped: torch.Tensor


def policy_loss(
    log_probs_BT: torch.Tensor,
    old_log_probs_BT: torch.Tensor,
    reference_log_probs_BT: torch.Tensor | None,
    advantages_B: torch.Tensor,
    is_response_BT: torch.Tensor,
    *,
    clip_ratio: float,
    kl_coefficient: float,
) -> LossTerms:
    """Clipped policy loss plus ``kl_coefficient`` times the k3 estimate of KL(policy || reference), summed.

    Without reference log-probabilities the KL term is absent and its sum is 0.
    """
    ratio_BT = (log_probs_BT - old_log_probs_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - clip_ratio, 1 + clip_ratio)
    advantages_B1 = advantages_B[:, None]
    loss_BT = -(ratio_BT * advantages_B1).minimum(clipped_BT * advantages_B1)
    kl_BT = log_probs_BT.new_zeros(log_probs_BT.shape)
    if reference_log_probs_BT is not None:
        difference_BT = reference_log_probs_BT - log_probs_BT
        kl_BT = difference_BT.exp() - difference_BT - 1
        loss_BT = loss_BT + kl_coefficient * kl_BT
    return LossTerms(
        loss=loss_BT[is_response_BT].sum(),
        kl=kl_BT.detach()[is_response_BT].sum(),
        num_clipped=(ratio_BT != clipped_BT)[is_response_BT].sum(),
    )
