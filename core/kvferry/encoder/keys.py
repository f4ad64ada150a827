"""Names of encoder outputs: everything that their bytes depend on, in the encoding of block keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvferry.index import KeyIdentity, KeySpace

_PREFIX = b"encoder/"


@dataclass(frozen=True, kw_only=True)
class EncoderIdentity:
    """What encoder outputs depend on besides the medium, and who may share them.

    As `KeyIdentity`: outputs are shared where all fields are equal. `settings`: further ones by name.
    """

    model: str
    revision: str = ""
    dtype: str = ""
    tenant: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


class EncoderKeys:
    """Names media of one identity. Immutable, thread-safe."""

    def __init__(self, identity: EncoderIdentity, *, secret: str | bytes = b"") -> None:
        """`secret`: the cluster's, so that who does not know it cannot name what others stored."""
        self._identity = identity
        self._secret = secret

    def key(self, media: str) -> bytes:
        """Return the store's key of the medium with this digest: 128 bits behind a prefix."""
        mine = self._identity
        identity = KeyIdentity(
            model=mine.model,
            revision=mine.revision,
            dtype=mine.dtype,
            tenant=mine.tenant,
            extra={**{f"setting {name}": value for name, value in mine.settings.items()}, "media": media},
        )
        return _PREFIX + KeySpace(identity, secret=self._secret).root
