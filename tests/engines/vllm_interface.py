"""What KVFerry's connectors implement, call and read of vLLM, as JSON; `test_interface.py` compares it.

Run in the interpreter that holds vLLM and KVFerry:

    python tests/engines/vllm_interface.py > tests/engines/vllm_interface.json
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import fields
from typing import Any

FUNCTIONS = {
    "vllm.distributed.parallel_state": ["get_pp_group", "get_tensor_model_parallel_rank"],
    "vllm.v1.core.kv_cache_utils": ["resolve_kv_cache_block_sizes"],
    "vllm._custom_ops": ["cpu_attn_reshape_and_cache"],
    "vllm.v1.attention.backends.cpu_attn": ["_get_attn_isa"],
}
# Classes whose attributes we read by name; their own and inherited fields.
DATA = ["AttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MambaSpec"]
DATA += ["KVCacheGroupSpec", "KVCacheConfig"]
USED_FIELDS = {
    "block_size", "num_kv_heads", "head_size", "head_size_v", "kv_quant_mode", "max_tp_shards",
    "num_head_slots", "sliding_window", "attention_chunk_size", "shapes", "mamba_type", "mamba_cache_mode",
    "tp_replicated",
    "layer_names", "kv_cache_spec", "host_resident", "enable_kv_transfer", "num_blocks", "kv_cache_groups",
    "kv_cache_layout", "kv_cache_specs",
}  # fmt: skip


def signature(member: Any) -> str:
    """A method's parameters; a property or class attribute says what it is."""
    if isinstance(member, property):
        return "property"
    function = getattr(member, "__func__", member)
    if not callable(function):
        return "attribute"
    parameters = [str(one.replace(annotation=inspect.Parameter.empty)) for one in _parameters(function)]
    return f"({', '.join(parameters)})"


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def implemented(ours: type, *bases: type) -> dict[str, str]:
    """vLLM's signature of each of its members that our class overrides."""
    found = {}
    for base in bases:
        for name, member in vars(base).items():
            if name in vars(ours) and not name.startswith("__") and name != "_abc_impl":
                found[name] = signature(member)
    return dict(sorted(found.items()))


def surface(*bases: type) -> list[str]:
    """All public members, to notice new ones."""
    return sorted({name for base in bases for name in vars(base) if not name.startswith("_")})


def describe() -> dict[str, Any]:
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
    from vllm.v1 import kv_cache_interface

    from kvferry_vllm.connector import KVFerryConnector
    from kvferry_vllm.ec_connector import KVFerryECConnector

    specs = {name: value for name, value in vars(kv_cache_interface).items() if inspect.isclass(value)}
    kinds = [name for name, value in specs.items() if issubclass(value, kv_cache_interface.KVCacheSpec)]
    functions = {
        f"{module}.{name}": signature(getattr(__import__(module, fromlist=[name]), name))
        for module, names in FUNCTIONS.items()
        for name in names
    }
    return {
        "KVFerryConnector": implemented(KVFerryConnector, KVConnectorBase_V1, SupportsHMA),
        "KVFerryECConnector": implemented(KVFerryECConnector, ECConnectorBase),
        "KV connectors": surface(KVConnectorBase_V1, SupportsHMA),
        "abstract": sorted(KVConnectorBase_V1.__abstractmethods__ | SupportsHMA.__abstractmethods__),
        "kinds of KV cache": sorted(kinds),
        "fields": {
            name: sorted(USED_FIELDS.intersection(field.name for field in fields(specs[name])))
            for name in DATA
        },
        "functions": functions,
    }


if __name__ == "__main__":
    json.dump(describe(), sys.stdout, indent=1)
    sys.stdout.write("\n")
