"""A new vLLM changes what the connectors build on: say what, before anything fails in other ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.engine_lab import LabEngine
from engines.harness import vllm_python

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

# What the connector leaves as vLLM has it, and why that is right.
LEFT = {
    "bind_kv_cache_manager": "calls bind_gpu_block_pool, which is all that is needed",
    "clear_connector_metadata": "vLLM's own bookkeeping",
    "finish_forward": "for caches that are written by streams of a device",
    "get_block_ids_with_load_errors": "a failed load names its request, see get_transfer_results",
    "get_finished": "see get_transfer_results",
    "get_finished_count": "all workers report: each has its part of a lease and of a load",
    "get_kv_connector_kv_cache_events": "every server reaches the pool, so that its blocks need no events",
    "get_mem_pool_context": "for memory of devices",
    "handle_preemptions": "blocks that are saved are held, and streams see a preemption by its number",
    "has_connector_metadata": "vLLM's own bookkeeping",
    "has_pending_block_frees": "False: a save on a node that hangs would hold up whoever needs a block",
    "register_finished_partial_tail": "False: the pool has whole blocks",
    "request_finished": "request_finished_all_groups is called instead, whatever the number of groups",
    "requires_kv_delivery": "True for producers: a hand-off is a promise; what is only saved may be lost",
    "reset_capture_state": "nothing is captured",
    "role": "vLLM's own bookkeeping",
    "set_host_xfer_buffer_ops": "for caches that are copied through host memory",
    "set_xfer_handshake_metadata": "set_xfer_handshake_metadata_pp_aware is called instead",
    "supports_divergent_local_hybrid_hits": "False: states are handed off whole, not restored in part",
    "take_events": "see get_kv_connector_kv_cache_events",
}

SCRIPT = Path(__file__).parents[1] / "vllm_interface.py"
KNOWN = SCRIPT.with_suffix(".json")


def changes(known: Any, found: Any, where: str = "") -> list[str]:
    """One line per difference."""
    if isinstance(known, dict):
        names = sorted(known.keys() | found.keys())
        return [
            line for name in names for line in changes(known.get(name), found.get(name), f"{where} / {name}")
        ]
    if isinstance(known, list):
        gone, new = sorted(set(known) - set(found)), sorted(set(found) - set(known))
        return [f"{where}: {name} is gone" for name in gone] + [f"{where}: {name} is new" for name in new]
    return [] if known == found else [f"{where}: was {known}, is {found}"]


def test_what_we_use_of_vllm_is_as_we_know_it() -> None:
    done = subprocess.run([vllm_python(), SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("{") :])
    different = changes(json.loads(KNOWN.read_text(encoding="utf-8")), found)
    assert not different, (
        "\n".join(different) + f"\nadapt the connector, then renew {KNOWN.name} as {SCRIPT.name} says"
    )


def test_what_is_left_as_vllm_has_it_was_decided() -> None:
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    assert set(known["KV connectors"]) - set(known["KVFerryConnector"]) == set(LEFT)


def test_who_must_deliver_what_it_computed(prefill: LabEngine, decode: LabEngine) -> None:
    """After a preemption a prefill engine computes anew what it hands off; a decode engine need not."""
    assert prefill.state()["delivers"] is True
    assert decode.state()["delivers"] is False


def test_a_wrong_option_is_refused_when_vllm_makes_its_configuration() -> None:
    code = (
        "from kvferry_vllm.connector import KVFerryConnector as C\n"
        "print(C.requires_piecewise_for_cudagraph({'handoff': {'lease_s': 60.0}}))\n"
        "C.requires_piecewise_for_cudagraph({'handoff': {'leases_s': 60.0}})\n"
    )
    done = subprocess.run(
        [vllm_python(), "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr[-3000:]
    assert (
        'unknown key "handoff.leases_s" in kv_connector_extra_config, did you mean "handoff.lease_s"?'
        in done.stderr
    ), done.stderr[-3000:]


def test_changes_are_named() -> None:
    known = {"a": {"f": "(x)", "g": "(y)"}, "kinds": ["one", "two"]}
    found = {"a": {"f": "(x, z)", "g": "(y)"}, "kinds": ["two", "three"]}
    assert changes(known, found) == [
        " / a / f: was (x), is (x, z)",
        " / kinds: one is gone",
        " / kinds: three is new",
    ]
