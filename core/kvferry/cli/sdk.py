"""`kvferry sdk`: where the C and C++ interface lies that the wheel brings."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from kvferry.errors import UnavailableError


@click.command("sdk")
def command() -> None:
    """Print the folder for PKG_CONFIG_PATH, to build C and C++ programs against libkvferry.

    \b
    export PKG_CONFIG_PATH=$(kvferry sdk)
    cc move_blocks.c $(pkg-config --cflags --libs kvferry)
    """
    folder = Path(str(files("kvferry"))) / "sdk" / "lib" / "pkgconfig"
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder} is missing: only an installed wheel brings it; from a source tree, build with "
            "cmake -DKVFERRY_SDK=ON and cmake --install"
        )
    click.echo(folder)
