"""Writes the pages that are made from tables in the code; --check only says whether they would change.

PYTHONPATH=core python -m tools.generate_docs [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvferry import config, metrics

ROOT = Path(__file__).resolve().parent.parent


def pages() -> dict[Path, str]:
    """Return the text of each generated page."""
    return {
        ROOT / "docs" / "configuration.md": config.to_markdown(),
        ROOT / "docs" / "metrics.md": metrics.to_markdown(),
    }


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description="Write the pages that are made from tables in the code.")
    parser.add_argument("--check", action="store_true", help="fail if a page differs")
    options = parser.parse_args()
    stale = [
        path
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages()[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'out of date' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
