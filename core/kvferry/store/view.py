"""Objects read in place."""

from __future__ import annotations

from types import TracebackType

from kvferry import _native
from kvferry.errors import InvalidArgumentError


class View:
    """An object in the memory of this host's node, pinned: neither evicted nor changed while the view lives.

    A context manager. The pin ends with `close`, or, while memoryviews (or arrays made of them) are still in
    use, with the last of these. Must not outlive its `Store`. Thread-safe.
    """

    def __init__(self, native: _native.View) -> None:
        self._bytes = native.nbytes
        self._pieces = [memoryview(piece) for piece in native.pieces()]  # type: ignore[arg-type]
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Size of the object."""
        return self._bytes

    @property
    def pieces(self) -> list[memoryview]:
        """The object's bytes in order, read-only: one run, or a few if the node's memory was fragmented.

        Raises `InvalidArgumentError` once the view is closed.
        """
        if self._closed:
            raise InvalidArgumentError("this view is closed")
        return list(self._pieces)

    @property
    def data(self) -> memoryview:
        """The object as one run, read-only; copied if it lies in several. Raises as `pieces`."""
        pieces = self.pieces
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def close(self) -> None:
        """Give the pin back; idempotent."""
        self._closed = True
        self._pieces = []

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._bytes
