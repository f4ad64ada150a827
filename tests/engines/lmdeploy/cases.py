"""What the migration backend must do, on LMDeploy's own classes. A program: one JSON line for each case.

With the word `mooncake`, LMDeploy's own Mooncake backend moves the blocks, by the module of that name.
"""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from world import ANSWER_S, BLOCKS, DECODE, PREFILL, Prefill, Worker, link, use_mooncake

from kvferry.errors import KVFerryError, OutOfRangeError, ProtocolError
from kvferry_lmdeploy import MIGRATION_BACKEND

PAIRS = [(23, 0), (5, 1), (6, 2), (7, 39), (0, 17), (12, 4), (11, 3)]


class Case:
    """Two engines that know each other, and a second prefill engine in reserve."""

    def __init__(self, prefills: list[Prefill]) -> None:
        self.prefills = prefills
        self.decode = Worker(DECODE)
        link(prefills[0], self.decode)

    async def pull(self) -> None:
        """Move some blocks and check every block of the decode engine."""
        values = {remote: number + 1 for number, (remote, _) in enumerate(PAIRS)}
        self.prefills[0].call("fill", values, 99)
        self.decode.fill({}, 255)
        await asyncio.wait_for(self.decode.migrate(PREFILL, PAIRS), ANSWER_S)
        expected = [255] * BLOCKS[DECODE]
        for remote, local in PAIRS:
            expected[local] = values[remote]
        assert self.decode.values() == expected, self.decode.values()


async def right_blocks_arrive_and_no_others(case: Case) -> None:
    await case.pull()
    await case.pull()


async def all_pieces_are_one_transfer(case: Case) -> None:
    engine = case.decode.cache.migration_backend_impl._engine
    runs: list[int] = []
    execute = engine.execute

    def counted(*arguments: object, **options: object) -> object:
        runs.append(arguments[4].size)  # type: ignore[attr-defined]
        return execute(*arguments, **options)

    engine.execute = counted
    try:
        await case.pull()
    finally:
        engine.execute = execute
    pools = case.decode.cache.gpu_allocation.pools
    assert runs == [len(PAIRS) * sum(pool.tensor.shape[0] for pool in pools)], runs


async def the_prefill_engine_is_told_what_is_free(case: Case) -> None:
    await case.pull()
    await case.decode.connection.zmq_send(PREFILL, 7)
    end = time.monotonic() + ANSWER_S
    while 7 not in case.prefills[0].call("freed"):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def a_proxy_may_connect_twice(case: Case) -> None:
    link(case.prefills[0], case.decode)
    await case.pull()


async def endpoints_are_json_and_foreign_ones_are_refused(case: Case) -> None:
    backend = case.decode.cache.migration_backend_impl
    info = json.loads(json.dumps(backend.endpoint_info(PREFILL, None)))
    assert info["type"] == "kvferry", info
    assert len(info["pools"]) == len(case.decode.cache.gpu_allocation.pools), info
    foreign = {"mr_info": {"0": {"addr": 1, "length": 2, "offset": 0}}, "session_id": "10.0.0.1:1"}
    wrong = [
        foreign,
        [],
        None,
        {**info, "more": 1},
        {**info, "pools": {"x": {"address": 1, "length_bytes": 1}}},
    ]
    for text in [*map(json.dumps, wrong), "{", "\x80\x04K\x01.", '{"a":' * 100_000]:
        try:
            backend.p2p_connect(PREFILL, _Endpoint(text))
        except ProtocolError:
            continue
        raise AssertionError(f"taken for an endpoint: {text[:80]}")
    await case.pull()


class _Endpoint:
    def __init__(self, text: str) -> None:
        self.endpoint_info = text


async def pieces_outside_of_pools_are_refused(case: Case) -> None:
    from lmdeploy.pytorch.disagg.conn.protocol import MigrationProtocol
    from lmdeploy.pytorch.disagg.messages import AssignmentInstruct, MigrationAssignment

    backend = case.decode.cache.migration_backend_impl
    for key, target, source, length in [
        (0, 1 << 40, 0, 16),
        (0, 0, 1 << 62, 16),
        (0, 0, 0, 1 << 62),
        (9, 0, 0, 1),
    ]:
        piece = AssignmentInstruct(mr_key=key, target_offset=target, source_offset=source, length=length)
        batch = MigrationAssignment(protocol=MigrationProtocol.RDMA, remote_engine_id=PREFILL, batch=[piece])
        try:
            await backend.p2p_migrate(batch)
        except (OutOfRangeError, LookupError):
            continue
        raise AssertionError(f"moved {piece}")
    await case.pull()


async def the_choice_travels_as_a_member_of_the_enum_would(case: Case) -> None:
    from lmdeploy.pytorch.disagg.backend.backend import MIGRATION_BACKENDS

    assert pickle.loads(pickle.dumps(MIGRATION_BACKEND)) is MIGRATION_BACKEND
    assert copy.deepcopy(MIGRATION_BACKEND) is MIGRATION_BACKEND
    assert "KVFerry" in MIGRATION_BACKENDS.module_dict
    assert type(case.decode.cache.migration_backend_impl) is MIGRATION_BACKENDS.get("KVFerry")


async def a_dead_prefill_engine_is_an_error_and_its_successor_serves(case: Case) -> None:
    case.prefills[0].kill()
    case.decode.fill({}, 255)
    try:
        await asyncio.wait_for(case.decode.migrate(PREFILL, PAIRS), ANSWER_S)
    except (KVFerryError, RuntimeError):  # the second: what LMDeploy's Mooncake backend raises
        pass
    else:
        raise AssertionError("blocks of a dead engine arrived")
    del case.prefills[0]
    link(case.prefills[0], case.decode)
    await case.pull()


CASES: list[Callable[[Case], Awaitable[None]]] = [
    right_blocks_arrive_and_no_others,
    all_pieces_are_one_transfer,
    the_prefill_engine_is_told_what_is_free,
    a_proxy_may_connect_twice,
    endpoints_are_json_and_foreign_ones_are_refused,
    pieces_outside_of_pools_are_refused,
    the_choice_travels_as_a_member_of_the_enum_would,
    a_dead_prefill_engine_is_an_error_and_its_successor_serves,  # the last one: it uses the reserve up
]

OF_MOONCAKE = [
    right_blocks_arrive_and_no_others,
    the_prefill_engine_is_told_what_is_free,
    a_proxy_may_connect_twice,
    a_dead_prefill_engine_is_an_error_and_its_successor_serves,
]


async def run(prefills: list[Prefill], checks: list[Callable[[Case], Awaitable[None]]]) -> None:
    case = Case(prefills)
    for check in checks:
        problem = ""
        try:
            await check(case)
        except Exception:  # noqa: BLE001  (told to the test)
            problem = traceback.format_exc()
        print(json.dumps({"case": check.__name__, "problem": problem}), flush=True)
    for prefill in prefills:
        prefill.kill()


if __name__ == "__main__":
    if "mooncake" in sys.argv[1:]:
        use_mooncake()
        CASES = OF_MOONCAKE
    asyncio.run(run([Prefill(), Prefill()], CASES))
    sys.stdout.flush()
