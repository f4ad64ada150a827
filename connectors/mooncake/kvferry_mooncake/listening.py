"""Where an engine listens, and how long its transfers may take."""

from __future__ import annotations

import msgspec

from kvferry.config import TransferOptions, environment_value, load_config, resolve_host
from kvferry.config.schema import DEFAULT_SOURCE
from kvferry_mooncake.codes import logger

_LEAST_TIMEOUT_S = 5.0  # as Mooncake has it


def options_for(hostname: str) -> TransferOptions:
    """Return the settings, listening on `hostname` unless `transfer.bind` is set."""
    config = load_config()
    if config.sources["transfer.bind"] != DEFAULT_SOURCE:
        return config.transfer
    return msgspec.structs.replace(config.transfer, bind=f"{resolve_host(_host_of(hostname))}:0")


def _host_of(name: str) -> str:
    """Return `name` without what may follow an address: a port, on Ascend also a device."""
    if name.startswith("["):
        return name[1 : name.find("]")]
    return name if name.count(":") > 1 and ":npu_" not in name else name.split(":", 1)[0]


def timeout_s(options: TransferOptions) -> float:
    """Return the time limit of a transfer: MC_TRANSFER_TIMEOUT, else the setting."""
    text = environment_value("MC_TRANSFER_TIMEOUT")
    number = text.isdecimal()
    used = max(_LEAST_TIMEOUT_S, float(text)) if number else options.transfer_timeout_s
    if text and (not number or used > float(text)):
        logger.warning(
            "MC_TRANSFER_TIMEOUT=%s is no number of seconds, or less than %g: %g s are used",
            text,
            _LEAST_TIMEOUT_S,
            used,
        )
    return used
