"""Merging of the sources into one checked `Config`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvferry.config import sources
from kvferry.config.fields import all_fields, convert_value, fields_by_key
from kvferry.config.options import Options
from kvferry.config.schema import DEFAULT_SOURCE, SECTIONS, Config
from kvferry.errors import ConfigError


def load_config(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    overrides_source: str = "argument",
    overrides_are_text: bool = False,
    others: Iterable[str] = (),
) -> Config:
    """Return the effective settings.

    `overrides`: values of highest rank, as `{"transfer": {"bind": ...}}` or `{"transfer.bind": ...}`;
    `overrides_source` is how messages call them; `overrides_are_text`: they are command-line words, still to
    be parsed; `others`: keys that are allowed among them and not ours, for what is said about an unknown one.
    `environ`: default is the process environment. `file`: a TOML file that must exist; default is
    what `KVFERRY_CONFIG` names, else `./kvferry.toml`, else `/etc/kvferry.toml`, else none.

    Raises ConfigError that names every wrong key with its value, where it came from and what was expected.
    """
    environ = sources.process_environment() if environ is None else environ
    layers = [
        sources.argument_layer(overrides or {}, overrides_source, text=overrides_are_text, others=others),
        sources.environment_layer(environ),
        sources.file_layer(Path(file) if file is not None else None, environ),
    ]
    problems = [problem for layer in layers for problem in layer.problems]
    winners: dict[str, sources.Entry] = {}
    for layer in layers:
        for entry in layer.entries:
            winners.setdefault(entry.key, entry)
    values = _convert(winners, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return _build(values, {key: entry.source for key, entry in winners.items()})


def _convert(entries: Mapping[str, sources.Entry], problems: list[str]) -> dict[str, Any]:
    values = {}
    for key, entry in entries.items():
        field = fields_by_key()[key]
        try:
            values[key] = convert_value(field, entry.value, text=entry.text)
        except ValueError as error:
            detail = f" ({error})" if str(error) else ""
            problems.append(
                f"{key}: {field.show_unchecked(entry.value)} from {entry.source} is not allowed; "
                f"expected {field.expected}{detail}"
            )
    return values


def _build(values: dict[str, Any], origin: dict[str, str]) -> Config:
    _read_secret_file(values, origin)
    by_section: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, value in values.items():
        section, name = key.split(".")
        by_section[section][name] = value
    sections: dict[str, Options] = {name: cls(**by_section[name]) for name, cls in SECTIONS.items()}
    where = {field.key: origin.get(field.key, DEFAULT_SOURCE) for field in all_fields()}
    return Config(**sections, sources=where)  # type: ignore[arg-type]


def _read_secret_file(values: dict[str, Any], origin: dict[str, str]) -> None:
    """Fill `transfer.cluster_secret` from the file that `transfer.cluster_secret_file` names."""
    path = values.get("transfer.cluster_secret_file")
    if not path:
        return
    where = origin["transfer.cluster_secret_file"]
    if values.get("transfer.cluster_secret"):
        raise ConfigError(
            f"both transfer.cluster_secret (from {origin['transfer.cluster_secret']}) and "
            f"transfer.cluster_secret_file (from {where}) are set; give one of them"
        )
    try:
        secret = sources.read_small_file(Path(path)).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"transfer.cluster_secret_file: cannot read {path!r} (from {where}): {error}"
        ) from error
    if not secret:
        raise ConfigError(f"transfer.cluster_secret_file: {path!r} (from {where}) is empty")
    values["transfer.cluster_secret"] = secret
    origin["transfer.cluster_secret"] = f"file {path}"
