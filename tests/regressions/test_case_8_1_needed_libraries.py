"""Case 8.1: a build needs libraries that hosts lack. The wheel: tests/packaging/test_wheel.py."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvferry import _native

ALLOWED = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)|ld-linux-[\w-]+)\.so\.\d+")
DRIVERS = ("libcuda", "libcudart", "libhip", "libascend", "libibverbs", "librdmacm", "libfabric", "libucp")


def test_the_module_names_only_libraries_that_every_host_has():
    shown = subprocess.run(
        ["readelf", "-d", _native.__file__], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", shown)
    assert needed
    assert [name for name in needed if not ALLOWED.fullmatch(name)] == []


def python_says(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["", "from kvferry.transfer import Engine; Engine().close()\n"])
def test_neither_import_nor_an_engine_loads_a_driver(first):
    code = f"import kvferry\n{first}print(open('/proc/self/maps').read())"
    maps = python_says(code)
    assert [name for name in DRIVERS if name in maps] == []


def test_the_command_starts():
    code = "from kvferry.cli import main; import sys; sys.argv = ['kvferry', '--help']; main()"
    assert "doctor" in python_says(code)
