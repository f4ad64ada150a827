"""KVFerry's connector for vLLM: prefill/decode disaggregation by `--kv-transfer-config` alone.

Translation only: what is not specific to vLLM lives in `kvferry.handoff`. Importing this loads neither vLLM
nor torch.
"""
