"""Phases of a model that a vLLM engine runs: generation, and loading new weights.

The engine is started and asked as the rollout workers of a run do it: in this process, eagerly, with seeded sampling
and the log-probabilities of the sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hetrl.spec.devices import DTYPE_BYTES
from hetrl.spec.model import Model
from hetrl_profiler.device import TORCH_DTYPES, ProfiledDevice
from hetrl_profiler.points import Point
from hetrl_profiler.timing import Operation

BLOCK_TOKENS = 128  # vLLM's KV block on a CPU
MAX_NUM_SEQUENCES = 128
GPU_MEMORY_SHARE = 0.5
CPU_BATCHED_TOKENS = 4096
"""Tokens of one iteration of a CPU engine: vLLM's default, and what hetrl's runtime uses."""


class Request(NamedTuple):
    """Prompts, their tokens, and tokens of every response; each prompt gets the profile's number of responses."""

    num_prompts: int
    prompt_tokens: int
    response_tokens: int


REQUESTS = (
    Request(8, 16, 16), Request(1, 16, 16), Request(16, 16, 1), Request(16, 16, 32), Request(4, 64, 32),
    Request(24, 16, 16), Request(2, 200, 8), Request(4, 16, 64), Request(8, 128, 32), Request(1, 16, 128),
)  # fmt: skip
GPU_REQUESTS = (
    Request(8, 512, 128), Request(1, 512, 128), Request(16, 1024, 1), Request(16, 512, 256), Request(4, 1024, 256),
    Request(1, 128, 512), Request(16, 128, 128), Request(2, 2048, 64), Request(8, 1024, 256),
)  # fmt: skip
"""The most useful ones first; with 8 responses per prompt 8 to 192 sequences."""


class EnginePhases:
    """A running engine of one model.

    Parameters
    ----------
    folder
        Config, safetensors weights and tokenizer.
    responses_per_prompt
        Responses that are sampled for each prompt.
    labels
        Labels of every point, among them the model.
    """

    def __init__(
        self, folder: Path, model: Model, device: ProfiledDevice, responses_per_prompt: int, labels: Mapping[str, str]
    ) -> None:
        from vllm import LLM

        self._folder = folder
        self._vocab = model.vocab_size
        self._responses = responses_per_prompt
        self._labels = dict(labels)
        self._seed = 0
        self._num_iterations = 0
        asked = REQUESTS if device.kind == "cpu" else GPU_REQUESTS
        self._requests = [each for each in asked if each.prompt_tokens + each.response_tokens <= model.max_position]
        longest = max(each.prompt_tokens + each.response_tokens for each in self._requests)
        limits: dict[str, Any] = {"gpu_memory_utilization": GPU_MEMORY_SHARE}  # the trained copy needs room, too
        if device.kind == "cpu":
            blocks = MAX_NUM_SEQUENCES * (-(-longest // BLOCK_TOKENS) + 1)
            per_token = model.kv_bytes_per_token_bf16 * DTYPE_BYTES[device.dtype] // 2
            limits = {
                "enforce_eager": True,
                "kv_cache_memory_bytes": blocks * BLOCK_TOKENS * per_token,
                # After a chunk of a prompt vLLM sets a seeded generator back, which CPU generators cannot do.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, longest),
            }
        dtype: Any = TORCH_DTYPES[device.dtype]
        self._llm: Any = LLM(
            model=str(folder),
            dtype=dtype,
            trust_remote_code=False,
            max_model_len=longest,
            max_num_seqs=MAX_NUM_SEQUENCES,
            logprobs_mode="processed_logprobs",
            worker_extension_cls="hetrl_profiler.engine_extension.WeightLoader",
            disable_log_stats=True,
            **limits,
        )

    def points(self) -> list[Point]:
        """Return generation on all requests, and the loading of weights."""
        found = [self.point(request) for request in self._requests]
        load = Point(
            kind="load_weights",
            amounts={"num_bytes": float((self._folder / "model.safetensors").stat().st_size)},
            prepare=self._load_weights,
            labels=self._labels,
        )
        return [*found[:2], load, *found[2:]]

    def point(self, request: Request) -> Point:
        """Return the generation of one request."""
        num_sequences = request.num_prompts * self._responses
        return Point(
            kind="generate",
            amounts={
                "num_sequences": num_sequences,
                "num_prompts": request.num_prompts,
                "num_prompt_tokens": request.num_prompts * request.prompt_tokens,
                "num_response_tokens": num_sequences * request.response_tokens,
                "max_response_tokens": request.response_tokens,
                "max_num_sequences": MAX_NUM_SEQUENCES,
            },
            prepare=lambda: lambda _: self._generate(request),
            results=lambda: {"num_iterations": self._num_iterations},
            labels=self._labels,
        )

    def _generate(self, request: Request) -> None:
        import random

        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        for number in range(request.num_prompts):
            self._seed += 1
            draw = random.Random(self._seed)
            engine.add_request(
                str(number),
                {"prompt_token_ids": [draw.randrange(3, self._vocab) for _ in range(request.prompt_tokens)]},
                SamplingParams(
                    n=self._responses,
                    temperature=1.0,
                    max_tokens=request.response_tokens,
                    ignore_eos=True,
                    logprobs=0,
                    seed=self._seed,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                ),
            )
        iterations, tokens = 0, 0
        while engine.has_unfinished_requests():
            iterations += 1
            for finished in engine.step():
                tokens += sum(len(each.token_ids) for each in finished.outputs)
        if tokens != request.num_prompts * self._responses * request.response_tokens:
            raise RuntimeError(f"the engine gave {tokens} tokens for {request}")
        self._num_iterations = iterations

    def _load_weights(self) -> Operation:
        from safetensors.torch import load_file

        tensors = load_file(self._folder / "model.safetensors")

        def load(_: int) -> None:
            self._llm.collective_rpc("hetrl_load", args=(tensors,))
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("the engine did not drop its cached prefixes")

        return load

    def close(self) -> None:
        """Shut the engine down."""
        self._llm.llm_engine.engine_core.shutdown()
