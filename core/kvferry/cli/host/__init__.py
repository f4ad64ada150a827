"""What `kvferry doctor` looks at. Checks are functions of what they look at: tests give them fakes."""

from __future__ import annotations

from kvferry.cli.host.model import Check, Level
from kvferry.cli.host.report import collect

__all__ = ["Check", "Level", "collect"]
