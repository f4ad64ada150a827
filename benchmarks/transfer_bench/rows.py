"""The result: rows that compare ours with theirs, and the target that a row has to meet."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Row:
    """`ours` and `theirs` in `unit`, from the same rounds. `target`: "" or a comparison such as ">= 0.9".

    The target is about ours divided by theirs, or about ours where there is no `against`.
    """

    bench: str
    case: str
    ours: float
    unit: str
    against: str = ""
    theirs: float | None = None
    target: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def met(self) -> bool | None:
        if not self.target:
            return None
        sign, _space, limit = self.target.partition(" ")
        value = self.ratio if self.against else self.ours
        return value is not None and _COMPARISONS[sign](value, float(limit))

    def to_dict(self) -> dict[str, object]:
        return {
            "bench": self.bench,
            "case": self.case,
            "ours": _rounded(self.ours),
            "unit": self.unit,
            "against": self.against or None,
            "theirs": _rounded(self.theirs),
            "ratio": _rounded(self.ratio),
            "target": self.target or None,
            "met": self.met,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| bench | case | ours | against | theirs | ratio | target |", "|---|---|--:|---|--:|--:|---|"]
    for row in rows:
        one = row.to_dict()
        verdict = {True: " met", False: " **missed**", None: ""}[row.met]
        theirs, ratio = ("" if one[key] is None else f"{one[key]:g}" for key in ("theirs", "ratio"))
        lines.append(
            f"| {row.bench} | {row.case} | {one['ours']:g} {row.unit} | {row.against} | {theirs} | {ratio} "
            f"| {row.target}{verdict} |"
        )
    return "\n".join(lines)


def write_json(file: Path, rows: Sequence[Row], about: dict[str, object]) -> None:
    """The machine-readable result."""
    text = json.dumps({**about, "rows": [row.to_dict() for row in rows]}, indent=1)
    file.write_text(text + "\n")


def write_page(file: Path, sections: dict[str, str]) -> None:
    """Replace what stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`, for each name."""
    text = file.read_text()
    for name, content in sections.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _mark, rest = text.partition(begin)
        _old, mark, after = rest.partition(end)
        if not mark:
            raise ValueError(f"{file} has no marks {begin} ... {end}")
        text = f"{before}{begin}\n{content}\n{end}{after}"
    file.write_text(text)
