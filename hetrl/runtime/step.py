"""One GRPO step: rollout, reward, reference scores, training, weight update."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hetrl.runtime.algorithms.grpo import group_advantages
from hetrl.runtime.data import PromptRecord, RewardFunction, reward_of
from hetrl.runtime.placement import Slot
from hetrl.runtime.sequences import PhaseTiming, Prompt, SampledSequence, TrainSequence, split_by_shares
from hetrl.runtime.train import TrainSettings, TrainSums
from hetrl.runtime.workers import Workers

PHASES = ("generate", "reward", "score", "train", "weight_sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step did and how long it took.

    Parameters
    ----------
    step
        Number of the step since the last reset, from 0.
    seconds
        The whole step.
    phase_seconds
        Wall time of each of :data:`PHASES` as the driver saw it.
    shares
        Task -> prompts per replica.
    reward_mean, reward_std
        Over all responses.
    kl
        Mean k3 estimate of KL(policy || reference) per response token; 0 without a reference.
    loss, gradient_norm, clip_fraction
        Of the update.
    max_log_prob_difference
        Largest |engine - trainer| log-probability of a sampled token: both hold the same weights if it is small.
    max_reference_difference
        Largest |trainer - reference| log-probability of a sampled token: how far training has moved the policy.
    max_response_tokens
        Limit of the responses.
    num_prompt_tokens, num_response_tokens
        Tokens of the batch; prompts counted once per response.
    timings
        Every phase of every worker.
    """

    step: int
    seconds: float
    phase_seconds: Mapping[str, float]
    shares: Mapping[str, tuple[int, ...]]
    reward_mean: float
    reward_std: float
    kl: float
    loss: float
    gradient_norm: float
    clip_fraction: float
    max_log_prob_difference: float
    max_reference_difference: float
    max_response_tokens: int
    num_prompt_tokens: int
    num_response_tokens: int
    timings: tuple[tuple[Slot, PhaseTiming], ...]

    @property
    def tokens_per_second(self) -> float:
        """Prompt and response tokens over the step's time."""
        return (self.num_prompt_tokens + self.num_response_tokens) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What decides a step.

    Parameters
    ----------
    prompts
        Prompts of the step.
    shares
        Task -> prompts per replica; each adds up to the number of prompts.
    seed
        Decides the samples.
    """

    step: int
    prompts: Sequence[Prompt]
    shares: Mapping[str, tuple[int, ...]]
    seed: int
    max_response_tokens: int


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start


def sync_weights(workers: Workers, bucket_bytes: int) -> None:
    """Send the trainer's weights to every engine, in buckets of at most ``bucket_bytes``."""
    source, *_ = workers.of_kind("train")
    (buckets,) = workers.gather([workers.call(source, "buckets", bucket_bytes)])
    calls = [workers.call(slot, "receive_weights", buckets) for slot in workers.of_kind("generate")]
    workers.gather([workers.call(source, "send_weights", buckets), *calls])


def run_step(
    workers: Workers,
    inputs: StepInputs,
    settings: TrainSettings,
    score_micro_batch_size: int,
    records: Sequence[PromptRecord],
    reward: RewardFunction,
    bucket_bytes: int,
    *,
    sync: bool = True,
) -> StepRecord:
    """Carry out one step; ``sync=False`` leaves the engines on their old weights (tests need that)."""
    watch = _Stopwatch()
    start = time.perf_counter()
    with watch("generate"):
        sequences = _generate(workers, inputs, settings)
    with watch("reward"):
        rewards = np.array([reward_of(reward, records[each.prompt_index], each.text) for each in sequences])
        advantages = group_advantages(rewards.reshape(len(inputs.prompts), -1)).reshape(-1)
    with watch("score"):
        references = _score(workers, inputs, settings, score_micro_batch_size, sequences)
    with watch("train"):
        batch = [
            TrainSequence(sequence=sequence, advantage=float(advantage), reference_log_probs=reference)
            for sequence, advantage, reference in zip(sequences, advantages, references, strict=True)
        ]
        sums = _train(workers, inputs, settings, batch)
    with watch("weight_sync"):
        if sync:
            sync_weights(workers, bucket_bytes)
    seconds = time.perf_counter() - start
    num_tokens = sum(each.num_tokens for each in sums)
    return StepRecord(
        step=inputs.step,
        seconds=seconds,
        phase_seconds=watch.seconds,
        shares=dict(inputs.shares),
        reward_mean=float(rewards.mean()),
        reward_std=float(rewards.std()),
        kl=sum(each.kl for each in sums) / num_tokens,
        loss=sum(each.loss for each in sums) / num_tokens,
        gradient_norm=max(each.gradient_norm for each in sums),
        clip_fraction=sum(each.num_clipped for each in sums) / num_tokens,
        max_log_prob_difference=max(each.max_log_prob_difference for each in sums),
        max_reference_difference=max(each.max_reference_difference for each in sums),
        max_response_tokens=inputs.max_response_tokens,
        num_prompt_tokens=sum(len(each.prompt_tokens) for each in sequences),
        num_response_tokens=sum(len(each.response_tokens) for each in sequences),
        timings=tuple(workers.take_timings()),
    )


def _generate(workers: Workers, inputs: StepInputs, settings: TrainSettings) -> list[SampledSequence]:
    slots = workers.of_kind("generate")
    parts = split_by_shares(inputs.prompts, inputs.shares[slots[0].task])
    answers = workers.gather(
        [
            workers.call(
                slot,
                "generate",
                part,
                num_responses=settings.responses_per_prompt,
                max_response_tokens=inputs.max_response_tokens,
                temperature=settings.temperature,
                seed=inputs.seed + inputs.step,
            )
            for slot, part in zip(slots, parts, strict=True)
            if part
        ]
    )
    return [sequence for answer in answers for sequence in answer]


def _score(
    workers: Workers,
    inputs: StepInputs,
    settings: TrainSettings,
    micro_batch_size: int,
    sequences: Sequence[SampledSequence],
) -> list[np.ndarray | None]:
    slots = workers.of_kind("score")
    if not slots:
        return [None] * len(sequences)
    parts = split_by_shares(sequences, inputs.shares[slots[0].task], settings.responses_per_prompt)
    answers = workers.gather(
        [
            workers.call(slot, "log_probs", part, temperature=settings.temperature, micro_batch_size=micro_batch_size)
            for slot, part in zip(slots, parts, strict=True)
            if part
        ]
    )
    return [log_probs for answer in answers for log_probs in answer]


def _train(
    workers: Workers, inputs: StepInputs, settings: TrainSettings, batch: Sequence[TrainSequence]
) -> list[TrainSums]:
    slots = workers.of_kind("train")
    parts = split_by_shares(batch, inputs.shares[slots[0].task], settings.responses_per_prompt)
    return workers.gather(
        [workers.call(slot, "train", part, settings) for slot, part in zip(slots, parts, strict=True)]
    )
