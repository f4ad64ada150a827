"""Parts of benchmarks/vllm_pooling.py."""
