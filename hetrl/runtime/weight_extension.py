"""The engine's end of a weight update: mixed into vLLM's worker class by ``worker_extension_cls``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from hetrl.runtime.buckets import Bucket
from hetrl.runtime.groups import broadcast_from_trainer, join_store, open_weight_group


class WeightReceiver:
    """Methods added to vLLM's worker."""

    rank: int
    reload_weights: Callable[..., None]
    _hetrl_group: Any

    def hetrl_join(self, host: str, port: int, rank_offset: int, num_ranks: int) -> None:
        """Join the group opened by the trainer."""
        self._hetrl_group = open_weight_group(join_store(host, port), rank_offset + self.rank, num_ranks)

    def hetrl_receive(self, buckets: Iterable[Bucket]) -> None:
        """Receive all weights and load them; a later ``reset_prefix_cache`` is the caller's duty."""

        def received() -> Iterator[tuple[str, torch.Tensor]]:
            for bucket in buckets:
                buffer = torch.empty(bucket.num_elements, dtype=getattr(torch, bucket.dtype))
                broadcast_from_trainer(self._hetrl_group, buffer)
                yield from bucket.split(buffer)

        self.reload_weights(weights_iterator=received())
