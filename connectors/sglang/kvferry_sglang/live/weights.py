"""Weights that are replaced while the server runs: until somebody names them, their pages are its own.

Pages are named by the weights' path and version. SGLang replaces weights without asking for either to be
new, so that pages of the old ones would be found for the new ones. Here each replacement first takes the
server's pages out of everybody's reach, under a word that no other server has. They come back under path and
version alone when a request has said which weights these are (`weight_version`, or another path), and SGLang
has since emptied its own caches, which may have had pages of the weights before.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_model, get_parallel, get_serving

_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_UPDATES = ("disk", "distributed", "tensor", "ipc")


class Weights:
    """Which weights a process has, beside path and version. Thread-safe; changed by one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server = ""  # a random word, the same in all ranks whose pages may be the same
        self._count = 0
        self._private = self._named = self._stale = self._open = False

    @property
    def word(self) -> str:
        """What tells these weights from others of the same path and version; empty if nothing needs to."""
        with self._lock:
            return f"{self._server}.{self._count}" if self._private else ""

    def replace(self, server: str = "", *, begin: bool = False) -> None:
        """Note that they are about to be replaced, by several requests if `begin`."""
        with self._lock:
            self._server = self._server or server
            self._count += 1
            if begin or not self._open:
                self._named = False
            self._open = self._open or begin
            self._private = self._stale = True

    @property
    def unheard_of(self) -> bool:
        """Whether they were never replaced, so that `replace` needs the server's word."""
        with self._lock:
            return not self._server

    def name(self) -> None:
        """Note that somebody has said which these are."""
        with self._lock:
            self._named = True
            self._settle()

    def finish(self) -> None:
        """Note that the last of several requests has come."""
        with self._lock:
            self._open = False
            self._settle()

    def flushed(self) -> None:
        """Note that no cache of SGLang's has pages of the weights before."""
        with self._lock:
            self._count += self._stale  # some of those may have been saved since
            self._stale = False
            self._settle()

    def _settle(self) -> None:
        if self._named and not self._stale and not self._open:
            self._private = False


WEIGHTS = Weights()


def replaced_settings() -> dict[str, Any]:
    """Return what SGLang changes of its settings when it replaces the weights; nothing where it has none."""
    try:
        model, serving = get_model(), get_serving()
    except ValueError:  # no server was started
        return {}
    return {
        "model_path": model.model_path,
        "load_format": model.load_format,
        "weight_version": serving.weight_version,
        "unnamed_weights": WEIGHTS.word,
    }


def register() -> None:
    """Have SGLang tell of each replacement and each emptied cache."""
    hooks: dict[str, Callable[..., Any]] = {
        f"{_UPDATER}.begin_weight_update": begun,
        f"{_UPDATER}.end_weight_update": ended,
        f"{_SCHEDULER}.flush_cache": flushed,
        f"{_SCHEDULER}.handle_update_weight_version": versioned,
        **{f"{_UPDATER}.update_weights_from_{kind}": replaced for kind in _UPDATES},
    }
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def replaced(original: Callable[..., Any], updater: Any, request: Any) -> Any:
    """Replace weights. Whether that succeeds or not, their pages are nobody else's until they have a name."""
    path = get_model().model_path
    _replace(updater.scheduler)
    result = original(updater, request)
    if result.success and (request.weight_version is not None or get_model().model_path != path):
        WEIGHTS.name()
    _renamed(updater.scheduler)
    return result


def begun(original: Callable[..., Any], updater: Any, request: Any) -> Any:
    """Begin to replace weights by several requests, or by writes of others that nobody announces."""
    result = original(updater, request)
    if result.success:
        _replace(updater.scheduler, begin=True)
    return result


def ended(original: Callable[..., Any], updater: Any, request: Any) -> Any:
    """End what `begun` began."""
    result = original(updater, request)
    if result.success:
        WEIGHTS.finish()
        _renamed(updater.scheduler)
    return result


def flushed(original: Callable[..., bool], scheduler: Any, *args: Any, **kwargs: Any) -> bool:
    """Empty SGLang's caches."""
    done = original(scheduler, *args, **kwargs)
    if done and WEIGHTS.word:
        WEIGHTS.flushed()
        _renamed(scheduler)
    return done


def versioned(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Say which weights these are, without replacing any."""
    result = original(scheduler, request)
    WEIGHTS.name()
    _renamed(scheduler)
    return result


def _replace(scheduler: Any, *, begin: bool = False) -> None:
    word = ""
    if WEIGHTS.unheard_of:  # agreed upon by the ranks that may read what one of them has saved
        word = str(get_parallel().attn_tp_group.broadcast_object(secrets.token_hex(8)))
    WEIGHTS.replace(word, begin=begin)
    _renamed(scheduler)


def _renamed(scheduler: Any) -> None:
    """Have SGLang forget which pages it believes to be in the pool: by their new names they are not."""
    beliefs = getattr(getattr(scheduler, "tree_cache", None), "storage_existence_cache", None)
    if beliefs is not None:
        beliefs.clear()
