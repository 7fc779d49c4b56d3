"""The whole loop on real Ray, vLLM and torch workers: two engines, two reference scorers, two trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetrl.errors import SpecError
from hetrl.measure import MeasurementStore, load_measurements
from hetrl.runtime.recording import Prediction
from hetrl.runtime.session import Session
from hetrl.runtime.step import PHASES, StepRecord

LEARNING_RATE = 5e-3
LARGEST_DIFFERENCE = 1e-3
SMALLEST_MOVE = 0.05


def one_update(session: Session, *, sync: bool) -> StepRecord:
    """The step after an update, on engines that got the update or not."""
    session.reset(seed=1, learning_rate=LEARNING_RATE)
    session.step(sync=sync)
    return session.step()


def test_engine_and_trainer_agree_after_an_update_that_moved_the_policy(session: Session) -> None:
    record = one_update(session, sync=True)
    assert record.max_reference_difference > SMALLEST_MOVE
    assert record.max_log_prob_difference < LARGEST_DIFFERENCE


def test_the_agreement_is_due_to_the_weight_update(session: Session) -> None:
    record = one_update(session, sync=False)
    assert record.max_reference_difference > SMALLEST_MOVE
    assert record.max_log_prob_difference > LARGEST_DIFFERENCE


@pytest.mark.parametrize("shares", [(4, 4), (1, 7), (8, 0)])
def test_shares_change_neither_samples_nor_update(session: Session, shares: tuple[int, int]) -> None:
    session.reset(seed=2, learning_rate=LEARNING_RATE)
    planned = session.step()
    session.reset(seed=2, learning_rate=LEARNING_RATE)
    other = session.step(shares=dict.fromkeys(session.planned_shares, shares))
    assert planned.shares["actor_train"] == (6, 2)
    assert other.shares["actor_train"] == shares
    assert other.reward_mean == pytest.approx(planned.reward_mean, abs=1e-9)
    assert other.loss == pytest.approx(planned.loss, abs=1e-5)
    assert other.gradient_norm == pytest.approx(planned.gradient_norm, rel=1e-4)


def test_training_learns_and_a_learning_rate_of_zero_does_not(session: Session) -> None:
    session.reset(seed=3, learning_rate=LEARNING_RATE)
    learnt = [session.step() for _ in range(10)]
    assert learnt[-1].reward_mean > learnt[0].reward_mean + 0.2
    session.reset(seed=3, learning_rate=0.0)
    still = [session.step() for _ in range(3)]
    assert max(record.max_reference_difference for record in still) < 1e-4
    assert still[0].reward_mean == pytest.approx(learnt[0].reward_mean, abs=1e-9)


def test_a_restored_run_goes_on_as_if_it_had_not_stopped(session: Session, tmp_path: Path) -> None:
    session.reset(seed=4, learning_rate=LEARNING_RATE)
    for _ in range(2):
        session.step()
    folder = session.save(tmp_path)
    straight = [session.step() for _ in range(2)]
    session.reset(seed=5, learning_rate=LEARNING_RATE)
    session.step()
    session.restore(folder)
    resumed = [session.step() for _ in range(2)]
    for one, other in zip(straight, resumed, strict=True):
        assert other.step == one.step
        assert other.reward_mean == pytest.approx(one.reward_mean, abs=1e-6)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-3)
    assert [each.name for each in folder.parent.iterdir()] == ["step-000002"]


def test_a_checkpoint_is_a_model_transformers_can_load(session: Session, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    session.reset(seed=6, learning_rate=LEARNING_RATE)
    folder = session.save(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == 869_504
    assert AutoTokenizer.from_pretrained(folder).decode([*AutoTokenizer.from_pretrained(folder).encode("fox")]) == "fox"


def test_every_phase_is_measured_beside_the_prediction(
    session: Session, store: MeasurementStore, prediction: Prediction
) -> None:
    session.reset(seed=7, learning_rate=LEARNING_RATE)
    before = len(load_measurements(store.path)) if store.path.exists() else 0
    record = session.step()
    found = load_measurements(store.path)[before:]
    replicas = {(each.kind, each.labels["replica"]) for each in found if "replica" in each.labels}
    assert {
        (kind, replica) for kind in ("generate", "score", "old_log_probs", "forward_backward") for replica in "01"
    } <= replicas
    assert {
        (kind, replica) for kind in ("all_reduce", "optimizer_step", "receive_weights") for replica in "01"
    } <= replicas
    assert ("send_weights", "0") in replicas
    generated = [each for each in found if each.kind == "generate"]
    assert [each.amounts["num_sequences"] for each in generated] == [24, 8]
    assert sum(each.amounts["num_response_tokens"] for each in generated) == record.num_response_tokens
    tasks = [each for each in found if each.kind == "task"]
    assert [each.predicted for each in tasks] == [{"seconds": 0.25}, {"seconds": 0.5}] * 3
    devices = {each.labels["device"]: each for each in found if each.kind == "device"}
    assert devices["0"].predicted == {"peak_bytes": prediction.peak_bytes[0]}
    assert devices["1"].predicted == {}
    assert min(each.measured["peak_bytes"] for each in devices.values()) > 2**28
    (sent,) = (each for each in found if each.kind == "send_weights")
    assert sent.amounts["num_bytes"] == 869_504 * 4
    assert {each.labels["phase"] for each in found if each.kind == "phase"} == set(PHASES)
    (step,) = (each for each in found if each.kind == "step")
    assert step.predicted == {"seconds": 1.0}


def test_a_step_that_differs_from_the_plan_carries_no_prediction(session: Session, store: MeasurementStore) -> None:
    session.reset(seed=8, learning_rate=LEARNING_RATE)
    session.step(max_response_tokens=8)
    (step,) = [each for each in load_measurements(store.path) if each.kind == "step"][-1:]
    assert step.predicted == {}
    assert step.amounts["num_response_tokens"] <= 8 * 32


@pytest.mark.parametrize("shares", [(7, 2), (9, -1), (8,)])
def test_shares_that_do_not_fit_are_refused(session: Session, shares: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match=r"shares\.actor_train"):
        session.step(shares={"actor_train": shares})


def test_unknown_task_in_shares_is_refused(session: Session) -> None:
    with pytest.raises(SpecError, match=r"shares\.critic_train"):
        session.step(shares={"critic_train": (4, 4)})
