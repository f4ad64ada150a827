"""What the commands that use a running node have in common: which node, its HTTP interface."""

from __future__ import annotations

import functools
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import click

from kvferry.config import Config, admin_token, load_config
from kvferry.errors import ConfigError, UnavailableError

TIMEOUT_S = 2.5  # for the answer of an HTTP interface: a node has it at hand
_MAX_ANSWER_BYTES = 64 << 20


def node_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with `--node`, `--cluster-name`, `--tenant` and `--config`.

    It gets the configuration with what was given, as `config`.
    """

    @functools.wraps(function)
    def command(
        *, file: str | None, node: str | None, cluster_name: str | None, tenant: str | None, **others: Any
    ) -> Any:
        given = {"store.node": node, "cluster.name": cluster_name, "store.tenant": tenant}
        overrides = {key: value for key, value in given.items() if value is not None}
        config = load_config(overrides, file=file, overrides_source="command line", overrides_are_text=True)
        return function(config=config, **others)

    wrapped: Callable[..., Any] = command
    for option in (
        click.option(
            "--config",
            "file",
            type=click.Path(dir_okay=False),
            help="Read this file instead of the usual ones.",
        ),
        click.option("--tenant", metavar="TEXT", help="Whose keys [default: store.tenant]."),
        click.option("--cluster-name", metavar="TEXT", help="Cluster of the node of this machine."),
        click.option("--node", metavar="HOST:PORT", help="A node [default: the one of this machine]."),
    ):
        wrapped = option(wrapped)
    return wrapped


def admin_url(config: Config, url: str | None) -> str:
    """Return the base URL of the HTTP interface: `url`, else that of the node of this machine, which is at
    `store.node` if that is set.
    """
    if url:
        return url.rstrip("/")
    from kvferry.store import find_nodes, named_node

    wanted = str(named_node(config)) if config.store.node else ""
    found = find_nodes(config.cluster)
    if not found:
        raise UnavailableError(
            f"no node of cluster {config.cluster.name!r} runs on this machine as this user: start one with "
            "`kvferry node`, or name the HTTP interface of another with --admin URL"
        )
    for advert in found:
        if not wanted or wanted == advert.endpoint:
            return advert.admin
    raise UnavailableError(
        f"no node of cluster {config.cluster.name!r} runs at {wanted} on this machine as this user: name the "
        "HTTP interface of one on another machine with --admin URL"
    )


def ask(
    config: Config, base: str, path: str, timeout_s: float = TIMEOUT_S, *, method: str = "GET"
) -> dict[str, Any]:
    """Return the JSON answer to a request. Raises `UnavailableError`, `ConfigError` (the token)."""
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"--admin {base} must be a URL such as http://127.0.0.1:7000")
    request = urllib.request.Request(  # noqa: S310  (checked above)
        base + path, headers=_token(config), method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            document = json.loads(answer.read(_MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise UnavailableError(
            f"{base}{path} answered {error.code} {error.reason}{_reason_of(error)}"
        ) from error
    except TimeoutError as error:
        raise UnavailableError(
            f"{base}{path} did not answer within {timeout_s:g} s: the node may be stopped (SIGSTOP, a "
            "debugger) or its machine overloaded; --timeout gives it longer"
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)  # of urllib's own errors
        why = getattr(why, "strerror", None) or why
        raise UnavailableError(
            f"{base}{path} does not answer: {why}; look whether a node runs there, and what its log says its "
            "admin address is"
        ) from error
    if not isinstance(document, dict) or (path == "/status" and "stats" not in document):
        raise UnavailableError(f"{base}{path} is no node's HTTP interface")
    return document


def _reason_of(error: urllib.error.HTTPError) -> str:
    """What a node has to say on its refusal."""
    if error.code == 401:
        return ": set admin.token_file to the file with the token that the node has"
    try:
        return f": {json.loads(error.read(_MAX_ANSWER_BYTES))['error']['message']}"
    except (OSError, ValueError, KeyError, TypeError):  # no node's answer
        return ""


def _token(config: Config) -> dict[str, str]:
    token = admin_token(config.admin)
    return {"Authorization": f"Bearer {token.decode('ascii')}"} if token else {}
