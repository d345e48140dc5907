"""What it costs a trainer to make the masks of held replies again, and to compute log-probabilities under them.

`python tests/benchmarks/reply_masks.py TOKENIZER_JSON`: replies to a JSON schema over that vocabulary. Times are of the
process's own processor, medians of `REPEATS`.
"""

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from flexmarl.contracts.reply_grammars import ReplyGrammar, digest_of
from workers.training.held_replies import HeldReplies, MaskTable
from workers.training.scores import ScoreRequest, scores

ROWS, REPEATS, WIDTH = 64, 5, 64
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "said": {"type": "string"}},
    "required": ["name", "age", "said"],
    "additionalProperties": False,
}


def median_s(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=Path)
    body = parser.parse_args().tokenizer.read_bytes()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_str(body.decode())
    words, stop = tokenizer.get_vocab_size(), tokenizer.get_vocab_size() - 1
    structured = json.dumps({"type": "json_schema", "of": SCHEMA})
    text = ReplyGrammar(
        structured=structured, stop=(stop,), tokenizer=hashlib.sha256(body).hexdigest()
    ).model_dump_json()
    held = HeldReplies(body).know({digest_of(text): text})
    said = [
        json.dumps({"name": f"Ann {n}", "age": n, "said": "the quick brown fox jumps over the lazy dog " * (n % 5 + 1)})
        for n in range(ROWS)
    ]
    ids = [np.array(tokenizer.encode(one, add_special_tokens=False).ids, np.int64) for one in said]
    tokens = sum(map(len, ids))
    began = time.process_time()
    MaskTable(held, words).held([(digest_of(text), ids[0])])
    compiled = time.process_time() - began
    replies = [(digest_of(text), one) for one in ids]
    masks = median_s(lambda: MaskTable(held, words).held(replies))
    table = MaskTable(held, words)
    kinds = np.concatenate(table.held(replies))
    used, of = np.unique(kinds, return_inverse=True)
    hidden, head = torch.randn(tokens, WIDTH, requires_grad=True), torch.randn(words, WIDTH, requires_grad=True)
    places, drawn = torch.arange(tokens), torch.from_numpy(np.concatenate(ids))
    bits = torch.from_numpy(table.packed(used))

    def both(asked: ScoreRequest) -> None:
        scores(hidden, head, asked)[0].sum().backward()

    free = median_s(lambda: both(ScoreRequest(places, drawn)))
    under = median_s(lambda: both(ScoreRequest(places, drawn, bits=bits, bits_of=torch.from_numpy(of))))
    print(f"{words} words, {ROWS} replies, {tokens} tokens, {len(used)} different masks of {bits.numel()} bytes in all")
    print(f"first reply with compilation {compiled * 1e3:.1f} ms, then {masks / tokens * 1e6:.1f} us per token")
    print(f"scores and their gradient (width {WIDTH}): {free:.3f} s, under masks {under:.3f} s")


if __name__ == "__main__":
    main()
