"""Lets LMDeploy 0.18's PyTorch engine run on a CPU: a test harness, for CPU runs only. Import it first.

LMDeploy has no CPU device. Its other devices make `torch.cuda` mean themselves and bring an ops backend; this
does the same for the CPU: `torch.cuda` becomes inert, "cuda" means "cpu" where tensors are made, and the
backend is LMDeploy's own plain torch one with a paged attention in torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # makes its tables of torch.cuda before that becomes inert
import torch.nn.functional as F

os.environ.setdefault("LMDEPLOY_ENABLE_CHECK_ENV", "0")
os.environ.setdefault("LMDEPLOY_SKIP_WARMUP", "1")

_FACTORIES = (
    "empty", "zeros", "ones", "full", "tensor", "as_tensor", "arange", "rand", "randn", "randint",
    "empty_like", "zeros_like", "ones_like", "full_like", "linspace", "eye", "empty_strided", "from_numpy",
)  # fmt: skip
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
_INERT = ("synchronize", "empty_cache", "set_device", "init")


class Stream:
    """A stream, and an event, on which everything has happened already."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        return 0.0

    def record_event(self, *_: object) -> Stream:
        return self

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    record = wait = synchronize = wait_event = wait_stream = _nothing


class Event(Stream):
    """As `Stream`; LMDeploy tells the two apart."""


def _on_cpu(device: Any) -> Any:
    return "cpu" if device is not None and str(device).startswith("cuda") else device


def _made_on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return make(*args, **kwargs)

    return wrapped


def _moved_to_cpu(move: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(move)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        places = [_on_cpu(arg) if isinstance(arg, str | _device) else "cpu" if type(arg) is int else arg
                  for arg in args]  # fmt: skip
        return move(self, *places, **kwargs)

    return wrapped


_device = torch.device


class _DeviceMeta(type):
    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, _device)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _device("cpu") if args and str(args[0]).startswith("cuda") else _device(*args, **kwargs)


class Device(metaclass=_DeviceMeta):
    """`with torch.device("cuda")` is where the class itself is called with the word."""


def _patch_torch() -> None:
    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event = Stream, Event
    current = Stream()
    cuda.current_stream = cuda.default_stream = lambda *_args, **_kwargs: current
    cuda.stream = contextlib.nullcontext
    cuda.device = lambda *_args, **_kwargs: contextlib.nullcontext()
    for name in _INERT:
        setattr(cuda, name, lambda *_args, **_kwargs: None)
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.mem_get_info = lambda *_args, **_kwargs: (2 << 30, 4 << 30)
    cuda.get_device_capability = lambda *_args, **_kwargs: (8, 0)
    cuda.get_device_name = lambda *_args, **_kwargs: "cpu"
    cuda.get_device_properties = lambda *_args, **_kwargs: types.SimpleNamespace(
        major=8, minor=0, total_memory=4 << 30, name="cpu", uuid="0"
    )
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda self, _stream: None
    tensor.pin_memory = tensor.cuda = lambda self, *_args, **_kwargs: self
    for name in _FACTORIES:
        setattr(torch, name, _made_on_cpu(getattr(torch, name)))
    for name in _NEW:
        setattr(tensor, name, _made_on_cpu(getattr(tensor, name)))
    tensor.to = _moved_to_cpu(tensor.to)
    module: Any = torch.nn.Module
    module.to = _moved_to_cpu(module.to)
    module.cuda = lambda self, *_args, **_kwargs: self
    default = torch.set_default_device
    torch.set_default_device = lambda place: default(_on_cpu(place))
    torch.device = Device  # type: ignore[misc,assignment]
    torch.compile = lambda made=None, *_args, **_kwargs: made if made is not None else (lambda found: found)  # type: ignore[assignment]


_patch_torch()

from lmdeploy.pytorch.backends import selector  # noqa: E402
from lmdeploy.pytorch.backends.attention import AttentionImpl, PagedAttentionBuildSpec  # noqa: E402
from lmdeploy.pytorch.backends.default import DefaultOpsBackend  # noqa: E402


class Metadata(types.SimpleNamespace):
    """What attention needs to know of a step."""


class TorchPagedAttention(AttentionImpl):
    """Attention over paged keys and values, sequence by sequence."""

    def __init__(self, spec: Any) -> None:
        super().__init__(
            spec.num_heads, spec.head_dim, spec.scale, spec.num_kv_heads, spec.v_head_dim, spec.alibi,
            spec.sliding_window, spec.logit_softcapping, causal=spec.causal,
        )  # fmt: skip

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        k_cache: Any,
        v_cache: Any,
        attn_metadata: Any,
        *_: Any,
        **__: Any,
    ) -> Any:
        size = k_cache.shape[1]
        out = torch.empty((*query.shape[:-1], self.v_head_size), dtype=query.dtype)
        first = 0
        lengths = zip(attn_metadata.q_seqlens.tolist(), attn_metadata.kv_seqlens.tolist(), strict=True)
        for sequence, (new, total) in enumerate(lengths):
            blocks = attn_metadata.block_offsets[sequence].long()
            fresh, known = torch.arange(total - new, total), torch.arange(total)
            span = slice(first, first + new)
            if key is not None:
                k_cache[blocks[fresh // size], fresh % size] = key[span]
                v_cache[blocks[fresh // size], fresh % size] = value[span]
            heads = self.num_heads // self.num_kv_heads
            there = (blocks[known // size], known % size)
            k, v = (part[there].float().transpose(0, 1) for part in (k_cache, v_cache))
            q = query[span].float().transpose(0, 1)
            mask = known[None, :] <= fresh[:, None]
            every = (q[None], k.repeat_interleave(heads, 0)[None], v.repeat_interleave(heads, 0)[None])
            found = F.scaled_dot_product_attention(*every, attn_mask=mask, scale=self.scale)
            out[span] = found[0].transpose(0, 1).to(out.dtype)
            first += new
        return out


class CpuOpsBackend(DefaultOpsBackend):
    """LMDeploy's plain torch backend, with attention."""

    @staticmethod
    def get_name() -> str:
        return "cpu"

    @classmethod
    def build_op(cls, spec: Any, *, enable_deterministic: bool = False) -> Any:
        if isinstance(spec, PagedAttentionBuildSpec):
            return TorchPagedAttention(spec)
        return super().build_op(spec, enable_deterministic=enable_deterministic)

    @staticmethod
    def get_attention_metadata_cls() -> type[Metadata]:
        return Metadata

    @classmethod
    def update_step_context(cls, step_context: Any) -> Any:
        names = ("is_decoding", "block_offsets", "q_seqlens", "kv_seqlens", "q_start_loc")
        found = {name: getattr(step_context, name) for name in names}
        step_context.attn_metadata = Metadata(**found, quant_policy=step_context.kv_quant_policy)
        return step_context

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def ccl_backend() -> str:
        return "gloo"


selector._get_backend = lambda: CpuOpsBackend
