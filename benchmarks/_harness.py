"""What the benchmarks share: fair interleaved timing, pinning, the plain C baselines, tables and JSON."""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """One comparison: `ours` and `theirs` in `unit` (more is better), from the same rounds."""

    bench: str
    case: str
    ours: float
    unit: str
    against: str
    theirs: float
    target: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio >= self.target

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": round(self.ratio, 3), "met": self.met}


@functools.cache
def plain() -> ctypes.CDLL:
    """The C baselines; calls release the interpreter lock."""
    folder = tempfile.mkdtemp(prefix="kvferry-bench-")
    library = Path(folder) / "plain.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, HERE / "_plain.c"]
    subprocess.run(command, check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))
    library.unlink()
    Path(folder).rmdir()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    loaded.copy_blocks.argtypes = [pointer, pointer, pointer, pointer, size, size]
    loaded.copy_blocks.restype = None
    loaded.serve_stream.argtypes = [ctypes.c_int, pointer]
    loaded.serve_stream.restype = None
    loaded.fetch.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int, pointer, ctypes.c_uint64]
    return loaded


def private_memory(length: int, *, huge: bool) -> np.ndarray:
    """Touched process memory, as an inference engine's is; in huge pages or, as malloc gives it, without."""
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NORMAL)
    array = np.frombuffer(mapping, dtype=np.uint8)
    array[:] = 1
    return array


def pin(core: int) -> None:
    """Keep this process, and the threads it starts from now on, on one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


class Seconds(NamedTuple):
    """Per call: by the clock, and of this process's processor time, all threads together."""

    wall: float
    cpu: float


def interleave(
    sides: Mapping[str, Callable[[], None]], *, rounds: int, minimum_s: float = 0.002
) -> dict[str, Seconds]:
    """The lower quartile of `rounds`, in each of which every side has a turn.

    Rounds are short and the quartile is taken instead of the median, since what else runs on a machine only
    ever adds time, and adds it in lumps: a quarter of the rounds is little disturbed unless it is very busy.
    """
    repeats = {name: _repeats(call, minimum_s) for name, call in sides.items()}
    taken: dict[str, list[Seconds]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            taken[name].append(_time(sides[name], repeats[name]))
    return {
        name: Seconds(_quartile([t.wall for t in times]), _quartile([t.cpu for t in times]))
        for name, times in taken.items()
    }


def _quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def _time(call: Callable[[], None], repeats: int) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        call()
    return Seconds((time.perf_counter() - wall) / repeats, (time.process_time() - cpu) / repeats)


def _repeats(call: Callable[[], None], minimum_s: float) -> int:
    call()
    started = time.perf_counter()
    call()
    return max(1, min(1000, round(minimum_s / max(time.perf_counter() - started, 1e-7))))


def size_name(size: int) -> str:
    """4096 -> 4 KiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def machine() -> str:
    """One line that says what the figures were taken on."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {system}, load {os.getloadavg()[0]:.1f}"


def to_markdown(rows: Sequence[Row]) -> str:
    """A table of the rows."""
    lines = ["| bench | case | ours | against | theirs | ratio | target |", "|---|---|--:|---|--:|--:|---|"]
    for row in rows:
        target = "" if row.target is None else f"{row.target:g} {'met' if row.met else '**missed**'}"
        lines.append(
            f"| {row.bench} | {row.case} | {row.ours:.2f} {row.unit} | {row.against} "
            f"| {row.theirs:.2f} {row.unit} | {row.ratio:.2f} | {target} |"
        )
    return "\n".join(lines)


def write_docs(file: Path, name: str, text: str) -> None:
    """Replace what stands between the two markers `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _mark, rest = file.read_text().partition(begin)
    _old, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{file} has no markers {begin} ... {end}")
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def write_json(file: Path, rows: Sequence[Row], where: str) -> None:
    """Write the machine-readable result."""
    text = json.dumps({"machine": where, "rows": [row.to_dict() for row in rows]}, indent=1)
    file.write_text(text + "\n")
