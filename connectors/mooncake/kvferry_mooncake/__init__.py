"""What this distribution's module `mooncake` is made of: Mooncake's calls and return codes, on KVFerry."""

from __future__ import annotations
