"""Mooncake's Python module on KVFerry (distribution kvferry-mooncake). See docs/mooncake.md."""

from __future__ import annotations

from kvferry_mooncake.guard import refuse_real_mooncake

refuse_real_mooncake(__path__)
