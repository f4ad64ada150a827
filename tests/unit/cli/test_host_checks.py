from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kvferry.cli.host import devices, engines, kernel, memory, native
from kvferry.cli.host.model import Level
from kvferry.versions import in_range

GIB = 1 << 30


def put(root: Path, path: str, text: str) -> None:
    """Write one file of a make-believe /proc or /sys."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("scope", "capabilities", "level"),
    [
        (None, "0", Level.OK),
        (0, "0", Level.OK),
        (1, "0", Level.OK),
        (2, "0", Level.WARNING),
        (2, "0000000000080000", Level.OK),
        (3, "0000000000080000", Level.WARNING),
    ],
)
def test_ptrace_scope(tmp_path: Path, scope: int | None, capabilities: str, level: Level) -> None:
    if scope is not None:
        put(tmp_path, "proc/sys/kernel/yama/ptrace_scope", f"{scope}\n")
    put(tmp_path, "proc/self/status", f"Name:\tx\nCapEff:\t{capabilities}\n")
    check = kernel.check_ptrace(tmp_path)
    assert check.level is level
    assert bool(check.fix) == (level is Level.WARNING)


def test_ptrace_scope_fix_depends_on_where_we_run(tmp_path: Path) -> None:
    put(tmp_path, "proc/sys/kernel/yama/ptrace_scope", "2")
    assert "sysctl" in kernel.check_ptrace(tmp_path).fix
    put(tmp_path, ".dockerenv", "")
    assert "--cap-add SYS_PTRACE" in kernel.check_ptrace(tmp_path).fix


@pytest.mark.parametrize(
    ("mark", "content"),
    [(".dockerenv", ""), ("run/.containerenv", ""), ("proc/1/cgroup", "0::/kubepods/pod1/abc")],
)
def test_containers_are_recognised(tmp_path: Path, mark: str, content: str) -> None:
    assert not kernel.in_container(tmp_path)
    put(tmp_path, mark, content)
    put(tmp_path, "proc/self/status", "Seccomp:\t2\nNoNewPrivs:\t1\n")
    check = kernel.check_container(tmp_path)
    assert check.summary == "inside a container, seccomp filter"
    assert check.details["no_new_privileges"] is True


@pytest.mark.parametrize(
    ("soft", "hard", "has_rdma", "level", "fix"),
    [
        (-1, -1, True, Level.OK, ""),
        (1 << 20, 1 << 20, False, Level.NOTE, ""),
        (1 << 20, -1, True, Level.WARNING, "ulimit -l unlimited"),
        (1 << 20, 1 << 20, True, Level.WARNING, "limits.d"),
    ],
)
def test_memlock_matters_only_with_rdma_devices(
    soft: int, hard: int, has_rdma: bool, level: Level, fix: str
) -> None:
    check = kernel.check_memlock(soft, hard, has_rdma=has_rdma)
    assert check.level is level
    assert fix in check.fix


def test_few_open_files_are_warned_of() -> None:
    assert kernel.check_open_files(1024, 1 << 20).fix == "ulimit -n 65536"
    assert kernel.check_open_files(65536, 65536).level is Level.OK
    assert kernel.check_open_files(-1, -1).summary == "unlimited"


@pytest.mark.parametrize(
    ("way", "level", "words", "fix"),
    [
        ("io_uring", Level.OK, "in use for files", ""),
        (
            "io_uring without registered memory: RLIMIT_MEMLOCK",
            Level.OK,
            "without registered memory: RLIM",
            "",
        ),
        ("pread and pwrite: this kernel has no io_uring", Level.NOTE, "kernel has no io_uring", ""),
        (
            "pread and pwrite: io_uring is forbidden: kernel.io_uring_disabled is 2",
            Level.NOTE,
            "io_uring_disabled is 2",
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        (
            "pread and pwrite: io_uring is forbidden here, probably by the container's seccomp profile",
            Level.NOTE,
            "seccomp profile",
            "io_uring_setup",
        ),
        ("pread and pwrite: io_uring is switched off", Level.NOTE, "switched off", "transfer.io_uring"),
        ("not tried: no module", Level.NOTE, "no module", ""),
    ],
)
def test_io_uring(way: str, level: Level, words: str, fix: str) -> None:
    check = kernel.check_io_uring(way)
    assert check.level is level
    assert words in check.summary
    assert fix in check.fix
    assert bool(fix) == bool(check.fix)


def test_numa_nodes_are_listed_in_numeric_order(tmp_path: Path) -> None:
    assert memory.check_numa(tmp_path).level is Level.NOTE
    for node, cpus in ((0, "0-7"), (10, ""), (2, "8-15")):
        put(tmp_path, f"sys/devices/system/node/node{node}/cpulist", cpus)
        put(tmp_path, f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  1024 kB\n")
    check = memory.check_numa(tmp_path)
    assert check.summary == "3 nodes: node 0 cpus 0-7, node 2 cpus 8-15, node 10 cpus none"
    assert check.details["nodes"][0] == {"node": 0, "cpus": "0-7", "memory_bytes": 1 << 20}  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("always [madvise] never", Level.OK),
        ("[always] madvise never", Level.OK),
        ("always madvise [never]", Level.WARNING),
        ("", Level.NOTE),
    ],
)
def test_transparent_huge_pages(tmp_path: Path, text: str, level: Level) -> None:
    put(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", text)
    check = memory.check_transparent_huge_pages(tmp_path)
    assert check.level is level
    assert bool(check.fix) == (level is Level.WARNING)


def test_huge_page_pools(tmp_path: Path) -> None:
    assert "none reserved" in memory.check_huge_pages(tmp_path).summary
    put(tmp_path, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8")
    put(tmp_path, "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3")
    assert memory.check_huge_pages(tmp_path).summary == "3 of 8 free of 2 MiB"


def test_shared_memory_size() -> None:
    small = memory.check_shared_memory(64 << 20, 64 << 20, container=True)
    assert small.level is Level.WARNING
    assert "--shm-size" in small.fix
    assert "remount" in memory.check_shared_memory(64 << 20, 1 << 20, container=False).fix
    assert memory.check_shared_memory(None, None, container=False).level is Level.WARNING
    assert memory.check_shared_memory(GIB, GIB, container=True).level is Level.OK


@pytest.mark.parametrize(
    ("path", "text", "summary"),
    [
        ("sys/fs/cgroup/memory.max", "max", "none set by a control group"),
        ("sys/fs/cgroup/memory.max", str(2 * GIB), "2 GiB"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712", "none set by a control group"),
    ],
)
def test_memory_limit(tmp_path: Path, path: str, text: str, summary: str) -> None:
    put(tmp_path, path, text)
    assert memory.check_memory_limit(tmp_path).summary == summary


def test_network_interfaces_that_are_up(tmp_path: Path) -> None:
    assert "loopback" in devices.check_network(tmp_path).summary
    for name, state, speed in (("lo", "unknown", ""), ("eth0", "up", "100000"), ("eth1", "down", "1000")):
        put(tmp_path, f"sys/class/net/{name}/operstate", state)
        put(tmp_path, f"sys/class/net/{name}/speed", speed)
        put(tmp_path, f"sys/class/net/{name}/mtu", "9000")
    put(tmp_path, "sys/class/net/veth/operstate", "up")
    put(tmp_path, "sys/class/net/veth/speed", "-1")
    check = devices.check_network(tmp_path)
    assert check.summary == "eth0 100 Gbit/s, mtu 9000, veth (speed unknown), mtu None"


def refuse(library: str) -> Any:
    """Stand in for a loader on a host that has no such library."""
    raise OSError(f"{library}: cannot open shared object file")


def test_rdma_needs_device_and_library(tmp_path: Path) -> None:
    assert devices.check_rdma(tmp_path, refuse).level is Level.NOTE
    put(tmp_path, "sys/class/infiniband/mlx5_0/node_type", "1")
    check = devices.check_rdma(tmp_path, refuse)
    assert check.level is Level.WARNING
    assert "libibverbs1" in check.fix
    assert devices.check_rdma(tmp_path, lambda _: object()).details["devices"] == ["mlx5_0"]


class FakeDriver(NamedTuple):
    """What the native module says of one vendor."""

    kind: str
    usable: bool
    text: str


def test_usable_accelerators_are_named() -> None:
    cuda = FakeDriver("cuda", True, "CUDA driver 12.4, 2 devices")
    found = [cuda, FakeDriver("hip", False, "not installed")]
    check = devices.check_accelerators(lambda: found)
    assert check.level is Level.OK
    assert check.summary == "CUDA driver 12.4, 2 devices"
    assert check.details["drivers"] == {"cuda": "CUDA driver 12.4, 2 devices", "hip": "not installed"}


def test_no_accelerator_says_why_for_each_vendor() -> None:
    missing = [FakeDriver(kind, False, f"no {kind} library") for kind in ("cuda", "hip", "ascend")]
    check = devices.check_accelerators(lambda: missing)
    assert check.level is Level.NOTE
    assert all(driver.text in check.summary for driver in missing)


def test_accelerators_are_not_looked_for_without_the_native_module() -> None:
    def refuse_import() -> list[FakeDriver]:
        raise ImportError("no native module")

    assert "no native module" in devices.check_accelerators(refuse_import).summary


def test_the_drivers_of_this_host_are_reported_for_real() -> None:
    assert set(devices.check_accelerators().details["drivers"]) == {"cuda", "hip", "ascend"}


ENGINE = engines.ENGINES[0]


@pytest.mark.parametrize(
    ("version", "wanted", "plugins", "allowed", "level", "words"),
    [
        (None, ">=0.32,<0.33", ["kvferry"], "", Level.NOTE, "not installed"),
        ("0.32.0+cpu", ">=0.32,<0.33", ["kvferry"], "", Level.OK, "supported"),
        ("0.32.0", ">=0.32,<0.33", ["kvferry"], "other,kvferry", Level.OK, "supported"),
        ("0.31.0", ">=0.32,<0.33", ["kvferry"], "", Level.ERROR, "0.31.0 is not supported"),
        ("dev", ">=0.32,<0.33", ["kvferry"], "", Level.ERROR, "not supported"),
        ("0.32.0", None, ["kvferry"], "", Level.ERROR, "kvferry_vllm is not installed"),
        ("0.32.0", ">=0.32,<0.33", [], "", Level.ERROR, "does not see our plug-in"),
        ("0.32.0", ">=0.32,<0.33", ["kvferry"], "other", Level.ERROR, "VLLM_PLUGINS=other"),
    ],
)
def test_engine(
    version: str | None, wanted: str | None, plugins: list[str], allowed: str, level: Level, words: str
) -> None:
    check = engines.check_engine(ENGINE, version, wanted, plugins, allowed)
    assert check.level is level
    assert words in check.summary
    assert bool(check.fix) == (level is Level.ERROR)


def test_what_is_not_installed_says_which_version_would_be_supported() -> None:
    check = engines.check_engine(ENGINE, None, ">=0.32,<0.33", [], "")
    assert ">=0.32,<0.33 is supported" in check.summary
    assert "supported" not in engines.check_engine(ENGINE, None, None, [], "").summary


@pytest.mark.parametrize("name", ["LMCache", "LMDeploy"])
def test_engines_whose_settings_name_us_need_no_plugin(name: str) -> None:
    engine = next(engine for engine in engines.ENGINES if engine.name == name)
    wanted = engines.supported_range(engine)
    assert wanted is not None
    version = wanted.split(",")[0].lstrip(">=")
    check = engines.check_engine(engine, version, wanted, engines.registered_plugins(engine), "")
    assert check.level is Level.OK
    assert f"named in its settings: {engine.connector}" in check.summary
    check = engines.check_engine(engine, "0.0.1", wanted, [], "")
    assert check.level is Level.ERROR
    assert check.fix == f"pip install '{name.lower()}{wanted}'"


@pytest.mark.parametrize(
    ("version", "ours", "real", "level", "words"),
    [
        (None, "0.1.0", [], Level.NOTE, "not installed (only programs with a Mooncake integration need it)"),
        (
            None,
            "0.1.0",
            ["mooncake-transfer-engine 0.3.13"],
            Level.NOTE,
            "mooncake-transfer-engine 0.3.13 is",
        ),
        ("0.1.0", "0.1.0", [], Level.OK, "0.1.0, in place of Mooncake"),
        ("0.1.0", None, [], Level.OK, "0.1.0, in place of Mooncake"),
        ("", "0.1.0", [], Level.OK, "on the path, not installed"),
        (
            "0.0.9",
            "0.1.0",
            [],
            Level.ERROR,
            "0.0.9 is not supported; this version of kvferry works with 0.1.0",
        ),
        ("0.1.0", "0.1.0", ["mooncake-transfer-engine 0.3.13"], Level.ERROR, "which it stands in for"),
    ],
)
def test_mooncake_stand_in(
    version: str | None, ours: str | None, real: list[str], level: Level, words: str
) -> None:
    check = engines.check_stand_in(version, ours, real)
    assert check.level is level
    assert words in check.summary
    assert bool(check.fix) == (level is Level.ERROR)


def test_the_stand_in_is_found_on_the_path() -> None:
    assert engines.stand_in_version() is not None  # the tests' own path has it


@pytest.mark.parametrize("engine", engines.ENGINES, ids=lambda engine: engine.name)
def test_each_connector_states_a_range_that_can_be_read(engine: engines.Engine) -> None:
    wanted = engines.supported_range(engine)
    assert wanted is not None
    assert in_range(wanted.split(",")[0].lstrip(">="), wanted)


def test_an_unknown_engine_or_connector_is_reported_as_absent() -> None:
    ghost = engines.Engine(
        "Ghost", ("kvferry-no-such-engine",), "kvferry_no_such", "kvferry.no_such", "GHOST_PLUGINS"
    )
    assert engines.installed_version(ghost) is None
    assert engines.supported_range(ghost) is None
    assert engines.registered_plugins(ghost) == []


def test_native_module_of_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "package_version", lambda: "1.2.3")
    check = native.check_native(lambda: SimpleNamespace(__version__="1.2.2"))
    assert check.level is Level.ERROR
    assert "1.2.2" in check.summary
    assert "1.2.3" in check.summary
    assert native.check_native(lambda: SimpleNamespace(__version__="1.2.3")).level is Level.OK
    monkeypatch.setattr(native, "package_version", lambda: native.UNKNOWN)
    assert native.check_native(lambda: SimpleNamespace(__version__="1.2.3")).level is Level.NOTE


def test_native_module_that_cannot_be_loaded_is_an_error() -> None:
    def load() -> object:
        raise ImportError("libfoo.so: no such file")

    check = native.check_native(load)
    assert check.level is Level.ERROR
    assert "libfoo.so" in check.summary


def test_wrong_settings_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.check_settings().level is Level.OK
    monkeypatch.setenv("KVFERRY_TRANSFER_BIN", "x")
    check = native.check_settings()
    assert check.level is Level.ERROR
    assert "KVFERRY_TRANSFER_BIND" in check.summary


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bind", "nonsense", "a port is missing"),
        ("bind", "127.0.0.1:99999", "from 0 to 65535"),
        ("bind", "0.0.0.0:0", "set cluster_secret"),
        ("cluster_secret", "short-1", "shorter than 16 bytes"),
        ("fault_plan", "no such fault", "cannot read the rule"),
        ("transports", "tcp,tcp", "listed twice"),
    ],
)
def test_settings_that_the_engine_refuses_are_an_error_with_their_source(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KVFERRY_TRANSFER_{name.upper()}", value)
    check = native.check_settings()
    assert check.level is Level.ERROR
    assert words in check.summary
    assert f"correct transfer.{name} (from environment KVFERRY_TRANSFER_{name.upper()})" in check.fix
    assert "short-1" not in check.summary + check.fix


def test_a_port_in_use_is_a_warning_and_an_address_of_another_host_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("KVFERRY_TRANSFER_BIND", f"127.0.0.1:{other.getsockname()[1]}")
        check = native.check_settings()
    assert check.level is Level.WARNING
    assert "in use" in check.summary
    assert native.check_settings().level is Level.OK  # the port is free again
    monkeypatch.setenv("KVFERRY_TRANSFER_BIND", "192.0.2.1:0")
    monkeypatch.setenv("KVFERRY_TRANSFER_CLUSTER_SECRET", "0123456789abcdef")
    check = native.check_settings()
    assert check.level is Level.ERROR
    assert "correct transfer.bind" in check.fix


@pytest.fixture
def unknown_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name server is asked."""

    ask = socket.getaddrinfo

    def nobody_knows(host: str, *rest: Any, **more: Any) -> Any:
        return ask(host, *rest, **{**more, "flags": socket.AI_NUMERICHOST})

    monkeypatch.setattr("kvferry.config.hosts.socket.getaddrinfo", nobody_knows)


@pytest.mark.usefixtures("unknown_hosts")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ADMIN_TOKEN_FILE", "/no/such/token", "admin.token_file /no/such/token: No such file"),
        ("CLUSTER_CA_FILE", "/no/such/ca.pem", "cannot read /no/such/ca.pem: No such file"),
        ("STORE_NODE", "nobody.invalid:7000", "the host 'nobody.invalid' cannot be found"),
        ("ADMIN_BIND", "nobody.invalid:0", "the host 'nobody.invalid' cannot be found"),
        ("ROUTER_HOST", "nobody.invalid", "the host 'nobody.invalid' cannot be found"),
        ("ROUTER_DECODE", "http://nobody.invalid:8000", "the host 'nobody.invalid' cannot be found"),
        ("TRANSFER_BIND", "nobody.invalid:0", "the host 'nobody.invalid' cannot be found"),
        ("CLUSTER_STORE", "etcd://127.0.0.1:2379", "transfer.cluster_secret_file"),
    ],
)
def test_files_and_hosts_that_settings_name_and_nobody_has_are_an_error(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KVFERRY_{name}", value)
    check = native.check_settings()
    assert check.level is Level.ERROR
    assert words in check.summary
    assert name.lower().replace("_", ".", 1) in check.summary


@pytest.mark.usefixtures("unknown_hosts")
def test_the_hosts_of_etcd_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_TRANSFER_CLUSTER_SECRET", "0123456789abcdef")
    monkeypatch.setenv("KVFERRY_CLUSTER_STORE", "etcd://nobody.invalid:2379")
    check = native.check_settings()
    assert check.level is Level.ERROR
    assert (
        "cluster.store (from environment KVFERRY_CLUSTER_STORE): the host 'nobody.invalid'" in check.summary
    )
    assert "0123456789abcdef" not in check.summary


def test_settings_are_judged_without_an_engine_where_the_native_module_is_missing() -> None:
    def start(_: object) -> None:
        raise ImportError("libfoo.so: no such file")

    assert native.check_settings(start).level is Level.OK  # the check of the native module has the error
