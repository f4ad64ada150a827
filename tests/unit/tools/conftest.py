from __future__ import annotations

import sys
from pathlib import Path

# `tools` is a package of the repository, not of the distribution.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
