"""Two packages called `mooncake` in one environment are a mistake; whoever imports this one is told."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from kvferry.errors import ConfigError
from kvferry.versions import MOONCAKE, installed_under


def refuse_real_mooncake(folders: Iterable[str]) -> None:
    """Raise ConfigError if a real Mooncake is installed. `folders`: where this `mooncake` was found."""
    found = installed_under(MOONCAKE)
    ours = [Path(folder).resolve() for folder in folders]
    places = [*ours, *(Path(entry or ".").resolve() / "mooncake" for entry in sys.path)]
    found += sorted({str(place) for place in places if any(place.glob("engine*.so"))})
    if found:
        raise ConfigError(
            f"kvferry-mooncake stands in for Mooncake, and a real Mooncake is installed, too ({found[0]}): "
            "uninstall one of them (pip uninstall kvferry-mooncake, or the one named here)"
        )
