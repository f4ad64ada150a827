from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.cli import main
from kvferry.transfer import topology

MACHINE = Path(__file__).parents[3] / "native/tests/data/two_node_machine.txt"

TREE = """\
├─ NUMA node 0, CPUs 0-15,32-47, 256 GiB, distances 10 21
│  ├─ interface eth0, up, 100 Gbit/s, 0000:19:00.0, RDMA mlx5_0
│  │  ├─ 0000:1a:00.0: same switch
│  │  ├─ 0000:31:00.0: same node
│  │  ├─ 0000:9b:00.0: cross
│  │  └─ 0000:b1:00.0: cross
│  ├─ interface eth1, up, 25 Gbit/s, 0000:1b:00.0, RDMA rxe0
│  │  ├─ 0000:1a:00.0: same root
│  │  ├─ 0000:31:00.0: same node
│  │  ├─ 0000:9b:00.0: cross
│  │  └─ 0000:b1:00.0: cross
│  ├─ nvidia accelerator 0000:1a:00.0
│  └─ nvidia accelerator 0000:31:00.0
"""


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A folder with the made-up machine's /sys and /proc."""
    for line in MACHINE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, kind, rest = line.partition(" -> " if " -> " in line else " = ")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == " -> ":
            path.symlink_to(rest)
        else:
            path.write_text(rest.replace("|", "\n") + "\n", encoding="utf-8")
    return str(tmp_path)


def test_the_tree_shows_nodes_interfaces_and_what_is_near(
    machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--root", machine]) == 0
    out = capsys.readouterr().out
    assert TREE in out
    assert "├─ no NUMA node\n│  └─ interface lo, up\n" in out
    assert "└─ KVFerry engines\n   └─ 00112233445566778899aabbccddeeff\n" in out
    assert out.endswith("note: RDMA device mlx5_9 belongs to no network interface\n")


def test_json_says_the_same(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--json", "--root", machine]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [node["distances"] for node in document["numa_nodes"]] == [[10, 21], [21, 10]]
    eth0 = next(nic for nic in document["nics"] if nic["name"] == "eth0")
    assert (eth0["speed_mbit"], eth0["rdma_devices"]) == (100000, ["mlx5_0"])
    assert eth0["accelerators"]["0000:1a:00.0"] == "same switch"
    assert [gpu["vendor"] for gpu in document["accelerators"]] == ["nvidia", "nvidia", "amd", "ascend"]


def test_a_machine_that_shows_nothing_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("note: ") == 3


def test_this_machine_has_a_loopback_interface() -> None:
    loopback = [nic for nic in topology().nics if nic.loopback]
    assert any(address.host == "127.0.0.1" for nic in loopback for address in nic.addresses)
