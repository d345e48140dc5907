"""One training step over rows of lognormal lengths, as several trainers take it; what `training.py` compares.

Every side takes the same step on the same model: the clipped surrogate against recorded log-probabilities, mean over
tokens, gradient norm clipped to 1, AdamW. The loops over the Hugging Face model compute logits where tokens are
predicted alone, and their log-probabilities by a gather and a logsumexp, as TRL does; none computes an entropy. A step
is timed by the processor time of its process, which works on one thread: on a shared machine others take the rest.
"""

import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from workers.training.learner import Learner
    from workers.training.wire import TrainRow

LEARNING_RATE = 1e-4
CLIP = 1.0
PADDED_ROWS = 8
"""Rows of a micro-batch of the plain loop, in the order they come in; TRL's default."""
BUDGET = 2048
"""Tokens of a forward pass, padding included, of the loop that sorts by length; the trainer's own on a CPU."""


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    heads: int
    intermediate: int
    words: int
    rows: int


SIZES = {
    "S": Size(64, 2, 4, 128, 43, 128),
    "M": Size(128, 2, 4, 256, 43, 96),
    "L": Size(384, 6, 6, 1024, 32_000, 8),
}
"""S and M are the factory's; L has 23 million parameters and a vocabulary of a real model."""


def model_of(size: Size) -> Any:
    """Return a Qwen2 model of random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size.words,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        intermediate_size=size.intermediate,
        tie_word_embeddings=size.words > 1000,
    )
    return Qwen2ForCausalLM(config)


def lognormal_rows(size: Size, count: int) -> "list[TrainRow]":
    """Prompts of about 30 tokens and replies of about 60, a few of them ten times as long."""
    from workers.training.wire import TrainRow

    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        prompt = int(np.clip(rng.lognormal(math.log(32), 0.5), 4, 256))
        reply = int(np.clip(rng.lognormal(math.log(64), 1.0), 4, 768))
        rows.append(
            TrainRow(
                prompt=rng.integers(3, size.words, prompt).astype("<i4").tobytes(),
                response=rng.integers(3, size.words, reply).astype("<i4").tobytes(),
                logprobs=np.full(reply, -math.log(size.words), "<f4").tobytes(),
                allowed=b"",
                temperature=1.0,
                advantages=[float(rng.standard_normal())],
                weight=1.0,
            )
        )
    return rows


def tokens_of(rows: "Sequence[TrainRow]") -> int:
    return sum(len(row.prompt) + len(row.response) for row in rows) // 4


def resident_mb(field: str) -> float:
    """Return a field of this process's memory: VmRSS, or VmHWM, its peak since `forget_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Begin the peak of resident memory anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class Packed:
    """This project's trainer, with its own decoder."""

    library = False

    def __init__(self, size: Size, rows: "list[TrainRow]", precision: str = "fp32", recompute: bool = False) -> None:
        self.rows = rows
        self.learner = learner_of(model_of(size), precision, recompute, self.library)

    def step(self) -> float:
        began = time.process_time()
        self.learner.accumulate("", 0, b"", self.rows, 0.0)
        self.learner.step(LEARNING_RATE)
        self.learner.accumulator.open("")
        return time.process_time() - began

    def gradient(self) -> "dict[str, torch.Tensor]":
        """Return the mean gradient by name."""
        from flexmarl.contracts.specification.losses import LOSS
        from workers.training.objective import Objective

        total, stats = self.learner.gradient(self.rows, 0.0, Objective.of(LOSS.options("ppo_clip")))
        return self.learner.parameters.split(total / stats.z)


class Library(Packed):
    """The same trainer with its back end of the transformers library."""

    library = True


def learner_of(model: Any, precision: str, recompute: bool, library: bool) -> "Learner":
    from flexmarl.contracts.specification.losses import LOSS
    from flexmarl.contracts.specification.team import AdamW
    from workers.models.architecture import parse_architecture
    from workers.models.families import LibraryModel
    from workers.training.learner import Learner
    from workers.training.objective import Objective

    tied = model.config.tie_word_embeddings
    weights = {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    config, objective = model.config.to_dict(), Objective.of(LOSS.options("ppo_clip"))
    shape = LibraryModel(json.dumps(config), sized=True) if library else parse_architecture(config)
    return Learner(weights, shape, objective, AdamW(), precision, recompute=recompute)


def adamw(model: Any) -> "torch.optim.Optimizer":
    """Return the optimizer of the loops, over what of a model is trained."""
    import torch

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(trained, LEARNING_RATE, (0.9, 0.95), weight_decay=0.0, fused=True)


class Padded:
    """A plain loop over the Hugging Face model: micro-batches of a fixed number of rows, padded to the longest."""

    def __init__(self, size: Size, rows: "list[TrainRow]") -> None:
        self.rows = rows
        self.model = model_of(size).train()
        self.optimizer = adamw(self.model)
        self.tokens = sum(len(row.response) // 4 for row in rows)

    def batches(self) -> "Iterator[list[TrainRow]]":
        for start in range(0, len(self.rows), PADDED_ROWS):
            yield self.rows[start : start + PADDED_ROWS]

    def step(self) -> float:
        import torch

        began = time.process_time()
        self.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return time.process_time() - began

    def backward(self) -> None:
        self.optimizer.zero_grad()
        for rows in self.batches():
            self.loss(rows).backward()

    def loss(self, rows: "list[TrainRow]") -> "torch.Tensor":
        import torch

        ids, mask, replied, advantages, behaviour, keep = _table(rows)
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=keep).logits[:, :-1]
        targets = ids[:, 1 - keep :]
        logprobs = logits.gather(2, targets.unsqueeze(2)).squeeze(2) - logits.logsumexp(-1)
        ratio = (logprobs - behaviour).exp()
        terms = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return (terms * replied).sum() / self.tokens

    def gradient(self) -> "dict[str, torch.Tensor]":
        """Return the mean gradient by name."""
        self.backward()
        return {name: weight.grad for name, weight in self.model.named_parameters()}


class Bucketed(Padded):
    """The same loop over rows sorted by length, in micro-batches of one token budget."""

    def batches(self) -> "Iterator[list[TrainRow]]":
        held: list[TrainRow] = []
        for row in sorted(self.rows, key=lambda row: tokens_of([row])):
            if held and (len(held) + 1) * tokens_of([row]) > BUDGET:
                yield held
                held = []
            held.append(row)
        yield held


def _table(rows: "Sequence[TrainRow]") -> "tuple[torch.Tensor, ...]":
    """Pad rows on the right; tables of replies hold the positions that predict any of them."""
    import torch

    longest, shortest = max(tokens_of([row]) for row in rows), min(len(row.prompt) // 4 for row in rows)
    keep = longest - shortest + 1
    ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
    replied, behaviour = np.zeros((len(rows), keep - 1), "<f4"), np.zeros((len(rows), keep - 1), "<f4")
    for number, row in enumerate(rows):
        prompt, end = len(row.prompt) // 4, tokens_of([row])
        ids[number, :end] = np.frombuffer(row.prompt + row.response, "<i4")
        mask[number, :end] = 1
        replied[number, prompt - shortest : end - shortest] = 1.0
        behaviour[number, prompt - shortest : end - shortest] = np.frombuffer(row.logprobs, "<f4")
    advantages = torch.tensor([[row.advantages[0]] for row in rows])
    return *map(torch.from_numpy, (ids, mask, replied)), advantages, torch.from_numpy(behaviour), keep


class Trl:
    """TRL's GRPOTrainer: its own loss of micro-batches, with its fused head; its optimizer is the loops'."""

    def __init__(self, size: Size, rows: "list[TrainRow]") -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        words = {f"w{number}": number for number in range(size.words)}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), pad_token="w0", eos_token="w2"
        )
        self._begin(model_of(size), tokenizer, "w3", rows)

    def _begin(self, model: Any, tokenizer: Any, prompt: str, rows: "list[TrainRow]") -> None:
        import torch
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        arguments = GRPOConfig(
            tempfile.mkdtemp(prefix="flexmarl-trl-"), use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=PADDED_ROWS, num_generations=PADDED_ROWS, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        self.trainer = GRPOTrainer(
            model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [prompt] * PADDED_ROWS}), processing_class=tokenizer,
        )  # fmt: skip
        self.trainer.current_gradient_accumulation_steps = -(-len(rows) // PADDED_ROWS)
        self.model = self.trainer.model.train()
        self.optimizer = adamw(self.model)
        self.rows = rows
        self.tokens = torch.tensor(sum(len(row.response) // 4 for row in rows))

    def step(self) -> float:
        import torch

        began = time.process_time()
        self.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return time.process_time() - began

    def backward(self) -> None:
        self.optimizer.zero_grad()
        for start in range(0, len(self.rows), PADDED_ROWS):
            self.loss(self.rows[start : start + PADDED_ROWS]).backward()

    def loss(self, rows: "list[TrainRow]") -> "torch.Tensor":
        found: torch.Tensor = self.trainer._compute_loss(self.model, self._inputs(rows))
        return found

    def _inputs(self, rows: "list[TrainRow]") -> "dict[str, torch.Tensor]":
        import torch

        prompts, replies = ([getattr(row, part) for row in rows] for part in ("prompt", "response"))
        prompt_ids, prompt_mask = _side(prompts, left=True)
        completion_ids, completion_mask = _side(replies, left=False)
        old = _side([row.logprobs for row in rows], left=False, kind="<f4")[0]
        return {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor([row.advantages[0] for row in rows]),
            "old_per_token_logps": old,
            "num_items_in_batch": self.tokens,
        }


def _side(parts: "Sequence[bytes]", left: bool, kind: str = "<i4") -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    longest = max(len(part) for part in parts) // 4
    table = np.zeros((len(parts), longest), np.int64 if kind == "<i4" else np.float32)
    mask = np.zeros((len(parts), longest), np.int64)
    for number, part in enumerate(parts):
        own = np.frombuffer(part, kind)
        place = slice(longest - len(own), None) if left else slice(0, len(own))
        table[number, place], mask[number, place] = own, 1
    return torch.from_numpy(table), torch.from_numpy(mask)


SIDES: dict[str, type] = {"packed": Packed, "library": Library, "padded": Padded, "bucketed": Bucketed, "trl": Trl}
