"""Make a tiny Qwen2-Audio checkpoint with seeded random weights, offline: a multimodal model for CPUs.

Audio, since what reads images needs torchvision, which does not load beside a torch for CPUs. Run with an
interpreter that has torch, transformers and tokenizers:

    python make_tiny_audio_model.py OUT_DIR [--seed 0]
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

VOCABULARY = 2048
SPECIAL = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
HIDDEN = 256
MAX_POSITIONS = 2048
# Loud sounds: what the encoder makes of them must matter as much as the text's embeddings.
PROJECTOR_GAIN = 8.0


def text_model_maker() -> Any:
    """The maker of the tiny text models, for its tokenizer and its weights."""
    spec = importlib.util.spec_from_file_location("maker", Path(__file__).with_name("make_tiny_model.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_processor(out: Path) -> tuple[int, int]:
    """Save tokenizer and feature extractor; returns the vocabulary's size and the audio token."""
    from transformers import AutoTokenizer, Qwen2AudioProcessor, WhisperFeatureExtractor

    text_model_maker().make_tokenizer(out, VOCABULARY, MAX_POSITIONS)
    tokenizer = AutoTokenizer.from_pretrained(str(out))
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    features = WhisperFeatureExtractor(feature_size=128, chunk_length=30, return_attention_mask=True)
    Qwen2AudioProcessor(feature_extractor=features, tokenizer=tokenizer).save_pretrained(str(out))
    return len(tokenizer), int(tokenizer.convert_tokens_to_ids(SPECIAL[0]))


def make_config(vocab_size: int, audio_token: int, maker: Any) -> Any:
    from transformers import Qwen2AudioConfig

    audio = {
        "model_type": "qwen2_audio_encoder",
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "num_mel_bins": 128,
        "max_source_positions": 1500,
    }
    text = {
        "model_type": "qwen2",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 704,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "bos_token_id": maker.BOS,
        "eos_token_id": maker.EOS,
        "pad_token_id": maker.PAD,
    }
    return Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=audio_token)


def name_weights(path: Path) -> None:
    """Name the weights as published checkpoints of this architecture do, which is what vLLM reads."""
    from safetensors.torch import load_file, save_file

    weights = {name.replace("model.model.", "model."): tensor for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def main() -> None:
    import torch
    from transformers import Qwen2AudioForConditionalGeneration

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    maker = text_model_maker()
    vocab_size, audio_token = make_processor(options.out)
    torch.manual_seed(options.seed)
    model = Qwen2AudioForConditionalGeneration(make_config(vocab_size, audio_token, maker))
    maker.fill_weights(model, options.seed, 1.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "multi_modal_projector" in name and parameter.ndim == 2:
                parameter.mul_(PROJECTOR_GAIN)
    model.to(torch.float32).save_pretrained(str(options.out), safe_serialization=True)
    name_weights(options.out / "model.safetensors")
    print(f"{sum(p.numel() for p in model.parameters())} parameters in {options.out}")


if __name__ == "__main__":
    main()
