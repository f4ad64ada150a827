"""A tiny model, and what it answers: a program for SGLang's environment.

    python model.py FOLDER PROMPTS.json MAX_TOKENS    # writes FOLDER and FOLDER/answers.json

Transformers computes the answers greedily in float32, without any cache between requests: no part of SGLang
has had a hand in them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))


def main() -> None:
    folder, prompts, count = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3])
    import make_tiny_model

    sys.argv = ["make_tiny_model.py", str(folder)]
    make_tiny_model.main()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            out = model.generate(ids, do_sample=False, max_new_tokens=count, eos_token_id=-1, pad_token_id=0)
        tokens = out[0, ids.shape[1] :].tolist()
        answers.append({"prompt_tokens": ids.shape[1], "tokens": tokens, "text": tokenizer.decode(tokens)})
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
