"""Tiers given as a list, and other keys that mean ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry.config import load_config
from kvferry.errors import ConfigError

TEXT = """
[[storage_levels]]
name = "memory"
type = "dram"
capacity = "2GiB"
policy = "lru"

[[storage_levels]]
type = "remote_dram"

[[storage_levels]]
type = "ssd"
capacity = "10GiB"
path = "/mnt/nvme"
policy = "s3fifo"
transfer = "pread"

[eviction]
watermark_low = 0.7
watermark_high = 0.8
"""


def test_levels_become_settings_of_the_store(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.toml"
    file.write_text(TEXT)
    config = load_config(environ={}, file=file)
    store = config.store
    assert (store.dram, store.policy, store.demote_to_remote) == (2 << 30, "lru", True)
    assert (store.ssd, store.ssd_directory, store.ssd_policy) == (10 << 30, "/mnt/nvme", "s3fifo")
    assert (store.watermark_low, store.watermark_high) == (0.7, 0.8)
    assert config.transfer.io_uring is False
    assert config.sources["store.ssd"] == f"file {file} (storage_levels)"
    assert config.sources["store.watermark_low"] == f"file {file} (eviction.watermark_low)"


DRAM = {"type": "dram", "capacity": 1 << 30}


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([], "the first level must be of type dram"),
        ([{"type": "ssd", "capacity": 1, "path": "/x"}], "the first level must be of type dram"),
        ([DRAM, DRAM], "each at most once"),
        ([DRAM, {"type": "ssd", "capacity": 1, "path": "/x"}, {"type": "remote_dram"}], "in the order"),
        ([{"type": "dram"}], "type dram needs a capacity"),
        ([DRAM, {"type": "ssd", "capacity": 1}], "type ssd needs a path"),
        ([{**DRAM, "path": "/x"}], "type dram has no path"),
        ([{**DRAM, "transfer": "pread"}], "not pread"),
        ([{**DRAM, "size": 1}], 'level 1 has an unknown field "size"; expected one of type, name, capacity'),
        ([{**DRAM, "capazity": 1}], 'level 1 has an unknown field "capazity", did you mean capacity?'),
        ([{**DRAM, "type": "drm"}], 'level 1 has an unknown type "drm", did you mean dram?'),
        ([{**DRAM, "type": "zzz"}], 'unknown type "zzz"; expected one of dram, remote_dram, ssd'),
        ([DRAM, {"type": "remote"}], 'level 2 has an unknown type "remote", did you mean remote_dram?'),
        ([{**DRAM, "transfer": "iouring"}], 'unknown transfer "iouring", did you mean io_uring?'),
        ([{**DRAM, "type": 5}], "Expected `str`, got `int`"),
        (["dram"], "Expected `object`, got `str`"),
        ("dram", "Expected `array`, got `str`"),
        ([{**DRAM, "capacity": "much"}], "is not a size"),
        ([{**DRAM, "policy": "random"}], "store.policy"),
    ],
)
def test_wrong_levels_are_refused(levels: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"storage_levels": levels}, environ={})
    assert said in str(refused.value)


def test_a_level_and_its_setting_are_a_contradiction() -> None:
    with pytest.raises(ConfigError, match="set twice"):
        load_config({"storage_levels": [DRAM], "store": {"dram": 1 << 30}}, environ={})


def test_a_flag_goes_before_levels(tmp_path: Path) -> None:
    file = tmp_path / "kvferry.toml"
    file.write_text(TEXT)
    assert load_config({"store.dram": 1 << 31}, environ={}, file=file).store.dram == 1 << 31
