"""Rollout worker: a vLLM engine that samples responses and takes weight updates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from hetrl.runtime.buckets import Bucket
from hetrl.runtime.sequences import Prompt, SampledSequence
from hetrl.runtime.worker import Worker

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput

_SEED_LIMIT = 2**31
BATCHED_TOKENS = 4096
"""Tokens of one iteration of a CPU engine, vLLM's own default; a longer sequence raises it to its length."""


class RolloutWorker(Worker):
    """One replica of the generation task.

    Parameters
    ----------
    model_path
        Folder with config, safetensors weights and tokenizer.
    dtype
        Torch's name of the compute dtype.
    max_model_tokens
        Longest sequence, prompt and response.
    max_num_sequences
        The engine's limit of concurrent sequences.
    kv_cache_bytes
        Memory of the KV cache.
    """

    def __init__(
        self,
        core_index: int,
        *,
        model_path: str,
        dtype: Literal["float32"],
        max_model_tokens: int,
        max_num_sequences: int,
        kv_cache_bytes: int,
    ) -> None:
        super().__init__(core_index)
        from vllm import LLM

        self._llm = LLM(
            model=model_path,
            dtype=dtype,
            trust_remote_code=False,
            enforce_eager=True,
            max_model_len=max_model_tokens,
            max_num_seqs=max_num_sequences,
            # After a chunk of a prompt vLLM sets a seeded generator back, which CPU generators cannot do.
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(BATCHED_TOKENS, max_model_tokens, max_num_sequences),
            kv_cache_memory_bytes=kv_cache_bytes,
            logprobs_mode="processed_logprobs",
            worker_extension_cls="hetrl.runtime.weight_extension.WeightReceiver",
            disable_log_stats=True,
        )
        self._tokenizer = self._llm.get_tokenizer()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the length of every text in tokens."""
        return [len(self._tokenizer.encode(text)) for text in texts]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        num_responses: int,
        max_response_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[SampledSequence]:
        """Sample ``num_responses`` responses per prompt.

        The random numbers of a response depend on ``seed``, its prompt and its number only, so that shares do not
        change what is sampled.

        Returns
        -------
        list
            Prompt by prompt, in the order given.
        """
        from vllm import RequestOutput, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        with self.phase("generate") as amounts:
            engine = self._llm.llm_engine
            tokens = {prompt.index: self._tokenizer.encode(prompt.text) for prompt in prompts}
            for index, prompt_tokens in tokens.items():
                engine.add_request(
                    str(index),
                    {"prompt_token_ids": prompt_tokens},
                    SamplingParams(
                        n=num_responses,
                        temperature=temperature,
                        max_tokens=max_response_tokens,
                        logprobs=0,
                        seed=(seed * 1_000_003 + index * num_responses) % _SEED_LIMIT,
                        detokenize=False,
                        output_kind=RequestOutputKind.FINAL_ONLY,
                    ),
                )
            outputs: dict[int, list[SampledSequence]] = {prompt.index: [] for prompt in prompts}
            num_iterations = 0
            while engine.has_unfinished_requests():
                num_iterations += 1
                for request in engine.step():
                    index = int(request.request_id)
                    assert isinstance(request, RequestOutput)
                    for completion in request.outputs:
                        outputs[index].append(self._sequence(index, tokens[index], completion))
            sequences = [sequence for prompt in prompts for sequence in outputs[prompt.index]]
            if len(sequences) != len(prompts) * num_responses:
                raise RuntimeError(f"{len(sequences)} of {len(prompts) * num_responses} responses came back")
            amounts.update(
                num_prompts=len(prompts),
                num_sequences=len(sequences),
                num_prompt_tokens=sum(len(prompt_tokens) for prompt_tokens in tokens.values()),
                num_response_tokens=sum(len(sequence.response_tokens) for sequence in sequences),
                num_iterations=num_iterations,
            )
        return sequences

    def _sequence(self, index: int, prompt_tokens: list[int], completion: CompletionOutput) -> SampledSequence:
        tokens = list(completion.token_ids)
        entries = [entry or {} for entry in completion.logprobs or ()]
        return SampledSequence(
            prompt_index=index,
            prompt_tokens=np.asarray(prompt_tokens, dtype=np.int64),
            response_tokens=np.asarray(tokens, dtype=np.int64),
            engine_log_probs=np.asarray(
                [entry[token].logprob for entry, token in zip(entries, tokens, strict=True)],
                dtype=np.float32,
            ),
            text=self._tokenizer.decode(tokens, skip_special_tokens=True),
        )

    def join_weight_group(self, host: str, port: int, rank: int, num_ranks: int) -> None:
        """Join the trainer's weight-update group."""
        self._llm.collective_rpc("hetrl_join", args=(host, port, rank, num_ranks))

    def receive_weights(self, buckets: Sequence[Bucket]) -> None:
        """Take the trainer's weights; cached prefixes of the old weights are dropped."""
        start = time.perf_counter()
        self._llm.collective_rpc("hetrl_receive", args=(list(buckets),))
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the engine did not drop its cached prefixes: outputs would come from old weights")
        self.add_timing("receive_weights", time.perf_counter() - start, {"num_buckets": len(buckets)})

    def close(self) -> None:
        """Shut the engine down."""
        self._llm.llm_engine.engine_core.shutdown()
