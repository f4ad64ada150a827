"""A pytest plugin for vLLM's own connector tests: where they make vLLM's default connector, they make ours.

Run by `tools/upstream_vllm_tests.py`. Changes three helpers of theirs before their tests import them:
`create_vllm_config` names KVFerryConnector instead of NixlConnector, `create_scheduler` tells it of a worker
(these tests have none), and `create_request` describes a remote prefill as our prefill engines do. What they
then assert is theirs.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from kvferry.handoff import (
    LeaseAddress,
    LeaseIssuer,
    RemotePrefill,
    WorkerAddress,
    build_remote_prefill,
    content_digest,
    prompt_digest,
)

REPLACED = "NixlConnector"
NODE, ENDPOINT = "12" * 16, "127.0.0.1:1"
FAR_NODE, FAR_ENDPOINT = "34" * 16, "127.0.0.1:2"


def pytest_configure() -> None:
    """Replace the helpers."""
    from tests.v1.kv_connector.unit import utils

    utils.create_vllm_config = _ours(utils.create_vllm_config)
    utils.create_scheduler = _with_worker(utils.create_scheduler)
    utils.create_request = _as_our_prefill(utils.create_request)


def _ours(make: Any) -> Any:
    signature = inspect.signature(make)

    @functools.wraps(make)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        if given["kv_connector"] == REPLACED:
            given["kv_connector"], given["kv_connector_module_path"] = (
                "KVFerryConnector",
                "kvferry_vllm.connector",
            )
            given["kv_role"] = "kv_both"  # theirs does both in any role
            given["kv_connector_extra_config"] = {"pool.enabled": "off"}
        return make(*bound.args, **bound.kwargs)

    return wrapped


def _with_worker(make: Any) -> Any:
    @functools.wraps(make)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        config = (
            inspect.signature(make).bind(*arguments, **options).arguments["vllm_config"].kv_transfer_config
        )
        if config.kv_connector == "KVFerryConnector":  # ours has its own setting for that
            config.kv_connector_extra_config["handoff.load_failure"] = config.kv_load_failure_policy
        scheduler = make(*arguments, **options)
        half = getattr(scheduler.connector, "_scheduler", None)
        if half is not None:
            half.set_workers({0: WorkerAddress(NODE, ENDPOINT)})
        return scheduler

    return wrapped


def _as_our_prefill(make: Any) -> Any:
    leases = LeaseIssuer()

    @functools.wraps(make)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        request = make(*arguments, **options)
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill"):
            tokens = request.prompt_token_ids
            size = options.get("block_size", 16)
            blocks = (tuple(range(-(-len(tokens) // size))),)
            digest = prompt_digest(tokens, [])
            lease = leases.issue(content_digest(blocks, len(tokens), digest))
            address = LeaseAddress(lease, (FAR_NODE,), (FAR_ENDPOINT,), digest)
            offer = RemotePrefill(address, blocks, len(tokens), "my-engine-id", params["remote_request_id"])
            request.kv_transfer_params = build_remote_prefill(offer, host="127.0.0.1", port=2)
        return request

    return wrapped
