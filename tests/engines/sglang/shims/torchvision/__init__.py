"""For CPU runs in tests only: lets SGLang's multimodal modules be imported. PyPI's torchvision belongs to a
CUDA torch; a text model calls nothing of it.
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

__version__ = "0+stub"


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"
    NEAREST_EXACT = "nearest-exact"
    BOX = "box"
    HAMMING = "hamming"


class _Module(types.ModuleType):
    InterpolationMode = InterpolationMode

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_args: Any, **_kwargs: Any) -> Any:
            raise NotImplementedError(f"{self.__name__}.{name}: torchvision is not installed")

        return missing


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


sys.meta_path.append(_Submodules())

from torchvision import io, transforms  # noqa: E402,F401
