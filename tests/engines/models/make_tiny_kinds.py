"""Make tiny checkpoints with seeded random weights, offline, whose KV caches are not plain heads in blocks.

Run with an interpreter that has torch, transformers and tokenizers:

    python make_tiny_kinds.py OUT_DIR --kind mla|mamba|delta|images|eagle|eagle3|mtp [--seed 0]

`mla`: latent attention (DeepSeek V2). `mamba`: attention beside Mamba 2 in each layer (Falcon H1). `delta`:
one layer of attention, three with gated delta nets (Qwen3-Next). `images`:
reads images (Idefics 3), by a processor and a model of vLLM's that need no torchvision. `eagle`, `eagle3`:
one-layer heads that guess ahead for the `tiny` model. `mtp`: a model that guesses ahead itself (MiMo).
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

VOCABULARY = 2048
HIDDEN = 256
LAYERS = 3
MAX_POSITIONS = 2048
IMAGE_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
PATCH = 14
IMAGE = 4 * PATCH
SHUFFLE = 2  # so many patches by as many become one embedding
# What states and images add must matter as much as the text's embeddings.
STATE_GAIN = 4.0
PROJECTOR_GAIN = 8.0


def text_model_maker() -> Any:
    """The maker of the tiny text models, for its tokenizer and its weights."""
    spec = importlib.util.spec_from_file_location("maker", Path(__file__).with_name("make_tiny_model.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def common(maker: Any, vocab_size: int) -> dict[str, Any]:
    """What all text models have."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 704,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "bos_token_id": maker.BOS,
        "eos_token_id": maker.EOS,
        "pad_token_id": maker.PAD,
    }


def make_mla(_out: Path, text: dict[str, Any]) -> Any:
    """Latents of 512 and 64 elements: vLLM's kernel for CPUs knows no others. No experts.

    YaRN as in published checkpoints: without it vLLM rotates keys and queries of three dimensions by a kernel
    for CPUs that takes them for two-dimensional ones.
    """
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn |= {"mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": MAX_POSITIONS // 2}
    config = DeepseekV2Config(
        **text,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=64,
        first_k_dense_replace=LAYERS,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        rope_parameters=yarn,
    )
    return DeepseekV2ForCausalLM(config)


def make_mamba(_out: Path, text: dict[str, Any]) -> Any:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    config = FalconH1Config(
        **text, mamba_d_ssm=HIDDEN, mamba_n_heads=4, mamba_d_head=64, mamba_d_state=32, mamba_chunk_size=64
    )
    return FalconH1ForCausalLM(config)


def make_delta(_out: Path, text: dict[str, Any]) -> Any:
    """With experts: vLLM's model is made for nothing else."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    dims = {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    inner = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    sizes = {**text, "num_hidden_layers": len(kinds)}
    config = Qwen3NextConfig(**sizes, **heads, **dims, **experts, **inner, layer_types=kinds)
    return Qwen3NextForCausalLM(config)


def make_images(out: Path, text: dict[str, Any]) -> Any:
    """An image is four embeddings, between marks."""
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
    )
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokenizer = AutoTokenizer.from_pretrained(str(out))
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    edge = {"longest_edge": IMAGE}
    images = Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)
    count = (IMAGE // PATCH // SHUFFLE) ** 2
    processor = Idefics3Processor(
        images, tokenizer, image_seq_len=count, chat_template=tokenizer.chat_template
    )
    processor.save_pretrained(str(out))
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": IMAGE,
        "patch_size": PATCH,
    }
    config = Idefics3Config(
        vision_config=vision,
        text_config={"model_type": "llama", **text, "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=SHUFFLE,
        pad_token_id=text["pad_token_id"],
    )
    return Idefics3ForConditionalGeneration(config)


def make_head(text: dict[str, Any], aux: int) -> Any:
    """One Llama layer for the `tiny` model's sizes, in which `aux` hidden states become one by `fc`."""
    from torch import nn
    from transformers import LlamaConfig, LlamaModel

    class LlamaForCausalLM(LlamaModel):  # type: ignore[misc]
        """vLLM goes by the name, and has the weights where they are in this class."""

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 8, "head_dim": 64}
    model = LlamaForCausalLM(LlamaConfig(**{**text, **sizes}))
    model.embed_tokens = nn.Identity()  # the tiny model's
    model.fc = nn.Linear(aux * HIDDEN, HIDDEN, bias=False)
    return model


def make_eagle(_out: Path, text: dict[str, Any]) -> Any:
    """Reads the last layer's output and the next token."""
    from torch import nn

    model = make_head(text, 2)
    model.layers[0].input_layernorm = model.norm = nn.Identity()
    return model


def make_eagle3(_out: Path, text: dict[str, Any]) -> Any:
    """Reads the outputs of three layers; the next token goes into the attention, beside them."""
    from torch import nn
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    model = make_head(text, 3)
    layer = model.layers[0]
    layer.hidden_norm = LlamaRMSNorm(HIDDEN)
    for name in ("q_proj", "k_proj", "v_proj"):
        heads = getattr(layer.self_attn, name).out_features
        setattr(layer.self_attn, name, nn.Linear(2 * HIDDEN, heads, bias=False))
    model.lm_head = nn.Linear(HIDDEN, text["vocab_size"], bias=False)
    model.config.draft_vocab_size = text["vocab_size"]
    model.config.eagle_aux_hidden_state_layer_ids = [1, 2, 3]  # vLLM's own choice of four layers is not three
    return model


def make_mtp(_out: Path, text: dict[str, Any]) -> Any:
    """MiMo: a Qwen 2 whose checkpoint has one layer more, which guesses."""
    from torch import nn
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

    class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
        """vLLM goes by the name."""

    model = MiMoForCausalLM(Qwen2Config(**text, num_nextn_predict_layers=1))
    layer = Qwen2DecoderLayer(model.config, 0)
    layer.input_proj = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        setattr(layer, name, Qwen2RMSNorm(HIDDEN))
    model.model.mtp_layers = nn.ModuleList([layer])
    return model


KINDS = {
    "mla": make_mla,
    "mamba": make_mamba,
    "delta": make_delta,
    "images": make_images,
    "eagle": make_eagle,
    "eagle3": make_eagle3,
    "mtp": make_mtp,
}


def strengthen(model: Any) -> None:
    """Make states and images count."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "connector" in name and parameter.ndim == 2:
                parameter.mul_(PROJECTOR_GAIN)
            elif "mamba.out_proj" in name:
                parameter.mul_(STATE_GAIN)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    maker = text_model_maker()
    vocab_size = maker.make_tokenizer(options.out, VOCABULARY, MAX_POSITIONS)
    torch.manual_seed(options.seed)
    model = KINDS[options.kind](options.out, common(maker, vocab_size))
    maker.fill_weights(model, options.seed, 1.0)
    strengthen(model)
    model = model.to(torch.float32)
    if model.can_generate():
        model.generation_config.eos_token_id = maker.EOS
    model.save_pretrained(str(options.out), safe_serialization=True)
    print(f"{sum(p.numel() for p in model.parameters())} parameters in {options.out}")


if __name__ == "__main__":
    main()
