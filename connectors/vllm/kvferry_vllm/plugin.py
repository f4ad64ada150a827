"""The `vllm.general_plugins` entry point: makes the connector known by name. Runs in every vLLM process."""

from __future__ import annotations

import logging

NAME = "KVFerryConnector"
MODULE = "kvferry_vllm.connector"

logger = logging.getLogger("kvferry.vllm")


def register() -> None:
    """Register `KVFerryConnector`. May be called repeatedly; never keeps vLLM from starting without us."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    except ImportError as error:
        logger.warning("KVFerryConnector is not available: this vLLM has no KV connector factory (%s)", error)
        return
    try:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    except ValueError:  # vLLM loads its plugins more than once, and refuses a name that it knows
        logger.debug("%s is already registered", NAME)
