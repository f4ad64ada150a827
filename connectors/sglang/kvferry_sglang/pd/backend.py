"""Making `--disaggregation-transfer-backend kvferry` known to SGLang, whose list of backends is closed."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

NAME = "kvferry"


def register() -> None:
    """Add the backend, through SGLang's own hooks; called by the package's plug-in, before arguments are
    parsed and again in each child process. Idempotent."""
    from sglang.srt.arg_groups.choices import (
        DISAGG_TRANSFER_BACKEND_CHOICES,
        add_disagg_transfer_backend_choices,
    )
    from sglang.srt.disaggregation.utils import TransferBackend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if NAME in DISAGG_TRANSFER_BACKEND_CHOICES:
        return
    add_disagg_transfer_backend_choices([NAME])
    members = {member.name: member.value for member in TransferBackend}
    utils = "sglang.srt.disaggregation.utils"
    HookRegistry.register(
        f"{utils}.TransferBackend",
        enum.Enum("TransferBackend", {**members, NAME.upper(): NAME}),
        HookType.REPLACE,
    )
    HookRegistry.register(f"{utils}.get_kv_class", kv_class, HookType.AROUND)


def kv_class(original: Callable[[Any, Any], Any], backend: Any, class_type: Any) -> Any:
    """Return our class of a kind (SGLang's `KVClassType`) for our backend, and SGLang's for the others."""
    if backend.value != NAME or class_type.value == "kvargs":
        return original(backend, class_type)
    from kvferry_sglang.pd import conn

    return {
        "manager": conn.KVFerryKVManager,
        "sender": conn.KVFerryKVSender,
        "receiver": conn.KVFerryKVReceiver,
        "bootstrap_server": conn.KVFerryKVBootstrapServer,
    }[class_type.value]
