"""Two packages called `mooncake` in one environment are a mistake; whoever imports this one is told."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

from kvferry.errors import ConfigError

# Mooncake's wheels: mooncake-transfer-engine, -non-cuda, -cuda13, -npu, ...
_REAL = "mooncake-transfer-engine"


def refuse_real_mooncake(folders: Iterable[str]) -> None:
    """Raise ConfigError if a real Mooncake is installed. `folders`: where this `mooncake` was found."""
    found = sorted(
        {
            f"{dist.name} {dist.version}"
            for dist in distributions()
            if (dist.name or "").lower().replace("_", "-").startswith(_REAL)
        }
    )
    ours = [Path(folder).resolve() for folder in folders]
    places = [*ours, *(Path(entry or ".").resolve() / "mooncake" for entry in sys.path)]
    found += sorted({str(place) for place in places if any(place.glob("engine*.so"))})
    if found:
        raise ConfigError(
            f"kvferry-mooncake stands in for Mooncake, and a real Mooncake is installed, too ({found[0]}): "
            "uninstall one of them (pip uninstall kvferry-mooncake, or the one named here)"
        )
