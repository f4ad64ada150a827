"""What mooncake.store answers, case by case: run by any `mooncake`, to compare ours with the real one.

    python tests/_mooncake_store_cases.py MASTER     # prints {"case": answer}

MASTER: what `setup` takes as the address of the master. Uses nothing but that module, numpy and the standard
library.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import numpy as np

from _mooncake_engine_cases import answer

SIZE = 1 << 16
HOST = "127.0.0.1"
MIB = 1 << 20


class Client:
    """A store, and 64 KiB that are registered with it."""

    def __init__(self, master: str) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        assert self.store.setup(HOST, "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", master) == 0
        self.bytes = np.arange(SIZE, dtype=np.uint32).astype(np.uint8)
        self.base = self.bytes.ctypes.data

    def part(self, offset: int, count: int) -> list[int]:
        """Return bytes of the memory."""
        return [int(each) for each in self.bytes[offset : offset + count]]


def text(found: Any) -> Any:
    """Return bytes as text, in lists as well."""
    if isinstance(found, list):
        return [text(each) for each in found]
    return found.decode() if isinstance(found, bytes) else found


def values(client: Client) -> dict[str, Any]:
    """Objects given as buffers."""
    store = client.store
    return {
        "health": answer(store.health_check),
        "hostname": answer(lambda: store.get_hostname().split(":")[0]),
        "put": answer(lambda: store.put("a", b"hello")),
        "get": text(answer(lambda: store.get("a"))),
        "put the same again": answer(lambda: store.put("a", b"hello")),
        "put other bytes": answer(lambda: store.put("a", b"other")),
        "get after that": text(answer(lambda: store.get("a"))),
        "get what is absent": text(answer(lambda: store.get("absent"))),
        "size": answer(lambda: store.get_size("a")),
        "size of what is absent": answer(lambda: store.get_size("absent")),
        "exist": answer(lambda: [store.is_exist("a"), store.is_exist("absent")]),
        "batch exist": answer(lambda: store.batch_is_exist(["a", "absent"])),
        "batch exist of nothing": answer(lambda: store.batch_is_exist([])),
        "put no bytes": answer(lambda: store.put("empty", b"")),
        "put under no key": answer(lambda: store.put("", b"x")),
        "put a bytearray": answer(lambda: store.put("bytearray", bytearray(b"xyz"))),
        "put an array": answer(lambda: store.put("array", np.arange(3, dtype=np.uint8))),
        "put text": answer(lambda: store.put("text", "text")),
        "put parts": answer(lambda: store.put_parts("parts", b"ab", b"", b"cd")),
        "get parts": text(answer(lambda: store.get("parts"))),
        "put batch": answer(lambda: store.put_batch(["b1", "b2"], [b"1", b"22"])),
        "put batch again": answer(lambda: store.put_batch(["b1", "b3"], [b"1", b"333"])),
        "put uneven batch": answer(lambda: store.put_batch(["b4", "b5"], [b"1"])),
        "get batch": text(answer(lambda: store.get_batch(["b1", "absent", "b3"]))),
        "upsert": answer(lambda: store.upsert("a", b"newer")),
        "get upserted": text(answer(lambda: store.get("a"))),
    }


def addresses(client: Client) -> dict[str, Any]:
    """Objects from and to addresses."""
    store, base = client.store, client.base
    return {
        "register": answer(lambda: store.register_buffer(base, SIZE)),
        "register again": answer(lambda: store.register_buffer(base, SIZE)),
        "register nothing": answer(lambda: store.register_buffer(base + 8, 0)),
        "put from": answer(lambda: store.put_from("f", base, 1000)),
        "put from, other bytes": answer(lambda: store.put_from("f", base + 8, 1000)),
        "get into": answer(lambda: store.get_into("f", base + 4096, 1000)),
        "get into moved": client.part(4096, 3) + client.part(5095, 1),
        "get into larger": answer(lambda: store.get_into("f", base + 4096, 2000)),
        "get into smaller": answer(lambda: store.get_into("f", base + 4096, 10)),
        "get into, absent": answer(lambda: store.get_into("absent", base, 10)),
        "batch put from": answer(lambda: store.batch_put_from(["g1", "g2"], [base, base + 100], [100, 50])),
        "batch put from again": answer(
            lambda: store.batch_put_from(["g1", "g3"], [base, base + 100], [100, 50])
        ),
        "batch put from one key": answer(lambda: store.batch_put_from(["g4"] * 2, [base] * 2, [100, 50])),
        "batch put from nothing": answer(lambda: store.batch_put_from([], [], [])),
        "batch get into": answer(
            lambda: store.batch_get_into(
                ["g1", "absent", "g2"], [base + 8192 + i * 100 for i in range(3)], [100] * 3
            )
        ),
        "batch get into moved": client.part(8392, 3),
        "batch get into smaller": answer(lambda: store.batch_get_into(["g1"], [base + 8192], [10])),
        "batch get into nothing": answer(lambda: store.batch_get_into([], [], [])),
        "multi put": answer(
            lambda: store.batch_put_from_multi_buffers(
                ["m1", "m2"], [[base, base + 200], [base + 300]], [[100, 50], [10]]
            )
        ),
        "multi get": answer(
            lambda: store.batch_get_into_multi_buffers(
                ["m1", "absent"], [[base + 9000, base + 9500], [base]], [[50, 100], [1]]
            )
        ),
        "multi get moved": client.part(9000, 2) + client.part(9549, 2),
        "multi get into smaller": answer(
            lambda: store.batch_get_into_multi_buffers(["m1"], [[base + 9000]], [[50]])
        ),
        "unregister": answer(lambda: store.unregister_buffer(base)),
        "unregister again": answer(lambda: store.unregister_buffer(base)),
    }


def sessions(client: Client) -> dict[str, Any]:
    """Objects by ranges, and in place."""
    store, base = client.store, client.base
    assert store.register_buffer(base, SIZE) == 0

    def ranges(key: str, offset: int) -> Any:
        return answer(
            lambda: store.batch_get_into_multi_buffer_ranges(
                [key], [[base + 20000, base + 20100]], [[20, 30]], [[offset, 0]]
            )
        )

    def in_place(key: str) -> Any:
        handle = store.get_buffer(key)
        same = ctypes.string_at(handle.ptr(), handle.size()) == bytes(memoryview(handle))
        return [handle.size(), len(handle), same, bytes(memoryview(handle)).decode()]

    return {
        "session": answer(lambda: store.batch_get_session_start(["m1", "absent"])),
        "ranges": ranges("m1", 90),
        "ranges moved": client.part(20000, 20),
        "ranges past the end": ranges("m1", 140),
        "ranges of what is absent": ranges("absent", 0),
        "end of session": answer(lambda: store.batch_get_session_end(["m1", "absent"])),
        "ranges without a session": ranges("m1", 0),
        "put session": answer(lambda: store.batch_put_session_start(["s1", "s2"], [100, 50])),
        "put session is not seen": answer(lambda: store.batch_is_exist(["s1"])),
        "put ranges": answer(
            lambda: store.batch_put_from_multi_buffer_ranges(
                ["s1"], [[base, base + 500]], [[60, 40]], [[0, 60]]
            )
        ),
        "end of put session": answer(lambda: store.batch_put_session_end(["s1"])),
        "put ranges arrived": answer(
            lambda: list(store.get("s1")) == client.part(0, 60) + client.part(500, 40)
        ),
        "put session revoked": answer(lambda: store.batch_put_session_revoke(["s2"])),
        "end of no put session": answer(lambda: store.batch_put_session_end(["s9"])),
        "put session of what is there": answer(lambda: store.batch_put_session_start(["s1"], [10])),
        "in place": answer(lambda: in_place("a")),
        "in place, absent": answer(lambda: store.get_buffer("absent")),
        "many in place": answer(
            lambda: [each and each.size() for each in store.batch_get_buffer(["a", "absent"])]
        ),
    }


def removal(client: Client) -> dict[str, Any]:
    """Forgetting objects."""
    store = client.store
    return {
        "remove what was just read": answer(lambda: store.remove("a")),
        "remove by force": answer(lambda: store.remove("b1", True)),
        "remove what is absent": answer(lambda: store.remove("absent")),
        "batch remove": answer(lambda: store.batch_remove(["b2", "absent"], True)),
        "remove by pattern": answer(lambda: store.remove_by_regex("^g", True)),
        "remove by a pattern of nothing": answer(lambda: store.remove_by_regex("^zzz", True)),
        "remove by a wrong pattern": answer(lambda: store.remove_by_regex("(", True)),
        "remove all": answer(lambda: store.remove_all(True) > 0),
        "remove all again": answer(lambda: store.remove_all(True)),
    }


def options(master: str) -> dict[str, Any]:
    """Ways of setting up; options of puts; the allocator."""
    from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig

    kept = []

    def setup(*arguments: Any, **keywords: Any) -> Any:
        kept.append(MooncakeDistributedStore())  # Mooncake's end with the program
        return answer(lambda: kept[-1].setup(*arguments, **keywords))

    full = {"local_hostname": HOST, "metadata_server": "P2PHANDSHAKE", "master_server_addr": master}
    sizes = {"global_segment_size": 16 * MIB, "local_buffer_size": 16 * MIB}
    config, allocator = ReplicateConfig(), MooncakeHostMemAllocator()
    defaults = [config.replica_num, config.with_hard_pin, config.group_ids, config.preferred_segments]
    config.replica_num, config.group_ids, config.preferred_segment = 2, ["group"], HOST
    place = allocator.alloc(MIB)
    return {
        "set up by a dictionary": setup(full),
        "set up by a dictionary of texts": setup(
            {**full, "global_segment_size": "16777216", "protocol": "tcp"}
        ),
        "set up by a dictionary of numbers": setup({**full, **sizes}),
        "set up by an unknown key": setup({**full, "unknown": "1"}),
        "set up by keywords": setup(**full, **sizes, protocol="tcp", rdma_devices=""),
        "set up by a keyword": setup(config=full),
        "set up by nothing": setup(),
        "set up by a part": setup({"metadata_server": "P2PHANDSHAKE"}),
        "set up with a master that is not there": setup(
            HOST, "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", "127.0.0.1:1"
        ),
        "close": answer(kept[0].close),
        "options": defaults,
        "options changed": [config.replica_num, config.group_ids, config.preferred_segment],
        "an unknown option": answer(lambda: setattr(config, "unknown", 1)),
        "put with options": answer(lambda: kept[1].put("options", b"x", config)),
        "allocated": place > 0,
        "aligned": place % 4096,
        "freed": answer(lambda: allocator.free(place)),
        "freed what is unknown": answer(lambda: allocator.free(12345)),
    }


def run(master: str) -> dict[str, Any]:
    """Run all cases."""
    client = Client(master)
    found = values(client) | addresses(client) | sessions(client) | removal(client)
    client.store.close()
    return found | options(master)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1]), indent=1))
