"""The engine's end of a weight update: mixed into vLLM's worker class by ``worker_extension_cls``.

vLLM's worker already has its own default process group, so the extension opens a second, stateless gloo group
whose rank 0 is the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from hetrl.runtime.buckets import Bucket

TIMEOUT = timedelta(seconds=300)
GROUP = "hetrl_weight_sync"


def open_group(store: TCPStore, rank: int, num_ranks: int) -> ProcessGroupGloo:
    """Open the group of the trainer (rank 0) and the engines; every rank calls this once."""
    return ProcessGroupGloo(PrefixStore(GROUP, store), rank, num_ranks, TIMEOUT)


def broadcast_from_trainer(group: ProcessGroupGloo, buffer: torch.Tensor) -> None:
    """Send (rank 0) or fill (others) ``buffer``."""
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([buffer], options).wait()


class WeightReceiver:
    """Methods added to vLLM's worker."""

    rank: int
    reload_weights: Callable[..., None]
    _hetrl_store: TCPStore
    _hetrl_group: ProcessGroupGloo

    def hetrl_join(self, host: str, port: int, rank_offset: int, num_ranks: int) -> None:
        """Join the group opened by the trainer."""
        self._hetrl_store = TCPStore(host, port, is_master=False, timeout=TIMEOUT)
        self._hetrl_group = open_group(self._hetrl_store, rank_offset + self.rank, num_ranks)

    def hetrl_receive(self, buckets: Iterable[Bucket]) -> None:
        """Receive all weights and load them; a later ``reset_prefix_cache`` is the caller's duty."""

        def received() -> Iterator[tuple[str, Any]]:
            for bucket in buckets:
                buffer = torch.empty(bucket.num_elements, dtype=getattr(torch, bucket.dtype))
                broadcast_from_trainer(self._hetrl_group, buffer)
                yield from bucket.split(buffer)

        self.reload_weights(weights_iterator=received())
