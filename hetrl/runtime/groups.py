"""Process groups over gloo: one store for rendezvous, and a group of trainer and engines beside torch's default one."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=300)
_WEIGHTS = "hetrl_weights"
_REPLICAS = "hetrl_replicas"


def open_store(host: str) -> tuple[Any, int]:
    """Open a rendezvous store that listens on ``host`` only; return it and its port."""
    listener = socket.create_server((host, 0))
    port: int = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return store, port


def join_store(host: str, port: int) -> Any:
    """Connect to a store opened elsewhere."""
    return dist.TCPStore(host, port, is_master=False, timeout=TIMEOUT)  # type: ignore[attr-defined]


def join_replicas(store: Any, rank: int, num_ranks: int) -> None:
    """Make the data-parallel replicas torch's default process group; every rank calls this once."""
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(_REPLICAS, store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=num_ranks,
        timeout=TIMEOUT,
    )


def open_weight_group(store: Any, rank: int, num_ranks: int) -> Any:
    """Open the group of the trainer (rank 0) and the engines; every rank calls this once.

    It is stateless: an engine has a default process group of its own already.
    """
    prefixed = dist.PrefixStore(_WEIGHTS, store)  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(prefixed, rank, num_ranks, TIMEOUT)


def broadcast_from_trainer(group: Any, buffer: torch.Tensor) -> None:
    """Send (rank 0) or fill (others) ``buffer``."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([buffer], options).wait()
