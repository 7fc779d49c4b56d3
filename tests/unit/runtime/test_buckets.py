"""Weights packed for an update and unpacked again."""

from __future__ import annotations

import pytest

from hetrl.runtime.buckets import pack


def test_every_tensor_comes_back_and_no_bucket_is_too_large() -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.arange(4.0),
        "large": torch.arange(100.0),
        "half": torch.arange(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(7.0),
    }
    buckets = pack(tensors.items(), max_bytes=40)
    assert [bucket.names for bucket in buckets] == [("a", "b"), ("large",), ("half",), ("scalar",)]
    for bucket in buckets:
        buffer = torch.cat([tensors[name].reshape(-1) for name in bucket.names])
        assert buffer.numel() == bucket.num_elements
        assert str(buffer.dtype) == f"torch.{bucket.dtype}"
        for name, tensor in bucket.split(buffer):
            assert torch.equal(tensor, tensors[name])
            assert tensor.shape == tensors[name].shape


def test_nothing_packs_to_nothing() -> None:
    assert pack([], max_bytes=1) == []
