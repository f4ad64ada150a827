"""For CPU runs in tests only: stands in for SGLang's kernels, which exist for accelerators and AVX512 alone.

A dense model needs one function of them on a CPU. Any other name can be imported, and raises when called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__version__ = "0+cpu"


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    _row: int | None = None,
) -> None:
    """Write each request's new slots into its row of the table."""
    at = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[request, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for CPUs")

    return missing
