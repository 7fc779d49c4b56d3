"""The RL workflow: which tasks run, on which models, in which order.

A task generates, scores (forward only) or trains. Edges say who needs whose output within one step; training an
actor additionally sends its weights to the generation engine (`weight_sync`).
"""

from __future__ import annotations

from dataclasses import dataclass

from hetrl.errors import Problem, SpecError
from hetrl.spec.model import Model

TASK_KINDS = ("generate", "score", "train")
ALGORITHMS = ("PPO", "GRPO", "DPO", "ReMax", "RLOO", "multi-reward")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of the workflow.

    Parameters
    ----------
    name
        Unique, e.g. ``actor_generate``, ``reference_score``, ``critic_train``.
    kind
        One of `TASK_KINDS`.
    role
        ``actor``, ``critic``, ``reference``, ``reward`` or ``reward_2``...: tasks of one role share weights.
    model
        The model it runs.
    sequences_per_prompt
        Sequences it handles for each prompt (responses, or 2 for a DPO pair).
    needs
        Names of the tasks whose output it consumes.
    """

    name: str
    kind: str
    role: str
    model: Model
    sequences_per_prompt: int = 1
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A directed acyclic graph of tasks, in a topological order.

    Parameters
    ----------
    algorithm
        One of `ALGORITHMS`.
    tasks
        In topological order.
    online
        False for offline DPO: no engine, no weight sync.
    group_normalised
        The algorithm compares the responses of one prompt (GRPO, RLOO): replicas get whole prompt groups.
    """

    algorithm: str
    tasks: tuple[Task, ...]
    online: bool = True
    group_normalised: bool = False

    def __post_init__(self) -> None:
        problems = []
        seen: set[str] = set()
        for task in self.tasks:
            if task.kind not in TASK_KINDS:
                problems.append(Problem(path=f"workflow.tasks.{task.name}", message="unknown kind", found=task.kind))
            if task.name in seen:
                problems.append(Problem(path=f"workflow.tasks.{task.name}", message="task name used twice"))
            for need in task.needs:
                if need not in seen:
                    problems.append(
                        Problem(
                            path=f"workflow.tasks.{task.name}",
                            message="needs a task that does not come before it",
                            found=need,
                        )
                    )
            seen.add(task.name)
        if problems:
            raise SpecError(problems)

    def task(self, name: str) -> Task:
        """Return the task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def index(self, name: str) -> int:
        """Position of the task of that name."""
        return next(index for index, task in enumerate(self.tasks) if task.name == name)

    @property
    def roles(self) -> dict[str, Model]:
        """Role -> model, in order of first appearance."""
        return {task.role: task.model for task in self.tasks}


def build_workflow(
    algorithm: str,
    *,
    actor: Model,
    reference: Model | None = None,
    critic: Model | None = None,
    rewards: tuple[Model, ...] = (),
    responses_per_prompt: int = 1,
    online: bool = True,
) -> Workflow:
    """Return the built-in workflow of an algorithm.

    Parameters
    ----------
    rewards
        One model per reward; an empty tuple means a reward function on the CPU, which takes part in no plan.
    responses_per_prompt
        Responses sampled for each prompt.
    online
        Only read for DPO.

    Raises
    ------
    SpecError
        If a model that the algorithm needs is missing, or one that it does not have is given.
    """
    problems = []
    needs_critic = algorithm in ("PPO", "multi-reward")
    if algorithm not in ALGORITHMS:
        raise SpecError(
            Problem(
                path="workflow.algorithm", message="unknown algorithm", found=algorithm, valid=", ".join(ALGORITHMS)
            )
        )
    if needs_critic and critic is None:
        problems.append(Problem(path="workflow.critic_model", message=f"{algorithm} needs a critic model"))
    if not needs_critic and critic is not None:
        problems.append(
            Problem(
                path="workflow.critic_model",
                message=f"{algorithm} has no critic",
                found=critic.name,
                valid="remove the key",
            )
        )
    if algorithm == "DPO" and reference is None:
        problems.append(Problem(path="workflow.reference_model", message="DPO needs a reference model"))
    if algorithm == "multi-reward" and len(rewards) < 2:
        problems.append(Problem(path="workflow.reward_models", message="multi-reward needs at least two reward models"))
    if problems:
        raise SpecError(problems)

    if algorithm == "DPO" and not online:
        assert reference is not None
        score = Task(name="reference_score", kind="score", role="reference", model=reference, sequences_per_prompt=2)
        train = Task(
            name="actor_train", kind="train", role="actor", model=actor, sequences_per_prompt=2, needs=(score.name,)
        )
        return Workflow(algorithm=algorithm, tasks=(score, train), online=False)

    sequences = 2 if algorithm == "DPO" else responses_per_prompt
    # ReMax: the engine also writes a greedy response per prompt, the baseline; the reward scores both.
    num_rewarded = sequences + (1 if algorithm == "ReMax" else 0)
    tasks = [Task(name="actor_generate", kind="generate", role="actor", model=actor, sequences_per_prompt=num_rewarded)]
    for number, reward in enumerate(rewards, start=1):
        role = "reward" if number == 1 else f"reward_{number}"
        tasks.append(
            Task(
                name=f"{role}_score",
                kind="score",
                role=role,
                model=reward,
                sequences_per_prompt=num_rewarded,
                needs=("actor_generate",),
            )
        )
    if reference is not None:
        tasks.append(
            Task(
                name="reference_score",
                kind="score",
                role="reference",
                model=reference,
                sequences_per_prompt=sequences,
                needs=("actor_generate",),
            )
        )
    if needs_critic:
        assert critic is not None
        tasks.append(
            Task(
                name="critic_score",
                kind="score",
                role="critic",
                model=critic,
                sequences_per_prompt=sequences,
                needs=("actor_generate",),
            )
        )
    inputs = tuple(task.name for task in tasks)
    tasks.append(
        Task(name="actor_train", kind="train", role="actor", model=actor, sequences_per_prompt=sequences, needs=inputs)
    )
    if needs_critic:
        assert critic is not None
        tasks.append(
            Task(
                name="critic_train",
                kind="train",
                role="critic",
                model=critic,
                sequences_per_prompt=sequences,
                needs=inputs,
            )
        )
    return Workflow(algorithm=algorithm, tasks=tuple(tasks), group_normalised=algorithm in ("GRPO", "RLOO"))
