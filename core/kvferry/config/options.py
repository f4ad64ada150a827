"""What all sections of settings are made of: the base of their classes, durations, sizes, secrets."""

from __future__ import annotations

import msgspec
from msgspec import Meta

MAX_SECONDS = 86400.0
SECRET_MASK = "********"  # noqa: S105  (what is shown in place of a secret)


def seconds(description: str, *, ge: float = 0.001) -> Meta:
    """Describe a duration of at most a day, accepted as seconds or as text such as `500ms`."""
    return Meta(description=description, extra={"unit": "seconds"}, ge=ge, le=MAX_SECONDS)


def size(description: str, *, ge: int, le: int) -> Meta:
    """Describe a number of bytes, accepted as an integer or as text such as `4MiB`."""
    return Meta(description=description, extra={"unit": "bytes"}, ge=ge, le=le)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections. Immutable; its repr never shows a secret."""

    def __repr__(self) -> str:
        shown = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            shown.append(f"{name}={SECRET_MASK if value and is_secret(name) else repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def is_secret(name: str) -> bool:
    """Say whether the value of the field called `name` must never be printed."""
    return name.endswith("_secret")
