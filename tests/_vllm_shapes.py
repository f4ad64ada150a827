"""Stand-ins for vLLM's objects, with the attributes that the connector's halves use."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

BLOCK = 32


class Status(Enum):
    WAITING = 1
    FINISHED_LENGTH_CAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_ABORTED = 4


def request(request_id: str, prompt: list[int] | None, params: object = None, **changes: Any) -> Any:
    values = {
        "request_id": request_id,
        "prompt_token_ids": prompt,
        "num_prompt_tokens": len(prompt or ()),
        "num_computed_tokens": 0,
        "kv_transfer_params": params,
        "lora_request": None,
        "mm_features": [],
        "status": Status.WAITING,
        "abort_immediately": False,
    }
    return SimpleNamespace(**{**values, **changes})


class Blocks:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (self.ids,)


class Tensor:
    """A CPU tensor over numpy, as far as the connector looks at it."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array = array
        self.device = SimpleNamespace(type=device)
        self.dtype = f"torch.{array.dtype}"
        self.shape = array.shape
        self.nbytes = array.nbytes

    def stride(self, dim: int | None = None) -> Any:
        strides = tuple(step // self.array.itemsize for step in self.array.strides)
        return strides if dim is None else strides[dim]

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def as_strided(self, size: tuple[int], stride: tuple[int]) -> Tensor:
        strides = tuple(step * self.array.itemsize for step in stride)
        return Tensor(np.lib.stride_tricks.as_strided(self.array, size, strides))


def kv_caches(num_blocks: int = 16, layers: int = 2, heads: int = 2, head_dim: int = 4) -> dict[str, Tensor]:
    """Layers in vLLM's logical shape (blocks, heads, tokens, K and V), each element a number of its own."""
    shape = (num_blocks, heads, BLOCK, 2 * head_dim)
    size = int(np.prod(shape))
    return {
        f"model.layers.{i}.attn": Tensor(np.arange(i * size, (i + 1) * size, dtype=np.float32).reshape(shape))
        for i in range(layers)
    }


class FullAttentionSpec(SimpleNamespace):
    pass


def kv_cache_config(groups: int = 1) -> Any:
    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=2, head_size=4, kv_quant_mode=SimpleNamespace(name="NONE")
    )
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=[])
    return SimpleNamespace(kv_cache_groups=[group] * groups, kv_cache_layout="LBHNC")


def vllm_config(**parallel: int) -> Any:
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, **parallel}
    return SimpleNamespace(
        model_config=SimpleNamespace(model="/models/tiny", revision=None),
        parallel_config=SimpleNamespace(**sizes),
        speculative_config=None,
    )
