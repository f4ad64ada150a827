"""SGLang's own kit for prefill/decode parity (`sglang.test.kits.pd_parity_kit`), as its repository's tests
use it: tokens and log probabilities behind a prefill and a decode server are those of one server.
"""

from __future__ import annotations

from sglang.test.kits.pd_parity_kit import PDLogprobParityMixin
from sglang.test.server_fixtures.disaggregation_fixture import PDDisaggregationServerBase

_LENGTHS = (20, 257, 900)


class TestParity(PDLogprobParityMixin, PDDisaggregationServerBase):  # type: ignore[misc]
    """Prompts that end within a page, right after one, and in a later chunk."""

    model = "any"
    extra_prefill_args = ("--page-size", "16", "--chunked-prefill-size", "256")
    extra_decode_args = ("--page-size", "16")
    parity_prompts = [[1] + [100 + (at * at) % 1000 for at in range(length)] for length in _LENGTHS]
    parity_max_new_tokens = 8
    parity_logprob_delta = 1e-3
    parity_cached_prefix_min_prompt_tokens = 256
