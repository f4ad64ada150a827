"""Settings shown to people: effective values with their sources, and the reference page."""

from __future__ import annotations

from typing import NamedTuple

from kvferry.config.fields import Field, all_fields
from kvferry.config.schema import DEFAULT_SOURCE, SECTIONS, Config


class ExplainedValue(NamedTuple):
    """One line of `kvferry config --explain`."""

    key: str
    value: str
    source: str


def explain_rows(config: Config) -> list[ExplainedValue]:
    """Return each setting's effective value, secrets masked, and where it came from."""
    return [
        ExplainedValue(
            field.key,
            field.show(getattr(getattr(config, field.section), field.name)),
            config.sources.get(field.key, "code"),
        )
        for field in all_fields()
    ]


def explain(config: Config) -> str:
    """Return the rows as an aligned table."""
    rows = [("key", "value", "source"), *explain_rows(config)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}" for key, value, source in rows)


def explain_changes(config: Config) -> str:
    """Return, for one log line, what differs from the defaults and where each value came from."""
    changed = [row for row in explain_rows(config) if row.source != DEFAULT_SOURCE]
    return ", ".join(f"{key}={value} ({source})" for key, value, source in changed) or "all at their defaults"


_INTRODUCTION = """\
# Configuration

<!-- Generated from core/kvferry/config/schema.py by `kvferry config --markdown`; do not edit. -->

Every setting has one key, written `section.name`. It can be given in four places; the first that has it wins:

1. **argument**: a command-line flag, or the JSON that a connector gets (`kv_connector_extra_config` in vLLM),
   as `{"transfer": {"tcp_streams": 4}}` or `{"transfer.tcp_streams": 4}`;
2. **environment**: `KVFERRY_<SECTION>_<NAME>`, e.g. `KVFERRY_TRANSFER_TCP_STREAMS=4`; commas separate the
   items of a list;
3. **file** (TOML): the one that `KVFERRY_CONFIG` names, else `./kvferry.toml`, else `/etc/kvferry.toml`;
4. **default**.

`kvferry config --explain` prints each effective value and where it came from. An unknown key is an error that
names the nearest known one. Durations are seconds or text such as `500ms`, `30s`, `2m`; sizes are bytes or
text such as `64KiB`, `4MiB`. Variables that Kubernetes injects for services called `kvferry-...` are
recognised and ignored.

`protocol` (`auto`, `shm` or `tcp`; also `transfer.protocol`, `KVFERRY_PROTOCOL`) is accepted as another way
to set `transfer.transports`: `auto` means `["shm", "tcp"]`, the others mean that one transport only.
"""


_TABLE_HEAD = "| key | default | allowed | what it does |\n| --- | --- | --- | --- |\n"


def to_markdown() -> str:
    """Return the reference page of all settings."""
    parts = [_INTRODUCTION]
    for section, options in SECTIONS.items():
        doc = (options.__doc__ or "").splitlines()[0]
        parts.append(f"\n## {section}\n\n{doc}\n\n{_TABLE_HEAD}")
        parts.extend(_markdown_row(field) for field in all_fields() if field.section == section)
    return "".join(parts)


def _markdown_row(field: Field) -> str:
    default = field.show(field.default)
    return f"| `{field.key}` | `{default}` | {field.expected} | {field.doc} |\n"
