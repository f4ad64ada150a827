"""Case 1.7: memory of a kind that nothing here can move: refused when it is registered, with the kind named,
and not by a socket's "bad address" later.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from _engines import engine_pair
from kvferry.errors import InvalidArgumentError, UnavailableError


def device_tensor(kind: str) -> Any:
    """What torch gives for memory of an accelerator, as far as it is looked at."""
    array = np.zeros(4096, np.uint8)
    return SimpleNamespace(
        device=SimpleNamespace(type=kind, index=0),
        data_ptr=lambda: array.ctypes.data,
        nbytes=array.nbytes,
        numel=lambda: array.size,
        element_size=lambda: 1,
        is_contiguous=lambda: True,
        dtype="torch.uint8",
        requires_grad=False,
    )


@pytest.mark.parametrize(("torch_name", "kind"), [("cuda", "cuda"), ("npu", "ascend")])
def test_device_memory_without_its_driver_is_refused_by_name(torch_name: str, kind: str) -> None:
    with engine_pair("tcp") as pair:
        with pytest.raises(UnavailableError, match=rf"kind '{kind}' cannot be reached: .*not installed"):
            pair.client.register(device_tensor(torch_name), name="m")
        assert pair.client.register(np.zeros(64, np.uint8), name="m").id >= 0


def test_an_address_that_is_not_mapped_is_refused_when_it_is_registered() -> None:
    length = 1 << 12
    nowhere = (ctypes.c_uint8 * length).from_address(length)  # the page after the first: never mapped
    with engine_pair("tcp") as pair:
        with pytest.raises(InvalidArgumentError, match="is not mapped"):
            pair.client.register(nowhere, name="gone")
        assert pair.client.register(np.zeros(64, np.uint8), name="good").id >= 0
