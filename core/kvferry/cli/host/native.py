"""The native module, and whether its version is that of the Python package."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Callable

from kvferry.cli.host.model import Check, Level, distribution_version
from kvferry.cli.host.settings import problems
from kvferry.config import Config, TransferOptions, explain_changes, load_config
from kvferry.errors import ConfigError, KVFerryError

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


def try_engine(options: TransferOptions) -> None:
    """Start an engine with these options and close it. Raises ImportError, `KVFerryError`."""
    from kvferry.transfer import Engine

    Engine(options).close()


def check_settings(start: Callable[[TransferOptions], None] = try_engine) -> Check:
    """Report whether the settings of this environment and of the configuration file are valid.

    The engine has the last word on the transfer settings, so it is started with them.
    """
    try:
        config = load_config()
    except ConfigError as error:
        return Check("settings", Level.ERROR, str(error), "kvferry config --schema")
    wrong = problems(config)
    if wrong:
        return Check("settings", Level.ERROR, "; ".join(wrong), "correct them; see kvferry config --explain")
    try:
        start(config.transfer)
    except ImportError:
        return Check("settings", Level.OK, explain_changes(config))  # `check_native` reports it
    except KVFerryError as error:
        return _refused(config, error)
    return Check("settings", Level.OK, explain_changes(config))


def _refused(config: Config, error: KVFerryError) -> Check:
    """Report settings with which no engine starts."""
    if f"(errno {errno.EADDRINUSE})" in str(error):
        words = f"transfer.bind (from {config.sources['transfer.bind']}): {error}"
        fix = "nothing if a running engine has it, else set transfer.bind to another port, or to port 0"
        return Check("settings", Level.WARNING, words, fix)
    # The engine's message begins with the option's name, except for these two.
    name = "bind" if str(error).startswith("cannot bind") else str(error).replace(":", " ").partition(" ")[0]
    name = "transports" if name == "transport" else name
    source = config.sources.get(f"transfer.{name}", "")
    fix = f"correct transfer.{name} (from {source})" if source else "correct the section transfer"
    return Check("settings", Level.ERROR, f"no engine starts: {error}", f"{fix}; see kvferry config --schema")
