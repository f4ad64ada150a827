"""Outputs of multimodal encoders in the store: put once, used by every engine that sees the same image.

Engine-neutral: media are named by the engine's own digest of their content, tensors are bytes with dtype and
shape. `EncoderReader` fetches ahead for a scheduler, `EncoderWriter` stores behind a worker; neither waits.
"""

from __future__ import annotations

from kvferry.encoder.keys import EncoderIdentity, EncoderKeys
from kvferry.encoder.planner import EncoderPlanner, EncoderStep, Medium
from kvferry.encoder.reader import EncoderReader
from kvferry.encoder.tensors import DTYPES, EncodedTensor, pack, unpack
from kvferry.encoder.writer import EncoderWriter

__all__ = [
    "DTYPES",
    "EncodedTensor",
    "EncoderIdentity",
    "EncoderKeys",
    "EncoderPlanner",
    "EncoderReader",
    "EncoderStep",
    "EncoderWriter",
    "Medium",
    "pack",
    "unpack",
]
