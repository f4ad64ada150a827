"""Block keys by docs/keys.md alone: slow, and without a line of the product. Makes the published vectors.

python -m tests._block_keys   # writes tests/data/block_keys.json anew
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import struct
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "data" / "block_keys.json"
ALGORITHMS = {"sha256": 1, "xxh3": 2}
TEXT_TAGS = {
    "model": 1,
    "revision": 2,
    "geometry": 3,
    "dtype": 4,
    "layout": 5,
    "lora": 9,
    "salt": 10,
    "tenant": 11,
}
NUMBER_TAGS = {"block_tokens": 6, "tensor_parallel": 7, "group": 8}
NUMBER_DEFAULTS = {"block_tokens": 16, "tensor_parallel": 1, "group": 0}
EXTRA_TAG = 255

U64 = (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def _u64(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _fold(a: int, b: int) -> int:
    return ((a * b) & U64) ^ ((a * b) >> 64)


def _avalanche(h: int) -> int:
    h = ((h ^ h >> 37) * 0x165667919E3779F9) & U64
    return h ^ h >> 32


def _mix16(data: bytes, at: int, secret: bytes, key: int) -> int:
    return _fold(_u64(data, at) ^ _u64(secret, key), _u64(data, at + 8) ^ _u64(secret, key + 8))


def _mix32(acc: tuple[int, int], data: bytes, a: int, b: int, secret: bytes, key: int) -> tuple[int, int]:
    low = (acc[0] + _mix16(data, a, secret, key) & U64) ^ (_u64(data, b) + _u64(data, b + 8) & U64)
    high = (acc[1] + _mix16(data, b, secret, key + 16) & U64) ^ (_u64(data, a) + _u64(data, a + 8) & U64)
    return low, high


def _short(data: bytes, secret: bytes) -> bytes:
    """XXH3-128 of 17 to 240 bytes."""
    n = len(data)
    acc = (n * P64[0] & U64, 0)
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            acc = _mix32(acc, data, 16 * i, n - 16 * (i + 1), secret, 32 * i)
    else:
        for i in range(4):
            acc = _mix32(acc, data, 32 * i, 32 * i + 16, secret, 32 * i)
        acc = (_avalanche(acc[0]), _avalanche(acc[1]))
        for i in range(4, n // 32):
            acc = _mix32(acc, data, 32 * i, 32 * i + 16, secret, 3 + 32 * (i - 4))
        acc = _mix32(acc, data, n - 16, n - 32, secret, 136 - 17 - 16)
    low = _avalanche(acc[0] + acc[1] & U64)
    high = -_avalanche(acc[0] * P64[0] + acc[1] * P64[3] + n * P64[1] & U64) & U64
    return struct.pack(">QQ", high, low)


def _long(data: bytes, secret: bytes) -> bytes:
    """XXH3-128 of more than 240 bytes."""
    acc = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]

    def accumulate(at: int, key: int) -> None:
        for i in range(8):
            value = _u64(data, at + 8 * i)
            keyed = value ^ _u64(secret, key + 8 * i)
            acc[i ^ 1] = acc[i ^ 1] + value & U64
            acc[i] = acc[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & U64

    per_block = (len(secret) - 64) // 8
    for stripe in range((len(data) - 1) // 64):
        accumulate(64 * stripe, 8 * (stripe % per_block))
        if stripe % per_block == per_block - 1 and 64 * (stripe + 1) <= len(data) - 1:
            for i in range(8):
                mixed = acc[i] ^ acc[i] >> 47 ^ _u64(secret, len(secret) - 64 + 8 * i)
                acc[i] = mixed * P32[0] & U64
    accumulate(len(data) - 64, len(secret) - 64 - 7)

    def merge(key: int, start: int) -> int:
        keyed = [lane ^ _u64(secret, key + 8 * i) for i, lane in enumerate(acc)]
        return _avalanche(start + sum(_fold(keyed[i], keyed[i + 1]) for i in (0, 2, 4, 6)) & U64)

    low = merge(11, len(data) * P64[0] & U64)
    high = merge(len(secret) - 64 - 11, ~(len(data) * P64[1]) & U64)
    return struct.pack(">QQ", high, low)


def xxh3_128(data: bytes, secret: bytes) -> bytes:
    """The canonical 16 bytes, for at least 17 bytes of data and a secret of at least 136."""
    return _long(data, secret) if len(data) > 240 else _short(data, secret)


def hkdf(salt: bytes, secret: bytes, info: bytes, length: int) -> bytes:
    extracted = hmac.digest(salt, secret, "sha256")
    out, block = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        out += block
    return out[:length]


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


class Reference:
    """The keys of one identity (a dict of its fields)."""

    def __init__(
        self, identity: dict[str, Any], algorithm: str = "sha256", secret: str | bytes = b""
    ) -> None:
        tenant = _raw(identity.get("tenant", ""))
        self._secret = hkdf(
            b"kvferry block keys 1", _raw(secret), bytes([ALGORITHMS[algorithm]]) + tenant, 192
        )
        self._algorithm = algorithm
        self.block_tokens = identity.get("block_tokens", 16)
        self.root = self._sha256(encode_identity(identity))

    def _sha256(self, message: bytes) -> bytes:
        return hashlib.sha256(self._secret[:64] + message).digest()[:16]

    def _hash(self, message: bytes) -> bytes:
        return self._sha256(message) if self._algorithm == "sha256" else xxh3_128(message, self._secret)

    def keys(self, tokens: list[int], parent: bytes | None = None, spans: Any = ()) -> list[bytes]:
        """One key for each whole block."""
        found, parent = [], parent or self.root
        for first in range(0, len(tokens) - self.block_tokens + 1, self.block_tokens):
            message = encode_block(tokens[first : first + self.block_tokens], first, spans) + parent
            parent = self._hash(message)
            found.append(parent)
        return found

    def of_engine_hash(self, value: bytes) -> bytes:
        return self._hash(u32(3) + u32(len(value)) + value + self.root)


def encode_identity(identity: dict[str, Any]) -> bytes:
    fields = []
    for name, tag in TEXT_TAGS.items():
        if text := _raw(identity.get(name, "")):
            fields.append((tag, text))
    for name, tag in NUMBER_TAGS.items():
        fields.append((tag, u32(identity.get(name, NUMBER_DEFAULTS[name]))))
    for name, value in sorted((_raw(name), _raw(value)) for name, value in identity.get("extra", {}).items()):
        if value:
            fields.append((EXTRA_TAG, u32(len(name)) + name + value))
    fields.sort(key=lambda field: field[0])
    return u32(1) + u32(1) + b"".join(bytes([tag]) + u32(len(value)) + value for tag, value in fields)


def encode_block(tokens: list[int], first: int, spans: Any) -> bytes:
    """All but the parent."""
    end, attached = first + len(tokens), []
    for begin, count, name in sorted((begin, count, _raw(name)) for begin, count, name in spans):
        start, stop = max(begin, first), min(begin + count, end)
        if start < stop:
            attached.append(
                struct.pack("<IIQ", start - first, stop - start, start - begin) + u32(len(name)) + name
            )
    header = u32(2) + u32(len(tokens)) + u32(len(attached)) + u32(0)
    return header + struct.pack(f"<{len(tokens)}i", *tokens) + b"".join(attached)


FULL = {
    "model": "example/model-7b", "revision": "0123abcd", "geometry": "sha256:5f2c", "dtype": "bfloat16",
    "layout": "NHD", "block_tokens": 16, "tensor_parallel": 2, "group": 1, "lora": "adapter-é@3", "salt": "s",
    "tenant": "team-a", "extra": {"rope": "yarn:4", "attention": "window:4096"},
}  # fmt: skip


def _case(name: str, identity: dict[str, Any], tokens: list[int], **more: Any) -> dict[str, Any]:
    algorithm, secret = more.get("algorithm", "sha256"), more.get("secret", "")
    spans = more.get("spans", [])
    reference = Reference(identity, algorithm, secret)
    return {
        "name": name, "algorithm": algorithm, "secret": secret, "identity": identity, "tokens": tokens,
        "spans": [list(span) for span in spans], "root": reference.root.hex(),
        "keys": [key.hex() for key in reference.keys(tokens, None, spans)],
        "engine_hash": "engine hash", "engine_key": reference.of_engine_hash(b"engine hash").hex(),
    }  # fmt: skip


def make_vectors() -> list[dict[str, Any]]:
    """Every length of message that the hashes treat in another way, every field, every kind of span."""
    rng = random.Random(20)
    edges = [0, 1, -1, 2**31 - 1, -(2**31), *range(27)]
    spans = [
        (3, 20, "image one"),
        (23, 1, "image two"),
        (-40, 50, "began earlier"),
        (23, 1, "at the same place"),
    ]
    cases = []
    for algorithm in ALGORITHMS:
        for secret in ("", "a secret of the cluster"):
            common = {"algorithm": algorithm, "secret": secret}
            suffix = f"{algorithm}, {'with' if secret else 'without'} a secret"
            cases.append(_case(f"nothing but defaults, {suffix}", {}, edges, **common))
            cases.append(_case(f"all fields, {suffix}", FULL, edges, **common))
        for block_tokens in (1, 4, 21, 22, 24, 40, 51, 52, 60, 300):
            tokens = [rng.randrange(150_000) for _ in range(2 * block_tokens + block_tokens // 2)]
            identity = {"block_tokens": block_tokens}
            cases.append(
                _case(f"blocks of {block_tokens}, {algorithm}", identity, tokens, algorithm=algorithm)
            )
        tokens = [rng.randrange(150_000) for _ in range(50)]
        cases.append(_case(f"spans, {algorithm}", FULL, tokens, algorithm=algorithm, spans=spans))
    return cases


def main() -> None:
    """Write the file: one case per line."""
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in make_vectors())
    VECTORS.write_text(f'{{"encoding": 1, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
