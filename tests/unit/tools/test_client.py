from __future__ import annotations

from tools.client import Metrics, completion_body

PAGE = """# HELP vllm:prompt_tokens_by_source_total tokens
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m, \\"x\\"",source="external_kv_transfer"} 64.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 3.0
process_open_fds 12
"""


def test_metrics_select_by_labels() -> None:
    page = Metrics(PAGE)
    assert page.total("vllm:prompt_tokens_by_source_total") == 67
    assert page.total("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 64
    assert page.values("process_open_fds") == [12]
    assert page.total("absent") == 0
    assert page.names("vllm:") == {"vllm:prompt_tokens_by_source_total"}


def test_completion_body_tells_a_chat_from_token_ids() -> None:
    assert "messages" in completion_body([{"role": "user", "content": "x"}], 1)
    assert completion_body([1, 2, 3], 1)["prompt"] == [1, 2, 3]
