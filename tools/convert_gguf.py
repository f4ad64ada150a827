"""Turn a GGUF file into a bf16 transformers folder: python convert_gguf.py FILE.gguf OUT_DIR.

Needs torch, transformers, gguf and accelerate. transformers marks a model read from GGUF as quantized and
refuses to save it, so its (already dequantized) weights move into a fresh model of the same class.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(source: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.bfloat16
    )
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(loaded)(config).to(torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    fresh.save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
