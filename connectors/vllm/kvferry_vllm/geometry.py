"""From vLLM's KV cache tensors to `KVGeometry` and the memory to register. Free of vLLM imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvferry.errors import UnsupportedError
from kvferry.layout import KVGeometry, KVGroup, Layout


class LayerMemory(NamedTuple):
    """One layer's blocks as one contiguous run of memory; `tensor` is a flat view of it."""

    name: str
    address: int
    length_bytes: int
    num_blocks: int
    tensor: Any

    @property
    def block_bytes(self) -> int:
        """Size of one block."""
        return self.length_bytes // self.num_blocks


def layer_memories(kv_caches: Mapping[str, Any]) -> list[LayerMemory]:
    """Return the memory of each layer, layers that share another one's memory left out.

    `kv_caches`: tensors of logical shape (num_blocks, heads, tokens, content) by layer name. Raises
    UnsupportedError when a layer's blocks are not one run of memory, or lie in device memory.
    """
    found: dict[int, LayerMemory] = {}
    for name in sorted(kv_caches):
        memory = _layer_memory(name, kv_caches[name])
        found.setdefault(memory.address, memory)
    return list(found.values())


def build_geometry(
    vllm_config: Any,
    kv_cache_config: Any,
    layers: list[LayerMemory],
    *,
    tp_rank: int,
    instruction_set: str,
    layout: Layout,
) -> KVGeometry:
    """Return the geometry of this worker's cache.

    `layout` is what `cpu_layout` measured. Opaque blocks are tagged with kernel and `instruction_set`: they
    may only move whole, between workers with equal kernels.
    """
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    sizes = {layer.block_bytes for layer in layers}
    if len(sizes) != 1:
        raise UnsupportedError(
            f"KVFerryConnector needs layers of equal block size, found {sorted(sizes)} bytes"
        )
    device = str(layers[0].tensor.device.type)
    tag = f"vllm/{device}/{instruction_set}/{kv_cache_config.kv_cache_layout or 'default'}"
    group = KVGroup(
        layer_names=tuple(layer.name for layer in layers),
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        block_bytes=sizes.pop(),
        num_blocks=layers[0].num_blocks,
        kind=type(spec).__name__,
        layout=layout,
        kv_split="FUSED" if layout == "OPAQUE" else "KV_HEAD",
        opaque_tag=tag if layout == "OPAQUE" else "",
    )
    model = vllm_config.model_config
    return KVGeometry(
        model=str(model.model),
        revision=str(model.revision or ""),
        dtype=_dtype_name(spec, layers[0].tensor),
        block_size=spec.block_size,
        groups=(group,),
        tp_rank=tp_rank,
        tp_size=vllm_config.parallel_config.tensor_parallel_size,
    )


def _layer_memory(name: str, tensor: Any) -> LayerMemory:
    if tensor.device.type != "cpu":
        raise UnsupportedError(
            f"the KV cache is in {tensor.device.type} memory, and this KVFerryConnector moves host "
            "memory only: it serves vLLM's CPU backend"
        )
    num_blocks, elements = int(tensor.shape[0]), int(tensor.numel())
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if span != elements or tensor.stride(0) * num_blocks != elements:
        raise UnsupportedError(
            f"the blocks of layer {name} are not one run of memory (shape {tuple(tensor.shape)}, strides "
            f"{tuple(tensor.stride())}); use vLLM's KV cache layout LBHNC"
        )
    length_bytes = elements * int(tensor.element_size())
    return LayerMemory(
        name, int(tensor.data_ptr()), length_bytes, num_blocks, tensor.as_strided((elements,), (1,))
    )


def _dtype_name(spec: Any, tensor: Any) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    mode = getattr(spec.kv_quant_mode, "name", "NONE")
    return name if mode == "NONE" else f"{name}/{mode.lower()}"
