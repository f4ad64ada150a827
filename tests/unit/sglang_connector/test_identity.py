from __future__ import annotations

from types import SimpleNamespace

import pytest

from _sglang import hashes, storage_config
from kvferry.config import load_config
from kvferry.errors import UnsupportedError
from kvferry_sglang.identity import ModelFacts, PageNames, Shard, facts_of, shard_of

FACTS = ModelFacts("m", "revision=r", "dtype=bf16")
ONE = Shard(0, 1)


def names(facts=FACTS, shard=ONE, *, page=16, layout="l", parts=1, **settings):
    config = load_config(settings, environ={})
    return PageNames(config, facts, shard, page=page, layout=layout, parts=parts)


def test_names_are_the_same_in_all_processes():
    [row] = names().of(hashes(1))
    assert row.tobytes() == names().of(hashes(3))[0].tobytes()
    assert len(row) == 18


DIFFERENT = {
    "model": names(FACTS._replace(model="n")),
    "revision": names(FACTS._replace(revision="revision=s")),
    "dtype": names(FACTS._replace(dtype="dtype=fp8_e5m2")),
    "layout": names(layout="k"),
    "page size": names(page=32),
    "namespace": names(**{"pool.namespace": "x"}),
    "tenant": names(**{"store.tenant": "x"}),
    "secret": names(**{"transfer.cluster_secret": "0123456789abcdef"}),
    "tensor parallelism": names(shard=Shard(0, 2)),
    "pipeline stages": names(shard=Shard(0, 1, 0, 2)),
    "stage": names(shard=Shard(0, 1, 1, 2)),
    "context parallelism": names(shard=Shard(0, 1, cp_size=2)),
    "its rank": names(shard=Shard(0, 1, cp_rank=1, cp_size=2)),
    "rank": names(shard=Shard(1, 2)),
}


def test_whatever_differs_makes_other_names():
    found = [each.of(hashes(1))[0].tobytes() for each in (names(), *DIFFERENT.values())]
    assert len(set(found)) == len(found)


def test_every_rank_has_a_number_of_its_own():
    shards = [Shard(t, 2, p, 3, c, 2) for t in range(2) for p in range(3) for c in range(2)]
    assert sorted(each.number for each in shards) == list(range(shards[0].total))


def test_parts_have_the_names_of_a_wider_engines_ranks():
    narrow = names(shard=Shard(1, 2), parts=2).of(hashes(2))
    wide = [names(shard=Shard(rank, 4)).of(hashes(2)) for rank in (2, 3)]
    assert [row.tobytes() for row in narrow] == [
        wide[i][page].tobytes() for page in range(2) for i in range(2)
    ]


def test_parents_are_the_page_before():
    mine = names(parts=2, shard=Shard(0, 1))
    rows = [row.tobytes() for row in mine.of(hashes(3))]
    assert mine.parents(mine.of(hashes(3)), None) == [b"", b"", *rows[:4]]
    assert mine.parents(mine.of(hashes(3)[1:]), hashes(1)[0]) == rows[:4]
    assert mine.parents(mine.of([]), None) == []


def test_hashes_that_are_not_hex_are_refused():
    with pytest.raises(ValueError, match="hex"):
        names().of(["page"])


def test_what_the_operator_said_of_the_model():
    args = SimpleNamespace(
        model_path="org/m", revision="abc", weight_version="default", dtype="auto", kv_cache_dtype="fp8_e4m3",
        quantization=None, json_model_override_args="{}", speculative_draft_model_path="org/d",
        speculative_draft_model_revision=None,
    )  # fmt: skip
    facts = facts_of(args, "served")
    assert facts.model == "org/m"
    assert "revision=abc" in facts.revision
    assert facts.dtype == "dtype=auto kv_cache_dtype=fp8_e4m3"
    assert facts.draft == "speculative_draft_model_path=org/d"
    assert facts_of(None, "served") == ModelFacts("served", "", "")
    args.quantization_param_path = "scales.json"
    assert facts_of(args, "served").dtype.endswith(" quantization_param_path=scales.json")
    args.load_format = "dummy"
    assert facts_of(args, "served").revision.endswith(" load_format=dummy")
    now = facts_of(args, "served", {"model_path": "org/n", "load_format": "auto", "weight_version": "2"})
    assert now.model == "org/n"
    assert now.revision == "revision=abc weight_version=2 json_model_override_args={}"


def test_ranks_that_hold_the_same_bytes_share_names():
    config = storage_config(tp_rank=3, tp_size=4, pp_rank=1, pp_size=2, is_mla_model=True)
    assert shard_of(config, replicated=True) == Shard(0, 1, 1, 2, 0, 1)
    assert shard_of(config, replicated=False) == Shard(3, 4, 1, 2, 0, 1)
    with pytest.raises(UnsupportedError, match="decode context"):
        shard_of(storage_config(dcp_size=2), replicated=True)
