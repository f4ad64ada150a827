from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools import upstream
from tools import upstream_sglang_tests as tool
from tools.progress import ToolError

sys.path.insert(0, str(upstream.PLUGINS))

import use_kvferry_sglang as plugin


def test_servers_get_our_backends_and_the_flags_of_a_cpu() -> None:
    command = ["sglang", "serve", "--model-path", "a/model", "--mem-fraction-static", "0.6"]
    changed = plugin.on_a_cpu(
        [*command, "--page-size", "64", "--hicache-storage-backend", "file", "--disable-cuda-graph"]
    )
    assert changed[1:3] == ["-m", "sglang.launch_server"]
    assert changed[3:7] == ["--model-path", plugin.MODEL, "--page-size", "64"]
    assert changed[7:9] == ["--hicache-storage-backend", "kvferry"]
    assert "--disable-cuda-graph" not in changed
    assert changed[changed.index("--device") + 1] == "cpu"
    pair = [
        "python3",
        "-m",
        "sglang.launch_server",
        "--disaggregation-transfer-backend",
        "mooncake",
        "--tp",
        "1",
    ]
    assert plugin.on_a_cpu(pair)[3:7] == ["--disaggregation-transfer-backend", "kvferry", "--tp", "1"]


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="is no checkout of SGLang"):
        tool.registered(tmp_path)
