"""From vLLM's KV cache tensors to `KVGeometry`. Free of vLLM imports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kvferry.errors import UnsupportedError
from kvferry.layout import STATE, CacheMemory, KVGeometry, KVGroup, Layout, Place
from kvferry_vllm.specs import draft_of, is_state, layer_spec, scales_of, total_heads, window_of

NULL_BLOCK = 0  # what vLLM's block lists hold where there is no block


class Ranks(NamedTuple):
    """Which worker this is."""

    tp_rank: int = 0
    pp_rank: int = 0


def build_geometry(
    vllm_config: Any,
    kv_cache_config: Any,
    memory: CacheMemory,
    *,
    ranks: Ranks,
    instruction_set: str,
    measure: Callable[[Any], Layout],
) -> KVGeometry:
    """Return the geometry of this worker's cache.

    `measure` finds out how the attention kernel fills one block, as `cpu_layout.measure_layout` does. Opaque
    blocks are tagged with kernel and `instruction_set`: they may only move whole, between workers with equal
    kernels.
    """
    layout = kv_cache_config.kv_cache_layout or "default"
    tag = f"vllm/cpu/{instruction_set}/{layout}"
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    builder = _Groups(vllm_config, kv_cache_config.num_blocks, memory.places, tag, measure)
    groups = [
        group for table, one in enumerate(kv_cache_config.kv_cache_groups) for group in builder.of(table, one)
    ]
    return KVGeometry(
        model=str(model.model),
        revision=str(model.revision or ""),
        draft=draft_of(vllm_config),
        dtype=_dtype_name(kv_cache_config.kv_cache_groups, memory.places),
        block_size=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
        groups=tuple(groups),
        tp_rank=ranks.tp_rank,
        tp_size=parallel.tensor_parallel_size,
        pp_rank=ranks.pp_rank,
        pp_size=parallel.pipeline_parallel_size,
    )


class _Groups:
    """Makes our groups of vLLM's."""

    def __init__(
        self,
        vllm_config: Any,
        num_blocks: int,
        places: Mapping[str, Place],
        tag: str,
        measure: Callable[[Any], Layout],
    ) -> None:
        self._config = vllm_config
        self._num_blocks = num_blocks
        self._places = places
        self._tag = tag
        self._measure = measure

    def of(self, table: int, group: Any) -> list[KVGroup]:
        """One group for the layers of vLLM's group that look the same; mostly that is all of them."""
        by_form: dict[Any, list[str]] = defaultdict(list)
        seen = set()
        for name in sorted(group.layer_names):
            place = self._places.get(name)
            if place is None or (place.region, place.offset) in seen:
                continue  # no cache of its own: it reads another layer's
            seen.add((place.region, place.offset))
            shape = place.tensor.shape, place.tensor.stride(), str(place.tensor.dtype)
            by_form[(shape, str(layer_spec(group.kv_cache_spec, name)))].append(name)
        if not by_form:  # they are all in other pipeline stages
            spec = layer_spec(group.kv_cache_spec, "")
            return [self._finish(table, spec, [], {"layout": "OPAQUE", "block_bytes": 1, "head_dim": 1})]
        return [
            self._finish(table, spec, names, self._form(spec, self._places[names[0]]))
            for names in by_form.values()
            for spec in [layer_spec(group.kv_cache_spec, names[0])]
        ]

    def _form(self, spec: Any, place: Place) -> dict[str, Any]:
        """What one block looks like: `layout` and what goes with it."""
        whole = place.content(3)
        kernel_blocks = int(place.tensor.shape[0]) // self._num_blocks
        form = {
            "layout": "OPAQUE",
            "block_bytes": whole * kernel_blocks,
            "block_stride": place.stride(0) * kernel_blocks,
            "head_dim": 1 if is_state(spec) else spec.head_size,
        }
        token_major = place.stride(1) == place.content(1) and place.stride(2) == place.content(1) * int(
            place.tensor.shape[1]
        )
        packed = token_major or (place.stride(2) == place.content(1) and place.stride(1) == place.content(2))
        plain = not is_state(spec) and place.content(1) == _plain_content(spec, place)
        if plain and packed and not token_major and kernel_blocks == 1:
            form["layout"] = self._measure(place.tensor[0])
            form["kv_split"] = "KV_HEAD" if form["layout"] == "HND_KT" else "FUSED"
        if form["layout"] == "OPAQUE" and not packed:
            raise UnsupportedError(
                f"the blocks of region {place.region} are not one run of memory each (shape "
                f"{tuple(place.tensor.shape)}, strides {tuple(place.tensor.stride())}); use vLLM's KV cache "
                "layout LBHNC"
            )
        return form

    def _finish(self, table: int, spec: Any, names: list[str], form: Mapping[str, Any]) -> KVGroup:
        parallel = self._config.parallel_config
        places = [self._places[name] for name in names]
        state = is_state(spec)
        tag = f"{self._tag}/{spec.mamba_type}/{spec.mamba_cache_mode}/{spec.shapes}" if state else self._tag
        return KVGroup(
            layer_names=tuple(names),
            kv_heads=1 if state else spec.num_kv_heads,
            total_kv_heads=total_heads(spec, self._config.model_config, parallel.tensor_parallel_size),
            num_blocks=self._num_blocks,
            kind=STATE if state else type(spec).__name__,
            opaque_tag=tag[:255] if form["layout"] == "OPAQUE" and names else "",
            window=window_of(spec),
            null_block=NULL_BLOCK,
            block_size=spec.block_size,
            regions=tuple(place.region for place in places),
            offsets=tuple(place.offset for place in places),
            table=table,
            scales=scales_of(spec, names, self._config),
            **form,
        )


def _plain_content(spec: Any, place: Place) -> int:
    """Bytes of one token's K and V of one head, if nothing else is kept beside them."""
    if getattr(spec, "num_head_slots", None) is not None or getattr(spec, "head_size_v", 0) != spec.head_size:
        return -1
    return 2 * int(spec.head_size) * int(place.tensor.element_size())


def _dtype_name(groups: Iterable[Any], places: Mapping[str, Place]) -> str:
    """The cache's dtype and quantisation; of hybrid models that of the attention layers."""
    names = set()
    for group in groups:
        for layer in group.layer_names:
            spec = layer_spec(group.kv_cache_spec, layer)
            if is_state(spec) or layer not in places:
                continue
            name = str(places[layer].tensor.dtype).removeprefix("torch.")
            mode = getattr(spec.kv_quant_mode, "name", "NONE")
            names.add(name if mode == "NONE" else f"{name}/{mode.lower()}")
    return "+".join(sorted(names)) or "state"
