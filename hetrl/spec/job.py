"""A job: a workflow on a topology, with batch sizes, precision and optimizer settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetrl.spec.topology import Topology
from hetrl.spec.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Amount of work in one RL step.

    Response lengths are a distribution known by mean and maximum; `response_histogram` may give it as
    (length, weight) pairs instead.
    """

    num_prompts: int = 256
    responses_per_prompt: int = 1
    prompt_tokens: int = 1024
    mean_response_tokens: float = 512
    max_response_tokens: int = 1024
    response_histogram: tuple[tuple[int, float], ...] = ()
    num_epochs: int = 1
    num_mini_batches: int = 4

    @property
    def mean_sequence_tokens(self) -> float:
        """Prompt plus mean response."""
        return self.prompt_tokens + self.mean_response_tokens

    @property
    def max_sequence_tokens(self) -> int:
        """Prompt plus longest response."""
        return self.prompt_tokens + self.max_response_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtypes of training and generation, and the bytes of training state they imply.

    bf16 mixed AdamW: bf16 weights (2) and gradients (2), fp32 master weights and two moments (12): 16 bytes per
    parameter; 18 with fp32 gradients. fp32 training: weights 4, gradients 4, two moments 8.
    """

    dtype: str = "bf16"
    gradient_dtype: str = "bf16"
    kv_cache_dtype: str = "bf16"
    optimizer: str = "adamw"
    lora_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What plans may not do: the ``optimizer.constraints`` section of the YAML.

    Parameters
    ----------
    pin
        Task -> ids of the only nodes its group may use.
    forbid
        Task -> ids of nodes its group must not use.
    keep_layout
        Tasks that keep the devices, tensor degree and stages they have in the plan that the search starts from.
    max_usd_per_step
        Highest price of one step; None for no limit.
    """

    pin: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    forbid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keep_layout: tuple[str, ...] = ()
    max_usd_per_step: float | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is ruled out."""
        return self == Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """How to search: the ``optimizer:`` section of the YAML.

    Parameters
    ----------
    objective
        ``step_seconds`` or ``tokens_per_second``, ``usd_per_step`` or ``usd_per_million_tokens``. As a job fixes the
        tokens of a step, the members of each pair order all plans alike. With staleness a step's time is the period.
    executable
        Restrict the search to what this version's runtime carries out (`hetrl.plan.capabilities`).
    mip, gap
        Of the exact solver: who solves the certificate's integer program, and the relative gap that is good enough.
    """

    solver: str = "hybrid"
    max_search_seconds: float = 30.0
    memory_safety_margin: float = 0.10
    seed: int = 0
    budget: int | None = None
    objective: str = "step_seconds"
    executable: bool = False
    mip: str = "cbc"
    gap: float = 0.0
    constraints: Constraints = Constraints()

    @property
    def minimises_dollars(self) -> bool:
        """Whether the objective is a price."""
        return self.objective in ("usd_per_step", "usd_per_million_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The ``run:`` section: what `hetrl-launch` needs beyond a plan. Plans need none of it."""

    actor_path: str = ""
    prompts: str = ""
    reward: str = ""
    num_steps: int = 20
    learning_rate: float = 1e-3
    kl_coefficient: float = 0.0
    clip_ratio: float = 0.2
    temperature: float = 1.0
    seed: int = 0
    checkpoint_every: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything the planner is told.

    Parameters
    ----------
    assumed
        Dotted YAML path -> value for everything that came from a default; printed and stored in the plan.
    warnings
        Things the user should know, e.g. that plain ``A100`` was read as the 80 GB card.
    config
        The configuration as read (plain YAML data), stored in the plan so that the job can be rebuilt from it.
    """

    workflow: Workflow
    topology: Topology
    batch: Batch = Batch()
    precision: Precision = Precision()
    optimizer: OptimizerSettings = OptimizerSettings()
    run: RunSettings | None = None
    staleness: int = 0
    assumed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
