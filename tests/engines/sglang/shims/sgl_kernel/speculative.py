"""For CPU runs in tests only: SGLang's kernels for draft models, for chains of drafts (`topk` 1)."""

from __future__ import annotations

from typing import Any

import torch


def assign_extend_cache_locs_cpu(
    requests: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    _row: int | None = None,
) -> None:
    """Read the slots of each request from `start` to `end` out of its row of the table."""
    at = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        slots[at : at + end - start] = table[request, start:end].to(slots.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    requests: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    _row: int,
    topk: int,
    steps: int,
) -> None:
    """Read the slots that follow each request's tokens."""
    assign_extend_cache_locs_cpu(requests, table, lengths, lengths + topk * steps, slots)


def fill_bonus_tokens_cpu(
    tokens: torch.Tensor, counts: torch.Tensor, bonus: torch.Tensor, width: int
) -> None:
    """Take the last token of each request that was accepted."""
    for number, count in enumerate(counts.tolist()):
        bonus[number] = tokens.reshape(-1)[width * number + count - 1]


def fill_accept_out_cache_loc_cpu(
    accepted: torch.Tensor, slots: torch.Tensor, accepted_slots: torch.Tensor
) -> None:
    """Gather the slots of accepted tokens."""
    found = slots[accepted[accepted > -1].long()]
    accepted_slots[: len(found)] = found


def build_tree_kernel_efficient_cpu(
    _parents: torch.Tensor,
    _selected: torch.Tensor,
    lengths: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    index: torch.Tensor,
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    topk: int,
    _steps: int,
    count: int,
    _mode: int,
) -> None:
    """Describe chains of `count` tokens, one behind the other."""
    if topk != 1:
        raise NotImplementedError("trees of drafts have no stand-in for CPUs")
    requests = len(lengths)
    steps = torch.arange(count)
    positions.copy_((lengths.reshape(-1, 1) + steps).reshape(-1))
    index.copy_(torch.arange(requests * count).reshape(requests, count))
    next_token.copy_(torch.where(steps + 1 < count, steps + 1, -1).expand(requests, count))
    next_sibling.fill_(-1)
    mask[: requests * count * count] = torch.ones(count, count).tril().bool().repeat(requests, 1).reshape(-1)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    target_predict: torch.Tensor,
    retrive_index: torch.Tensor,
    **_chain: Any,
) -> None:
    """Accept each chain's drafts for as long as they are what the model says; add its next token."""
    targets = target_predict.reshape(-1)
    for number, places in enumerate(retrive_index.tolist()):
        count, last = 0, places[0]
        accept_index[number, 0] = last
        for at in range(1, accept_index.shape[1]):
            predicts[last] = targets[last]
            if int(candidates[number, at]) != int(targets[last]):
                break
            count, last = at, places[at]
            accept_index[number, at] = last
        predicts[last] = targets[last]
        accept_token_num[number] = count
