"""A whole run: steps, progress, metrics, checkpoints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hetrl.errors import Problem, SpecError
from hetrl.runtime.checkpoint import latest_checkpoint
from hetrl.runtime.metrics import MetricsWriter
from hetrl.runtime.session import Session
from hetrl.runtime.step import StepRecord

MEASUREMENTS_FILE = "measurements.jsonl"


def check_out(out: Path, resume: bool) -> Path | None:
    """Return the checkpoint to go on from, or None for a new run.

    Raises
    ------
    SpecError
        If a new run would write over an old one, there is nothing to resume, or the folder cannot be looked into.
    """
    try:
        taken = _is_taken(out)
        found = latest_checkpoint(out)
    except OSError as error:  # a name that no folder can have, or no right to look
        problem = Problem(path="--out", message=f"cannot be used: {error.strerror}", found=str(out), rule="OUTPUT")
        raise SpecError(problem) from error
    if resume and found is None:
        raise SpecError(Problem(path="--resume", message="no checkpoint to go on from", found=str(out)))
    if not resume and taken:
        raise SpecError(
            Problem(path="--out", message="exists already", found=str(out), valid="another folder, or --resume")
        )
    return found if resume else None


def _is_taken(out: Path) -> bool:
    try:
        out.lstat()
    except FileNotFoundError:
        return False
    return not out.is_dir() or any(out.iterdir())


def run_steps(
    session: Session,
    *,
    num_steps: int,
    out: Path,
    checkpoint_every: int = 0,
    resume_from: Path | None = None,
    console: Console | None = None,
) -> list[StepRecord]:
    """Carry out steps until ``num_steps`` are done, counting those before a resume.

    Parameters
    ----------
    out
        Folder for metrics and checkpoints. A last checkpoint is always written.
    checkpoint_every
        Steps between checkpoints; 0 writes only the last one.
    """
    console = console or Console()
    if resume_from is not None:
        session.restore(resume_from)
    writer = MetricsWriter(out, session.num_steps_done)
    records: list[StepRecord] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("GRPO", total=num_steps, completed=session.num_steps_done)
            while session.num_steps_done < num_steps:
                record = session.step()
                records.append(record)
                writer.write(record)
                progress.update(bar, completed=session.num_steps_done)
                progress.console.print(_line(record), highlight=False, soft_wrap=True)
                if checkpoint_every and session.num_steps_done % checkpoint_every == 0:
                    session.save(out)
        if records and not (checkpoint_every and session.num_steps_done % checkpoint_every == 0):
            session.save(out)
    finally:
        writer.close()
    return records


def _line(record: StepRecord) -> str:
    phases = " ".join(f"{phase} {seconds:.2f}" for phase, seconds in record.phase_seconds.items())
    return (
        f"step {record.step:4d}  reward {record.reward_mean:.3f}  KL {record.kl:.4f}  "
        f"{record.tokens_per_second:6.0f} tokens/s  {record.seconds:.2f} s ({phases})"
    )
