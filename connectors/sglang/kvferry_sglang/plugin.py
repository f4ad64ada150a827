"""The `sglang.srt.plugins` entry point: makes our parts known to SGLang by name.

It runs in every SGLang process, before the command line is parsed. Each part is a module with a function
`register`. SGLang logs what a plug-in raises and starts without it, so
that a part that cannot be registered shows as a name that SGLang does not know.
"""

from __future__ import annotations

import importlib
import logging

from kvferry.errors import UnsupportedError
from kvferry_sglang import _support

PARTS = (
    "kvferry_sglang.names",
    "kvferry_sglang.pd.backend",
    "kvferry_sglang.live.weights",
    "kvferry_sglang.live.roles",
)

logger = logging.getLogger("kvferry.sglang")


def register() -> None:
    """Register the parts. May be called repeatedly; never keeps SGLang from starting without us."""
    try:
        _support.check_version(_sglang_version())
    except UnsupportedError as error:
        logger.error("%s", error)
        return
    for part in PARTS:
        try:
            importlib.import_module(part).register()
        except (ImportError, AttributeError) as error:
            logger.warning("%s is not available in this SGLang: %s", part, error)


def _sglang_version() -> str:
    return str(importlib.import_module("sglang.version").__version__)
