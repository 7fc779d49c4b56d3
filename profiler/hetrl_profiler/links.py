"""Two processes of this machine that send to each other over gloo: the loopback as a link."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty
from typing import Any, NamedTuple

import numpy as np

from hetrl.errors import RunError

SIZES = (2**10, 2**14, 2**17, 2**20, 2**22, 2**24)
WINDOW_SECONDS = 0.1
NUM_WINDOWS = 3
TIMEOUT_SECONDS = 120.0


class LinkSample(NamedTuple):
    """Seconds of one operation on a buffer, and the relative range of its windows."""

    operation: str
    num_bytes: int
    seconds: float
    spread: float


def measure_loopback(sizes: Sequence[int] = SIZES) -> list[LinkSample]:
    """Time ``send`` (half a round trip) and ``all_reduce`` between two processes, each on a core of its own if it can.

    Raises
    ------
    RunError
        If a process fails.
    """
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ranks = [context.Process(target=_rank, args=(rank, port, tuple(sizes), answers), daemon=True) for rank in (0, 1)]
    for process in ranks:
        process.start()
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                found: list[LinkSample] = answers.get(timeout=0.5)
                return found
            except Empty:
                failed = [process.exitcode for process in ranks if process.exitcode not in (None, 0)]
                if failed or time.monotonic() > deadline:
                    reason = f"exit code {failed[0]}" if failed else f"no answer in {TIMEOUT_SECONDS:.0f} s"
                    raise RunError(f"measuring the loopback failed: {reason}") from None
    finally:
        for process in ranks:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _rank(rank: int, port: int, sizes: tuple[int, ...], answers: Any) -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a link joins two cores, wherever this process was pinned
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    found = []
    for size in sizes:
        buffer = torch.ones(size // 4)

        def exchange(buffer: torch.Tensor = buffer) -> None:
            for source in (0, 1):
                if rank == source:
                    dist.send(buffer, 1 - rank)
                else:
                    dist.recv(buffer, 1 - rank)

        def reduce(buffer: torch.Tensor = buffer) -> None:
            dist.all_reduce(buffer)
            buffer.fill_(1.0)

        for name, call, share in (("send", exchange, 0.5), ("all_reduce", reduce, 1.0)):
            seconds, spread = _windows(call)
            found.append(LinkSample(name, size, share * seconds, spread))
    if rank == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def _windows(call: Callable[[], None]) -> tuple[float, float]:
    """Median seconds of a call over windows, and their relative range. Both ranks make the same number of calls."""
    import torch
    import torch.distributed as dist

    call()
    dist.barrier()
    start = time.perf_counter()
    call()
    first = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    num_calls = int(np.clip(WINDOW_SECONDS / float(first), 1, 2000))
    windows = []
    for _ in range(NUM_WINDOWS):
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        windows.append((time.perf_counter() - start) / num_calls)
    return float(np.median(windows)), float((max(windows) - min(windows)) / np.median(windows))
