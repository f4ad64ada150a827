"""Case 9.1, the store's side: errors carried a number, and there was a line for each of thousands of keys."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.config import load_config
from kvferry.errors import KVFerryError, NotFoundError
from kvferry.store import Store, open_embedded
from kvferry.testing.nodes import NodeChild
from kvferry.testing.waiting import wait_until

MIB = 1 << 20
DRAM = 16 * MIB


def text_of(call: Callable[[], object]) -> str:
    with pytest.raises(KVFerryError) as raised:
        call()
    assert raised.value.code
    return str(raised.value)


def in_full(store: Store) -> str:
    """Put with all memory being read."""
    views = []
    text = ""
    for number in range(4 * DRAM // MIB):
        result = store.put_many([f"held {number}"], [bytes(MIB)], timeout_s=5)[0]
        if result.error is not None:
            text = str(result.error)
            break
        with contextlib.suppress(NotFoundError):  # evicted again: memory is short already
            views.append(store.view(f"held {number}"))
    for view in views:
        view.close()
    return text


def test_each_error_says_which_key_what_was_found_and_what_to_do() -> None:
    with open_embedded(load_config({"store": {"dram": DRAM}}, environ={})) as store:
        store.put("there", bytes(1000))
        texts = {
            "conflict": text_of(lambda: store.put("there", b"x" * 1000)),
            "larger than memory": text_of(lambda: store.put("huge", bytes(17 * MIB))),
            "absent": text_of(lambda: store.get_into("gone", bytearray(1))),
            "absent view": text_of(lambda: store.view(b"\x00\xffgone")),
            "short target": text_of(lambda: store.get_into("there", bytearray(999))),
            "range": text_of(lambda: store.get_range("there", 999, bytearray(2))),
            "long key": text_of(lambda: store.put("k" * 2000, b"")),
            "full": in_full(store),
        }
    wanted = {
        "conflict": ['key "there"', "other bytes", "written once"],
        "larger than memory": ['key "huge"', str(17 * MIB), str(DRAM), "store.dram"],
        "absent": ['key "gone"', "no such object"],
        "absent view": ["key hex:00ff676f6e65"],
        "short target": ['key "there"', "1000 bytes", "999"],
        "range": ['key "there"', "999 to 1001", "1000"],
        "long key": ['key "' + "k" * 64 + '..."', "1024", "2000"],
        "full": ['key "held ', str(MIB), str(DRAM), "try again"],
    }
    for name, parts in wanted.items():
        assert [part for part in parts if part not in texts[name]] == [], texts[name]


def test_a_dead_node_is_named_and_thousands_of_failures_are_few_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = [f"key {number}" for number in range(6722)]
    with NodeChild(tmp_path, "--dram", "16MiB") as node, node.open(timeout_s=5.0) as store:
        store.put("there", b"value")
        node.kill()
        wait_until(lambda: store.error is not None, 20, "it has noticed")
        capfd.readouterr()
        puts = store.put_many(keys, [b"value"] * len(keys))
        gets = store.get_many_into(keys, [bytearray(5) for _ in keys])
    for results in (puts, gets):
        texts = [str(result.error) for result in results]
        assert all(f'key "{key}": ' in text for key, text in zip(keys, texts, strict=True))
        unnamed = [
            text for text in texts if not re.search(rf"{node.advert.endpoint}|{node.advert.node_id}", text)
        ]
        assert unnamed[:3] == []
        assert {result.error.code for result in results if result.error} == {"unavailable"}
    out, err = capfd.readouterr()
    assert out.count("\n") + err.count("\n") <= 4
