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

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.array[index])

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def as_strided(self, size: tuple[int], stride: tuple[int]) -> Tensor:
        strides = tuple(step * self.array.itemsize for step in stride)
        return Tensor(np.lib.stride_tricks.as_strided(self.array, size, strides))


NUM_BLOCKS = 16


def layer_name(index: int) -> str:
    return f"model.layers.{index}.attn"


def kv_caches(
    num_blocks: int = NUM_BLOCKS, layers: int = 2, heads: int = 2, head_dim: int = 4
) -> dict[str, Tensor]:
    """Layers in vLLM's logical shape (blocks, heads, tokens, K and V), each element a number of its own."""
    shape = (num_blocks, heads, BLOCK, 2 * head_dim)
    size = int(np.prod(shape))
    return {
        layer_name(i): Tensor(np.arange(i * size, (i + 1) * size, dtype=np.float32).reshape(shape))
        for i in range(layers)
    }


class FullAttentionSpec(SimpleNamespace):
    pass


class SlidingWindowSpec(SimpleNamespace):
    pass


class MLAAttentionSpec(SimpleNamespace):
    pass


class MambaSpec(SimpleNamespace):
    pass


def attention(kind: type = FullAttentionSpec, **changes: Any) -> Any:
    values = {
        "block_size": BLOCK,
        "num_kv_heads": 2,
        "head_size": 4,
        "head_size_v": 4,
        "kv_quant_mode": SimpleNamespace(name="NONE"),
    }
    return kind(**{**values, **changes})


def state(**changes: Any) -> Any:
    values = {
        "block_size": 4096,
        "shapes": ((3, 8), (2, 4)),
        "mamba_type": "mamba2",
        "mamba_cache_mode": "none",
        "tp_replicated": False,
    }
    return MambaSpec(**{**values, **changes})


def kv_cache_config(*specs: Any, layers: int = 2, layout: str = "LBHNC") -> Any:
    """One group for each spec, of `layers` layers each; one of full attention by default."""
    groups = [
        SimpleNamespace(
            kv_cache_spec=spec,
            layer_names=[layer_name(i) for i in range(index * layers, (index + 1) * layers)],
        )
        for index, spec in enumerate(specs or [attention()])
    ]
    return SimpleNamespace(kv_cache_groups=groups, kv_cache_layout=layout, num_blocks=NUM_BLOCKS)


def vllm_config(*, heads: int = 2, **parallel: int) -> Any:
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, **parallel}
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="/models/tiny", revision=None, get_total_num_kv_heads=lambda: heads
        ),
        parallel_config=SimpleNamespace(**sizes),
        speculative_config=None,
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
