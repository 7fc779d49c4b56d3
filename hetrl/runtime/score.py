"""Score worker: log-probabilities of sampled sequences under a frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetrl.runtime.sequences import SampledSequence
from hetrl.runtime.worker import Worker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ScoreWorker(Worker):
    """One replica of a score task.

    Parameters
    ----------
    model_path
        Folder with config and safetensors weights.
    dtype
        Torch's name of the compute dtype.
    """

    def __init__(self, core_index: int, *, model_path: str, dtype: str) -> None:
        super().__init__(core_index)
        from hetrl.runtime.language_model import load_model

        self._model = load_model(model_path, dtype).eval()

    def log_probs(
        self, sequences: Sequence[SampledSequence], *, temperature: float, micro_batch_size: int
    ) -> list[NDArray[np.float32]]:
        """Return one array of shape (R,) per sequence."""
        from hetrl.runtime.language_model import response_log_probs

        with self.phase("score") as amounts:
            found = response_log_probs(self._model, sequences, temperature, micro_batch_size)
            amounts.update(
                num_sequences=len(sequences),
                num_tokens=sum(sequence.num_tokens for sequence in sequences),
                micro_batch_size=micro_batch_size,
            )
        return found

    def close(self) -> None:
        """Nothing outlives the process."""
