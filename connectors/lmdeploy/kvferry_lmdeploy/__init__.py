"""KVFerry as LMDeploy's migration backend: prefill/decode disaggregation of its PyTorch engine.

Translation only. `MIGRATION_BACKEND` is what to give to `PytorchEngineConfig(migration_backend=...)`; on
the command line, `python -m kvferry_lmdeploy` is LMDeploy's own `lmdeploy` that knows it, too. Importing this
loads neither LMDeploy nor torch.
"""

from __future__ import annotations

from kvferry_lmdeploy.choice import MIGRATION_BACKEND

__all__ = ["MIGRATION_BACKEND"]
