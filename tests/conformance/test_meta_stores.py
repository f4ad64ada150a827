"""The conformance suite on each metadata store, and what only one of them can do."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("kvferry.testing.meta")

from kvferry.config import ClusterOptions  # noqa: E402
from kvferry.errors import AccessDeniedError, UnavailableError  # noqa: E402
from kvferry.meta import MetaStore, open_store  # noqa: E402
from kvferry.testing.etcd import EtcdCluster  # noqa: E402
from kvferry.testing.meta import MetaStoreConformance  # noqa: E402
from kvferry.testing.waiting import PATIENCE_S, read_until  # noqa: E402

SECRET = "a secret of the cluster"


def clients_of(etcd: EtcdCluster) -> Callable[[], MetaStore]:
    with contextlib.closing(open_store(ClusterOptions(store=etcd.address), SECRET)) as store:
        for entry in store.list(""):
            store.delete(entry.key)
    return lambda: open_store(ClusterOptions(store=etcd.address), SECRET)


class TestEmbedded(MetaStoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], MetaStore]:
        return lambda: open_store(ClusterOptions(directory=str(tmp_path / "run")), "")

    def test_a_killed_process_is_gone_at_once(self, store: MetaStore, tmp_path: Path) -> None:
        code = (
            "import time; from kvferry.config import ClusterOptions; from kvferry.meta import open_store\n"
            f"store = open_store(ClusterOptions(directory={str(tmp_path / 'run')!r}), '')\n"
            "store.put('child', b'1', lease=store.lease(3600.0)); print('ready', flush=True); time.sleep(60)"
        )
        with contextlib.closing(store.watch("child")) as watch:
            with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
                read_until(watch, bool)
                child.kill()
                child.wait()
            batch = watch.next(PATIENCE_S)
            assert batch is not None
            assert [event.entry for event in batch.events] == [None]
        assert store.list("") == ()

    @pytest.mark.parametrize(
        ("mode", "advice"),
        [(0o750, "chmod 700"), (0o707, "a folder of your own"), (0o1777, "a folder of your own")],
    )
    def test_a_directory_that_others_can_use_is_refused(self, tmp_path: Path, mode: int, advice: str) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(AccessDeniedError, match=advice):
            open_store(ClusterOptions(directory=str(folder)), "")

    def test_a_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(AccessDeniedError, match="not a directory"):
            open_store(ClusterOptions(directory=str(tmp_path / "run")), "")

    def test_a_directory_of_somebody_else_is_refused(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        with pytest.raises(AccessDeniedError, match="user 12345"):
            open_store(ClusterOptions(directory=str(tmp_path)), "")

    def test_too_many_open_files_are_an_outage_and_end_nothing(self, store: MetaStore) -> None:
        lease, watch = store.lease(60.0), store.watch("a")
        store.put("a", b"1", lease=lease)
        assert watch.next(PATIENCE_S) is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            for call in (lease.keep_alive, lambda: store.put("a", b"2"), lambda: store.list("")):
                with pytest.raises(UnavailableError, match="Too many open files"):
                    call()
            assert watch.next(0.0) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert lease.keep_alive()
        assert [entry.value for entry in store.list("")] == [b"1"]

    def test_a_stopped_process_in_the_middle_of_a_change_holds_nobody_up_for_long(
        self, store: MetaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kvferry.meta.embedded.directory.LOCK_TIMEOUT_S", 0.3)
        code = (
            "import fcntl, sys, time\n"
            "file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX); print('locked', flush=True)\n"
            "time.sleep(60)"
        )
        store.put("a", b"1")
        lock = tmp_path / "run" / "meta-default" / "lock"
        with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"locked\n"
            with pytest.raises(UnavailableError, match="is a process of ours stopped"):
                store.put("a", b"2")
            child.kill()
        store.put("a", b"3")


class TestEtcd(MetaStoreConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def etcd(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
        with EtcdCluster(tmp_path_factory.mktemp("etcd")) as etcd:
            yield etcd

    @pytest.fixture
    def open_store(self, etcd: EtcdCluster) -> Callable[[], MetaStore]:
        return clients_of(etcd)
