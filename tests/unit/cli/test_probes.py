"""The probes of `kvferry doctor` on this host, for real."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.cli.host import engine_probe, transports
from kvferry.cli.host.model import Level
from kvferry.errors import UnsupportedError


def test_loopback_carries_bytes() -> None:
    assert transports.probe_tcp(socket.AF_INET, "127.0.0.1") == ""


def test_an_address_of_another_host_is_refused_with_the_reason() -> None:
    assert transports.probe_tcp(socket.AF_INET, "192.0.2.1") == os.strerror(errno.EADDRNOTAVAIL)


def test_memory_files_can_be_passed_and_mapped() -> None:
    assert transports.probe_memory_file() == ""


def test_copy_between_processes_gives_success_or_the_kernels_reason() -> None:
    assert transports.probe_process_copy() in ("", os.strerror(errno.EPERM), os.strerror(errno.ENOSYS))


def test_a_probe_whose_process_dies_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(transports, "_PEER_COMMAND", (sys.executable, str(script)))
    reason = transports.probe_process_copy()
    assert "could not run" in reason or "ended early" in reason


def test_a_probe_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(transports, "_PEER_COMMAND", (sys.executable, str(script)))
    monkeypatch.setattr(transports, "_TIMEOUT_S", 0.2)
    assert os.strerror(errno.ETIMEDOUT) in transports.probe_process_copy()


def test_how_files_are_moved_is_asked_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_probe.probe_files().startswith(("io_uring", "pread and pwrite: "))
    monkeypatch.setenv("KVFERRY_TRANSFER_IO_URING", "false")
    assert engine_probe.probe_files() == "pread and pwrite: io_uring is switched off"


def test_where_io_uring_is_forbidden_files_still_move_and_the_doctor_says_why() -> None:
    code = """
from kvferry.cli.host import engine_probe, kernel
check = kernel.check_io_uring(engine_probe.probe_files())
print(check.level.value, check.summary)
import pytest, sys
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/unit/transfer/test_files.py"]))
"""
    done = subprocess.run(
        [sys.executable, "-m", "tests._without_io_uring", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("note not in use for files")
    assert "io_uring is forbidden here, probably by the container's seccomp profile" in first
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "level", "words"),
    [
        ("", "", Level.OK, "IPv4 and IPv6"),
        ("", "no such address", Level.OK, "IPv4 loopback"),
        ("down", "down", Level.ERROR, "down"),
    ],
)
def test_tcp_needs_one_loopback(ipv4: str, ipv6: str, level: Level, words: str) -> None:
    check = transports.check_tcp(ipv4, ipv6)
    assert check.level is level
    assert words in check.summary


def test_tls_is_reported_with_its_library_or_with_what_to_install() -> None:
    def nothing() -> str:
        raise UnsupportedError("libssl.so.3: no such file; install it (apt-get install libssl3)")

    assert transports.check_tls(lambda: "OpenSSL 3.0.19").level is Level.OK
    missing = transports.check_tls(nothing)
    assert missing.level is Level.NOTE
    assert "apt-get install libssl3" in missing.summary


def test_shm_that_is_forbidden_is_a_warning_with_the_command(tmp_path: Path) -> None:
    reason = os.strerror(errno.EPERM)
    check = transports.check_shm(reason, "", tmp_path)
    assert check.level is Level.WARNING
    assert "sysctl" in check.fix
    (tmp_path / ".dockerenv").touch()
    assert "--cap-add SYS_PTRACE" in transports.check_shm(reason, "", tmp_path).fix
    assert transports.check_shm("", "", tmp_path).level is Level.OK
    assert transports.check_shm("", "memfd_create: no", tmp_path).level is Level.WARNING
