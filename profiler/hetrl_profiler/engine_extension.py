"""Mixed into vLLM's worker class by ``worker_extension_cls``: loading new weights into a running engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class WeightLoader:
    """Methods added to vLLM's worker."""

    reload_weights: Callable[..., None]

    def hetrl_load(self, tensors: Mapping[str, Any]) -> None:
        """Load weights that are in this process's memory already."""
        self.reload_weights(weights_iterator=iter(tensors.items()))
