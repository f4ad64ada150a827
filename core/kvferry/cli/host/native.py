"""The native module, and whether its version is that of the Python package."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from kvferry.cli.host.model import Check, Level, distribution_version
from kvferry.config import explain_changes, load_config
from kvferry.errors import ConfigError

UNKNOWN = "unknown"
_REINSTALL = "pip install --force-reinstall kvferry"


def check_native(load: Callable[[], object] = lambda: importlib.import_module("kvferry._native")) -> Check:
    """Report whether the native module loads and belongs to this version of the package."""
    wanted = package_version()
    try:
        module = load()
    except ImportError as error:
        return Check("native module", Level.ERROR, f"cannot be loaded: {error}", _REINSTALL)
    version = str(getattr(module, "__version__", "unknown"))
    details = {"version": version, "package_version": wanted, "file": str(getattr(module, "__file__", ""))}
    if wanted == UNKNOWN:
        return Check(
            "native module", Level.NOTE, f"version {version}; the package runs uninstalled", "", details
        )
    if version != wanted:
        words = f"version {version} does not belong to the Python package, which is version {wanted}"
        return Check("native module", Level.ERROR, words, _REINSTALL, details)
    return Check("native module", Level.OK, f"version {version}", "", details)


def package_version() -> str:
    """Return the installed version of kvferry; `unknown` if it runs without being installed."""
    return distribution_version("kvferry") or UNKNOWN


def check_settings() -> Check:
    """Report whether the settings of this environment and of the configuration file are valid."""
    try:
        config = load_config()
    except ConfigError as error:
        return Check("settings", Level.ERROR, str(error), "kvferry config --schema")
    return Check("settings", Level.OK, explain_changes(config))
