"""Weights and roles that change while a server of SGLang runs."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

import _sglang
from _sglang import HostPool, Lab, hashes, slots


class Server:
    """A server with our backend, whose weights can be replaced by SGLang's requests."""

    def __init__(self, monkeypatch):
        self.settings = SimpleNamespace(model_path="m", load_format="auto", weight_version="default")
        self.lab = Lab(monkeypatch, settings=self.settings)
        self.weights = importlib.import_module("kvferry_sglang.live.weights")
        self.pool = HostPool()
        self.backend = self.lab.engine(self.pool)
        self.beliefs = SimpleNamespace(cleared=0, clear=self._forget)
        self.tree_cache = SimpleNamespace(storage_existence_cache=self.beliefs)
        self.updater = SimpleNamespace(scheduler=self)

    def _forget(self):
        self.beliefs.cleared += 1

    def save(self):
        assert self.backend.batch_set_v1(hashes(2), slots(range(2))) == [True] * 2

    @property
    def found(self):
        return self.backend.batch_exists(hashes(2))

    def update(self, version=None, *, path=None, flush=True, success=True):
        """As SGLang: loads, notes version and path, then flushes."""

        def original(_updater, request):
            if success:
                self.settings.weight_version = request.weight_version or self.settings.weight_version
                self.settings.model_path = path or self.settings.model_path
            if flush and success:
                self.flush()
            return SimpleNamespace(success=success)

        request = SimpleNamespace(weight_version=version)
        assert self.weights.replaced(original, self.updater, request).success is success

    def flush(self, success=True):
        assert self.weights.flushed(lambda *_args, **_kwargs: success, self) is success

    def begin(self, success=True):
        self.weights.begun(lambda *_args: SimpleNamespace(success=success), self.updater, None)

    def end(self):
        self.weights.ended(lambda *_args: SimpleNamespace(success=True), self.updater, None)

    def version(self, new):
        self.settings.weight_version = new
        self.weights.versioned(lambda *_args: None, self, None)


@pytest.fixture
def server(monkeypatch):
    server = Server(monkeypatch)
    server.save()
    assert server.found == 2
    return server


class TestWeights:
    @pytest.mark.parametrize("success", [True, False])
    def test_an_update_that_names_nothing_hides_the_pages(self, server, success):
        server.update(success=success)
        assert server.found == 0
        assert server.beliefs.cleared
        server.save()
        assert server.found == 2
        server.flush()
        server.save()
        server.flush()
        assert server.found == 2
        server.update(success=success)
        assert server.found == 0

    def test_a_version_shares_them_again(self, server):
        server.update()
        server.save()
        server.update("2")
        assert server.found == 0
        server.save()
        server.update("default")
        assert server.found == 2, "what was saved before any update"

    def test_another_path_is_a_name_and_the_same_one_is_not(self, server):
        server.update(path="n")
        server.save()
        server.update(path="n")
        assert server.found == 0
        server.update(path="m")
        assert server.found == 2

    def test_without_a_flush_they_stay_hidden_until_one(self, server):
        server.update("default", flush=False)
        assert server.found == 0
        server.save()  # with what was computed by the weights before, maybe
        server.flush(success=False)
        assert server.found == 2
        server.flush()
        assert server.weights.WEIGHTS.word == ""

    def test_a_flush_does_not_bring_back_what_was_saved_before_it(self, server):
        server.update(flush=False)
        server.save()
        server.flush()
        assert server.found == 0

    def test_several_requests_count_when_the_last_has_come(self, server):
        server.begin()
        server.update("default")
        assert server.found == 0
        server.update()
        server.end()
        assert server.found == 2

    def test_writes_that_nobody_announces(self, server):
        server.begin()
        server.end()
        server.flush()
        assert server.found == 0
        server.version("default")
        assert server.found == 2

    def test_what_did_not_begin_changes_nothing(self, server):
        server.begin(success=False)
        server.flush()
        assert server.found == 2

    def test_no_two_servers_have_the_same_word(self, server, monkeypatch):
        server.update()
        first = server.weights.WEIGHTS.word
        monkeypatch.setattr(server.weights, "WEIGHTS", server.weights.Weights())
        server.update()
        assert first
        assert server.weights.WEIGHTS.word
        assert server.weights.WEIGHTS.word != first

    def test_all_are_hooked(self, server):
        server.weights.register()
        names = {target.rpartition(".")[2] for target in _sglang.Hooks.registered}
        assert {f"update_weights_from_{kind}" for kind in ("disk", "distributed", "tensor", "ipc")} <= names
        assert {"begin_weight_update", "end_weight_update", "flush_cache"} <= names


@pytest.mark.parametrize(("backend", "cleared"), [("kvferry", 0), ("x", 1), (None, 1)])
def test_the_pool_stays_when_a_role_changes(monkeypatch, backend, cleared):
    _sglang.install(monkeypatch)
    roles = importlib.import_module("kvferry_sglang.live.roles")

    class Tree:
        cleared = 0
        cache_controller = None

        def clear_storage_backend(self):
            self.cleared += 1

    tree = Tree()
    if backend:
        config = SimpleNamespace(extra_config={"backend_name": backend})
        tree.cache_controller = SimpleNamespace(storage_config=config)

    def release(scheduler):
        clear = getattr(scheduler.tree_cache, "clear_storage_backend", None)
        if callable(clear):
            clear()

    roles.keep_pages(release, SimpleNamespace(tree_cache=tree))
    assert tree.cleared == cleared
    tree.clear_storage_backend()
    assert tree.cleared == cleared + 1
