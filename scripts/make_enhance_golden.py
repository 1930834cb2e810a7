#!/usr/bin/env python3
"""Makes tests/data/golden/enhance_greedy.json: what Hugging Face's Gemma 3 answers greedily.

    python3 scripts/make_enhance_golden.py tests/data/tiny/gemma tests/data/golden/enhance_greedy.json

Needs torch and transformers 5. Float32 on the CPU, no image, no padding. Prompts and answers are
long enough to leave the sliding window of the tiny model behind. A small random model soon repeats
one token, so each prompt is also continued without any token that has occurred (no_repeat): then
every step depends on all that came before.
"""
import json
import sys

import torch
import transformers

PROMPTS = [
    "<start_of_turn>user\na boat<end_of_turn>\n<start_of_turn>model\n",
    "<start_of_turn>user\nWrite one paragraph about the sea, its waves and the wind.\n\n"
    "Request: a red kite above the beach, seen from below, children laugh<end_of_turn>\n"
    "<start_of_turn>model\n",
    "x",
]
NEW_TOKENS = 80


def main() -> None:
    folder, out = sys.argv[1:]
    model = transformers.Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # The folder's own sampling settings are for chats.
    model.generation_config = transformers.GenerationConfig(pad_token_id=tokenizer.pad_token_id)
    cases = []
    for prompt in PROMPTS:
        for no_repeat in (False, True):
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            # No token ends the answer: what follows is the model's plain continuation.
            config = transformers.GenerationConfig(
                do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=tokenizer.pad_token_id,
                no_repeat_ngram_size=1 if no_repeat else 0, return_dict_in_generate=True, output_scores=True)
            with torch.inference_mode():
                result = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
            best_two = torch.stack(result.scores).topk(2).values[:, 0]  # [tokens, 2]
            cases.append({
                "prompt": prompt,
                "no_repeat": no_repeat,
                "input_ids": ids[0].tolist(),
                "new_ids": result.sequences[0, ids.shape[1]:].tolist(),
                "best_scores": [round(value, 5) for value in best_two[:, 0].tolist()],
                # Two implementations agree on a token when they are nearer to each other than this.
                "smallest_lead": (best_two[:, 0] - best_two[:, 1]).min().item(),
            })
    golden = {"transformers": transformers.__version__,
              "sliding_window": model.config.text_config.sliding_window, "cases": cases}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(golden, file)
        file.write("\n")


if __name__ == "__main__":
    main()
