"""Links by what goes over them: processes that send and reduce, over gloo between CPU cores or NCCL between GPUs.

Every rank runs `run_rank`; inside one host they are processes of this machine, across hosts Ray starts them. All ranks
make the same calls, and the first one's clock counts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetrl.errors import RunError

if TYPE_CHECKING:
    import torch

SIZES = (2**10, 2**14, 2**17, 2**20, 2**22, 2**24)
GPU_SIZES = (2**10, 2**14, 2**17, 2**20, 2**22, 2**24, 2**26, 2**28)
OPERATIONS = ("send", "all_reduce", "all_gather", "reduce_scatter")
WINDOW_SECONDS = 0.1
NUM_WINDOWS = 3
TIMEOUT_SECONDS = 120.0


class LinkSample(NamedTuple):
    """Seconds of one operation among some ranks on a full buffer, and the relative range of its windows."""

    operation: str
    num_ranks: int
    num_bytes: int
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What all ranks must know.

    Parameters
    ----------
    kind
        ``cpu`` (gloo; each rank stays on one core), ``cuda`` or ``rocm`` (NCCL, RCCL).
    places
        Core or GPU of every rank on its own machine.
    operations
        Which of `OPERATIONS`; ``send`` is between the first two ranks.
    sizes
        Bytes of the full buffers.
    """

    kind: str
    places: tuple[int, ...]
    operations: tuple[str, ...] = OPERATIONS
    sizes: tuple[int, ...] = SIZES


def measure_host(ranks: Ranks) -> list[LinkSample]:
    """Time operations among processes of this machine.

    Raises
    ------
    RunError
        If a process fails.
    """
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    port = free_port()
    processes = [
        context.Process(target=_answer, args=(rank, ranks, "127.0.0.1", port, answers), daemon=True)
        for rank in range(len(ranks.places))
    ]
    try:
        with _children_without_interrupts():
            for process in processes:
                process.start()
        found = _answer_of(processes, answers)
        for process in processes:
            process.join(timeout=10)
        return found
    finally:
        left = [process for process in processes if process.is_alive()]
        for process in left:  # all at once: a rank whose peer is gone complains
            process.kill()
        for process in left:
            process.join()


@contextlib.contextmanager
def _children_without_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C leaves alone, even while they import: this process ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer_of(processes: Sequence[BaseProcess], answers: Any) -> list[LinkSample]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            found: list[LinkSample] = answers.get(timeout=0.5)
            return found
        except Empty:
            failed = [process.exitcode for process in processes if process.exitcode not in (None, 0)]
            if failed or time.monotonic() > deadline:
                reason = f"exit code {failed[0]}" if failed else f"no answer in {TIMEOUT_SECONDS:.0f} s"
                raise RunError(f"measuring links failed: {reason}") from None


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _answer(rank: int, ranks: Ranks, host: str, port: int, answers: Any) -> None:
    found = run_rank(rank, ranks, host, port)
    if rank == 0:
        answers.put(found)


def run_rank(rank: int, ranks: Ranks, host: str, port: int) -> list[LinkSample]:
    """Take part as one rank; ``host`` and ``port`` are the first rank's."""
    import torch
    import torch.distributed as dist

    if ranks.kind == "cpu":
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a link joins two cores, wherever this process was pinned
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[ranks.places[rank] % len(cores)]})
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(ranks.places[rank])
    world = len(ranks.places)
    dist.init_process_group(
        "gloo" if ranks.kind == "cpu" else "nccl",
        init_method=f"tcp://{host}:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    try:
        found = []
        for size in ranks.sizes:
            for name in ranks.operations:
                call, share = _call(name, size, rank, ranks)
                seconds, spread = _windows(call, ranks.kind)
                found.append(LinkSample(name, 2 if name == "send" else world, size, share * seconds, spread))
        dist.barrier()
        return found
    finally:
        dist.destroy_process_group()


def _call(name: str, size: int, rank: int, ranks: Ranks) -> tuple[Callable[[], None], float]:
    """One call of an operation on a full buffer of ``size`` bytes, and the share of it that counts."""
    import torch
    import torch.distributed as dist

    world = len(ranks.places)
    device = "cpu" if ranks.kind == "cpu" else f"cuda:{ranks.places[rank]}"
    part = torch.ones(max(1, size // 4 // world), device=device)
    whole = torch.ones(part.numel() * world, device=device)

    # torch 2.13 renamed these two
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def exchange() -> None:
        for source in (0, 1):
            if rank == source:
                dist.send(whole, 1 - rank)
            elif rank == 1 - source:
                dist.recv(whole, source)

    calls: dict[str, tuple[Callable[[], None], float]] = {
        "send": (exchange, 0.5),
        "all_reduce": (lambda: _reduced(whole), 1.0),
        "all_gather": (lambda: _ignored(all_gather(whole, part)), 1.0),
        "reduce_scatter": (lambda: _ignored(reduce_scatter(part, whole)), 1.0),
    }
    return calls[name]


def _reduced(buffer: torch.Tensor) -> None:
    import torch.distributed as dist

    dist.all_reduce(buffer)
    buffer.fill_(1.0)  # or the sums of many calls overflow


def _ignored(_: object) -> None:
    return None


def _windows(call: Callable[[], None], kind: str) -> tuple[float, float]:
    """Median seconds of a call over windows, and their relative range. All ranks make the same number of calls."""
    import torch
    import torch.distributed as dist

    def synchronize() -> None:
        if kind != "cpu":
            torch.cuda.synchronize()

    def timed(num_calls: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        synchronize()
        return (time.perf_counter() - start) / num_calls

    call()
    dist.barrier()
    first = torch.tensor(timed(1), dtype=torch.float64 if kind == "cpu" else torch.float32)
    if kind != "cpu":
        first = first.cuda()
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    num_calls = int(np.clip(WINDOW_SECONDS / float(first), 1, 2000))
    windows = [timed(num_calls) for _ in range(NUM_WINDOWS)]
    return float(np.median(windows)), float((max(windows) - min(windows)) / np.median(windows))


def world_sizes(num_places: int) -> list[int]:
    """Numbers of ranks that are measured on a host: powers of two, and all of its places."""
    sizes = [2**power for power in range(1, 8) if 2**power <= num_places]
    return sizes if not sizes or sizes[-1] == num_places else [*sizes, num_places]


def host_samples(kind: str, places: Sequence[int], *, sizes: Sequence[int]) -> list[LinkSample]:
    """Measure sends between two places of this host, and collectives among two, four, ... and all of them."""
    found = []
    for number in world_sizes(len(places)):
        operations = OPERATIONS if number == 2 else OPERATIONS[1:]
        found += measure_host(
            Ranks(kind=kind, places=tuple(places[:number]), operations=operations, sizes=tuple(sizes))
        )
    return found
