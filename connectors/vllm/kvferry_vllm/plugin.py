"""The `vllm.general_plugins` entry point: makes the connectors known by name. Runs in every vLLM process."""

from __future__ import annotations

import importlib
import logging

NAME = "KVFerryConnector"
MODULE = "kvferry_vllm.connector"
EC_NAME = "KVFerryECConnector"
EC_MODULE = "kvferry_vllm.ec_connector"

logger = logging.getLogger("kvferry.vllm")


def register() -> None:
    """Register the connectors. May be called repeatedly; never keeps vLLM from starting without us."""
    _register("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory", NAME, MODULE)
    _register("vllm.distributed.ec_transfer.ec_connector.factory", "ECConnectorFactory", EC_NAME, EC_MODULE)


def _register(module: str, factory: str, name: str, ours: str) -> None:
    try:
        registry = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        logger.warning("%s is not available: this vLLM has no %s (%s)", name, factory, error)
        return
    try:
        registry.register_connector(name, ours, name)
    except ValueError:  # vLLM loads its plugins more than once, and refuses a name that it knows
        logger.debug("%s is already registered", name)
