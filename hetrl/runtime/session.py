"""A running set of engines and trainers that carries out steps: the runtime's programming interface."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from hetrl.errors import Problem, RunError, SpecError
from hetrl.measure import MeasurementStore
from hetrl.plan.document import WEIGHT_SYNC_BUCKET_BYTES
from hetrl.plan.plan import Plan
from hetrl.runtime import cluster as ray_cluster
from hetrl.runtime.checkpoint import RunState, checkpoint_folder, read_state
from hetrl.runtime.data import PromptRecord, RewardFunction, load_prompts, load_reward, prompts_of_step
from hetrl.runtime.limits import launch_problems, raise_if_any
from hetrl.runtime.placement import Slot, node_needs, placement_problems, slots
from hetrl.runtime.recording import Prediction, record_step
from hetrl.runtime.sequences import split_evenly
from hetrl.runtime.step import StepInputs, StepRecord, run_step, sync_weights
from hetrl.runtime.train import TrainSettings
from hetrl.runtime.workers import Workers
from hetrl.spec.job import Job, RunSettings

Shares = Mapping[str, tuple[int, ...]]


class Session:
    """Engines and trainers of a plan, ready to step. Use :meth:`start`, and ``with`` to end it cleanly.

    Several seeds, learning rates and shares may be tried on the same workers::

        with Session.start(plan, job, run) as session:
            session.reset(seed=1, learning_rate=1e-3)
            record = session.step()
            record = session.step(shares={"actor_train": (8, 8)})
    """

    def __init__(
        self,
        plan: Plan,
        job: Job,
        run: RunSettings,
        *,
        cluster: ray_cluster.RayCluster,
        records: Sequence[PromptRecord],
        reward: RewardFunction,
        store: MeasurementStore | None,
        prediction: Prediction | None,
        logs: Path | None,
        bucket_bytes: int,
    ) -> None:
        self._plan = plan
        self._job = job
        self._run = run
        self._cluster = cluster
        self._records = records
        self._reward = reward
        self._store = store
        self._prediction = prediction
        self._logs = logs
        self._bucket_bytes = bucket_bytes
        self._workers: Workers | None = None
        self._seed = run.seed
        self._learning_rate = run.learning_rate
        self._step = 0
        self.throttled_by: Mapping[int, str] = {}

    @classmethod
    def start(
        cls,
        plan: Plan,
        job: Job,
        run: RunSettings,
        *,
        address: str | None = None,
        store: MeasurementStore | None = None,
        prediction: Prediction | None = None,
        throttle: Mapping[str, float] | None = None,
        throttle_method: str = "auto",
        logs: Path | None = None,
        bucket_bytes: int = WEIGHT_SYNC_BUCKET_BYTES,
    ) -> Session:
        """Check the run, get the devices, start every worker.

        Parameters
        ----------
        plan, job, run
            What to run. ``run.reward`` is imported here: it must come from the user, not from a plan file.
        address
            Of a running Ray; without one, a Ray of our own is started on this machine.
        store
            Where measurements go; None keeps none.
        prediction
            What the plan says about a step; stored beside the measurements.
        throttle
            Device type -> fraction of its speed left to it, unknown to planner and profiler
            (:mod:`hetrl.runtime.throttle`). On one machine only.
        logs
            Folder for the workers' own output if one fails; only with a Ray of our own.
        bucket_bytes
            Size of the buffers of a weight update, as the plan states it.

        Raises
        ------
        SpecError
            If the run lacks something, asks for something unsupported, or Ray lacks its devices.
        RunError
            If a worker fails while starting.
        """
        needs = node_needs(plan, job.topology)
        problems = launch_problems(plan, job, run)
        if address is None and find_spec("ray") is not None:
            problems += placement_problems(needs, ray_cluster.offers_of_this_machine(needs, job.topology))
        raise_if_any(problems)
        import_module("ray")  # if it is missing that is what to say, before any work
        records = load_prompts(Path(run.prompts))
        if len(records) < job.batch.num_prompts:
            raise SpecError(
                Problem(
                    path="run.prompts",
                    message=f"{len(records)} prompts, a step needs {job.batch.num_prompts}",
                    found=run.prompts,
                )
            )
        reward = load_reward(run.reward)
        cluster = ray_cluster.start(needs) if address is None else ray_cluster.join(address, needs)
        session = cls(
            plan,
            job,
            run,
            cluster=cluster,
            records=records,
            reward=reward,
            store=store,
            prediction=prediction,
            logs=logs,
            bucket_bytes=bucket_bytes,
        )
        try:
            cluster.reserve()
            session._start_workers(throttle or {}, throttle_method)
        except BaseException as error:
            session._end(error)
            raise
        return session

    def _start_workers(self, throttle: Mapping[str, float], method: str) -> None:
        workers = self._workers = Workers(
            self._cluster,
            slots(self._plan, self._job.workflow, self._job.topology),
            self._plan,
            self._job,
            self._run.actor_path,
        )
        trainers, engines = workers.of_kind("train"), workers.of_kind("generate")
        self._check_prompt_lengths(engines[0])
        host = workers.host_of(trainers[0])
        (port,) = workers.gather([workers.call(trainers[0], "open_store", host)])
        workers.gather([workers.call(slot, "join_replicas", host, port) for slot in trainers])
        num_ranks = 1 + len(engines)
        workers.gather(
            [
                workers.call(trainers[0], "open_weight_group", num_ranks),
                *(workers.call(slot, "join_weight_group", host, port, 1 + slot.replica, num_ranks) for slot in engines),
            ]
        )
        self.throttled_by = workers.throttle(throttle, method)
        self.reset(seed=self._run.seed, learning_rate=self._run.learning_rate)

    def _check_prompt_lengths(self, engine: Slot) -> None:
        limit = self._job.batch.prompt_tokens
        texts = [record["prompt"] for record in self._records]
        (lengths,) = self.workers.gather([self.workers.call(engine, "count_tokens", texts)])
        problems = [
            Problem(
                path="run.prompts",
                message=f"prompt {number} has {length} tokens",
                found=texts[number][:60],
                valid=f"at most batch.prompt_tokens = {limit}",
            )
            for number, length in enumerate(lengths)
            if length > limit
        ]
        if problems:
            raise SpecError(problems)

    @property
    def workers(self) -> Workers:
        """The workers; RuntimeError after :meth:`close`."""
        if self._workers is None:
            raise RuntimeError("the session is closed")
        return self._workers

    @property
    def num_steps_done(self) -> int:
        """Steps since the last reset, or as restored."""
        return self._step

    @property
    def planned_shares(self) -> dict[str, tuple[int, ...]]:
        """Task -> prompts per replica, as planned."""
        return {task.task: tuple(replica.num_prompts for replica in task.replicas) for task in self._plan.tasks}

    @property
    def even_shares(self) -> dict[str, tuple[int, ...]]:
        """Task -> prompts per replica, as equal as whole prompts allow."""
        return {
            task.task: tuple(split_evenly(self._job.batch.num_prompts, len(task.replicas))) for task in self._plan.tasks
        }

    def reset(self, *, seed: int, learning_rate: float) -> None:
        """Go back to the initial weights, everywhere, with a fresh optimizer; steps count from 0 again."""
        self.workers.gather([self.workers.call(slot, "reset", learning_rate) for slot in self.workers.of_kind("train")])
        sync_weights(self.workers, self._bucket_bytes)
        self.workers.take_timings()
        self._seed, self._learning_rate, self._step = seed, learning_rate, 0

    def step(
        self, *, shares: Shares | None = None, max_response_tokens: int | None = None, sync: bool = True
    ) -> StepRecord:
        """Carry out one step.

        Parameters
        ----------
        shares
            Task -> prompts per replica, for tasks that should differ from the plan.
        max_response_tokens
            Limit of the responses, at most the job's; None takes the job's.
        sync
            False leaves the engines on their old weights; for tests of the update itself.

        Raises
        ------
        RunError
            If a worker fails.
        SpecError
            If the shares do not fit the plan.
        """
        batch, score_tasks = self._job.batch, [task.name for task in self._job.workflow.tasks if task.kind == "score"]
        inputs = StepInputs(
            step=self._step,
            prompts=prompts_of_step(self._records, batch.num_prompts, self._step, self._seed),
            shares=self._checked_shares(shares or {}),
            seed=self._seed * 1_000_000,
            max_response_tokens=min(max_response_tokens or batch.max_response_tokens, batch.max_response_tokens),
        )
        record = run_step(
            self.workers,
            inputs,
            self._train_settings(),
            self._plan.task(score_tasks[0]).micro_batch_size if score_tasks else 0,
            self._records,
            self._reward,
            self._bucket_bytes,
            sync=sync,
        )
        self._step += 1
        if self._store is not None:
            record_step(self._store, record, self._prediction)
        return record

    def _checked_shares(self, shares: Shares) -> dict[str, tuple[int, ...]]:
        chosen = {**self.planned_shares, **shares}
        planned = self.planned_shares
        problems = [
            Problem(
                path=f"shares.{task}",
                message="shares do not fit the plan",
                found=str(given),
                valid=f"{len(planned.get(task, ()))} shares that add up to {self._job.batch.num_prompts}",
            )
            for task, given in chosen.items()
            if task not in planned
            or len(given) != len(planned[task])
            or sum(given) != self._job.batch.num_prompts
            or min(given) < 0
        ]
        if problems:
            raise SpecError(problems)
        return chosen

    def _train_settings(self) -> TrainSettings:
        (name,) = (task.name for task in self._job.workflow.tasks if task.kind == "train")
        return TrainSettings(
            num_epochs=self._job.batch.num_epochs,
            num_mini_batches=self._job.batch.num_mini_batches,
            micro_batch_size=self._plan.task(name).micro_batch_size,
            responses_per_prompt=self._job.batch.responses_per_prompt,
            temperature=self._run.temperature,
            clip_ratio=self._run.clip_ratio,
            kl_coefficient=self._run.kl_coefficient,
        )

    def save(self, out: Path) -> Path:
        """Write a checkpoint under ``out``, whole or not at all; return its folder."""
        folder = checkpoint_folder(out.resolve(), self._step)
        state = RunState(num_steps_done=self._step, seed=self._seed)
        trainer = self.workers.of_kind("train")[0]
        self.workers.gather([self.workers.call(trainer, "save", str(folder), state)])
        return folder

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint: weights, optimizer states, step and seed."""
        state = read_state(folder)
        self.workers.gather(
            [
                self.workers.call(slot, "restore", str(folder.resolve()), self._learning_rate)
                for slot in self.workers.of_kind("train")
            ]
        )
        sync_weights(self.workers, self._bucket_bytes)
        self.workers.take_timings()
        self._seed, self._step = state.seed, state.num_steps_done

    def close(self) -> None:
        """End every worker, and the Ray we started; nothing stays behind. A Ctrl-C meanwhile does not stop it."""
        with _interrupts_ignored():
            try:
                if self._workers is not None:
                    workers, self._workers = self._workers, None
                    workers.close()
            finally:
                self._cluster.close()

    def _end(self, error: BaseException | None) -> None:
        if isinstance(error, RunError) and self._logs is not None:
            self._cluster.save_logs(self._logs)
        self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
