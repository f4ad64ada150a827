"""An SGLang plug-in for SGLang's own tests of HiCache: what they attach at run time as `file` is KVFerry's
backend, and says that it is called `file`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def activate() -> None:
    """Take the name; in every process of a server."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from kvferry_sglang import names

    def attach(
        original: Callable[..., Any], controller: Any, storage_backend: str, *args: Any, **kwargs: Any
    ) -> Any:
        if storage_backend != "file":
            return original(controller, storage_backend, *args, **kwargs)
        result = names.attach_by_name(original, controller, names.NAME, *args, **kwargs)
        controller.storage_backend_type = "file"
        return result

    HookRegistry.register(names._ATTACH, attach, HookType.AROUND)
