"""Messages that go with transfers of `mooncake.engine`, and how they cross the wire."""

from __future__ import annotations

import msgspec

from kvferry.transfer import SessionEngine
from kvferry_mooncake.codes import logger

_MAX_NOTIFIES = 65536  # taken at once
_KIND = "mooncake.notify"


class TransferNotify:
    """A message to the owner of the memory, sent once all bytes of a transfer are there."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class _Notice(msgspec.Struct, array_like=True, frozen=True):
    """How a TransferNotify crosses the wire."""

    kind: str
    name: str
    msg: str


def encoded(notify: TransferNotify | None) -> bytes:
    """Return what crosses the wire; no bytes for none."""
    return b"" if notify is None else msgspec.msgpack.encode(_Notice(_KIND, notify.name, notify.msg))


def received(engine: SessionEngine) -> list[TransferNotify]:
    """Return the messages that came since the last call, in order of arrival."""
    found: list[TransferNotify] = []
    for _ in range(_MAX_NOTIFIES):
        message = engine.engine.next_message(0.0)
        if message is None:
            break
        try:
            notice = msgspec.msgpack.decode(message.body, type=_Notice)
        except msgspec.DecodeError:
            notice = None
        if notice is None or notice.kind != _KIND:
            logger.warning("a message that is no notification was dropped (%d bytes)", len(message.body))
        else:
            found.append(TransferNotify(notice.name, notice.msg))
    return found
