"""Connectors with a store that do not run on a CPU: tried, so that the day they do is noticed."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.vllm_bench.run import ENGINE, PREFIX, TAIL, Run, fresh_folder

ATTEMPTS: dict[str, dict[str, Any]] = {
    "OffloadingConnector": {"cpu_bytes_to_use": 1 << 28},
    "SimpleCPUOffloadConnector": {"cpu_bytes_to_use": 1 << 28},
    "LMCacheConnectorV1": {},
    "MooncakeConnector": {},
}
_ENDED = re.compile(r"^ENDED BY (.+)$", re.MULTILINE)


def try_others(run: Run) -> dict[str, str]:
    """Start an engine with each and ask it once; by connector the error that ended it, empty if none did."""
    return {name: _tried(run, name, extra) for name, extra in ATTEMPTS.items()}


def _tried(run: Run, name: str, extra: dict[str, Any]) -> str:
    kv = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    environ = {
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.2",
        "LMCACHE_TRACK_USAGE": "false",
    }
    environ["TMPDIR"] = str(fresh_folder(run.folder, name))
    try:
        engine = run.lab.start(None, kv=kv, environ=environ, model=str(run.model), **ENGINE)
        prefix = run.tokens(PREFIX)
        run.ask(engine, [*prefix, *run.tokens(TAIL)])
        run.forget(engine)
        found = run.ask(engine, [*prefix, *run.tokens(TAIL)])["cached"]
        run.lab.stop(engine)
    except AssertionError as error:
        return last_error(str(error))
    return "" if found else "it starts, but finds nothing of what it has computed before"


def last_error(log: str) -> str:
    """What ended an engine, on one line."""
    found = _ENDED.findall(log)
    return found[-1].strip() if found else "it ended without saying why"
