"""The result of one look at the host."""

from __future__ import annotations

import enum
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class Level(enum.Enum):
    """How a check came out. Only `ERROR` means that the main job cannot run."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, what was found, and for a problem the command that fixes it."""

    name: str
    level: Level
    summary: str
    fix: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return it for `--json`."""
        found: dict[str, object] = {"name": self.name, "level": self.level.value, "summary": self.summary}
        if self.fix:
            found["fix"] = self.fix
        if self.details:
            found["details"] = dict(self.details)
        return found


def read_text(path: Path) -> str:
    """Return the stripped content of a /proc or /sys file; empty if it is absent or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """Return the number in a /proc or /sys file; None if it is absent or holds something else."""
    text = read_text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
