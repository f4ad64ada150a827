"""SGLang's prefill/decode disaggregation over KVFerry: `--disaggregation-transfer-backend kvferry`.

SGLang keeps its own control plane (bootstrap server, ZMQ messages, statuses, aborts, heartbeats, pairing of
ranks); what is exchanged here is how bytes get from the prefill server's KV pool into the decode server's.
Only `conn` imports SGLang.
"""
