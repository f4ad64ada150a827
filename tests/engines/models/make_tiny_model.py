"""Make a tiny Llama-architecture checkpoint with seeded random weights and its own tokenizer, offline.

Run with an interpreter that has torch, transformers and tokenizers:

    python make_tiny_model.py OUT_DIR [--layers 4] [--kv-heads 4] [--sliding-window 128] [--seed 0]

Plain random weights answer every prompt with one repeated token, which would hide wrong KV. The queries are
scaled up (peaked attention) and so is the attention output, which makes greedy output varied and dependent on
every prompt token.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path
from typing import Any

QUERY_GAIN = 3.0
ATTENTION_OUTPUT_GAIN = 4.0
BOS, EOS, PAD = 0, 1, 2


def make_tokenizer(out: Path, vocab_size: int, max_positions: int) -> int:
    """Train a byte-level BPE tokenizer on texts that every installation has; returns its vocabulary size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse.py", "datetime.py", "typing.py", "inspect.py", "pickle.py", "decimal.py")
    tokenizer.train([str(library / name) for name in names if (library / name).is_file()], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=max_positions,
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    fast.save_pretrained(str(out))
    return len(fast)


def make_config(options: argparse.Namespace, vocab_size: int) -> tuple[Any, type[Any]]:
    """The model's configuration and class: Llama, or Gemma3 with alternating layer kinds."""
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": options.hidden,
        "intermediate_size": options.inter,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.head_dim,
        "max_position_embeddings": options.max_positions,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    if options.sliding_window:
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig

        kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(options.layers)]
        config = Gemma3TextConfig(
            **common,
            sliding_window=options.sliding_window,
            query_pre_attn_scalar=options.head_dim,
            layer_types=kinds,
        )
        return config, Gemma3ForCausalLM
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaConfig(**common), LlamaForCausalLM


def fill_weights(model: Any, seed: int, embedding_std: float) -> None:
    """Overwrite every matrix with seeded normal values; norms keep their initial ones."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim != 2:
                continue
            std = parameter.shape[1] ** -0.5
            if "embed_tokens" in name:
                std = embedding_std
            elif "o_proj" in name:
                std *= ATTENTION_OUTPUT_GAIN
            elif "q_proj" in name:
                std *= QUERY_GAIN
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--inter", type=int, default=704)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--max-positions", type=int, default=4096)
    parser.add_argument("--sliding-window", type=int, default=0, help="N > 0: two KV-cache groups")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    import torch

    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    vocab_size = max(options.vocab, make_tokenizer(options.out, options.vocab, options.max_positions))
    torch.manual_seed(options.seed)
    config, model_class = make_config(options, vocab_size)
    model = model_class(config)
    # Gemma multiplies embeddings by sqrt(hidden), Llama does not.
    fill_weights(model, options.seed, options.hidden**-0.5 if options.sliding_window else 1.0)
    model = model.to(torch.float32)
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(str(options.out), safe_serialization=True)
    print(f"{sum(p.numel() for p in model.parameters())} parameters in {options.out}")


if __name__ == "__main__":
    main()
