"""Replies of trained agents that were held to a grammar: their gradient is that of what they were drawn from.

The engine draws them, the trainer makes the masks again along their ids, and a plain implementation of the definition,
with whole masked logits and the library's own model, says what must come out.
"""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from msgspec import structs
from torch.nn import functional as F

from flexmarl.algorithms.aggregation import aggregation_of
from flexmarl.contracts import reply_grammars
from flexmarl.contracts.reply_grammars import LIBRARY, ReplyGrammar, digest_of
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.sampling import JsonOutput, RegexOutput, StructuredOutput
from flexmarl.contracts.specification.team import AdamW, FolderModel, PolicySpec
from flexmarl.contracts.structured import grammar_of
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import END, small_chat_model, tokenizer
from tests.unit.workers.test_engine import finish
from workers.models.architecture import parse_architecture
from workers.models.families import shape_of
from workers.models.opening import allow
from workers.models.weights import initial_weights
from workers.rollout.engines.requests import Request
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import SamplingParameters
from workers.training import held_replies, scores
from workers.training.blocks import blocks_of
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.held_replies import HeldReplies
from workers.training.learner import Learner
from workers.training.objective import Objective
from workers.training.packing import pack
from workers.training.wire import TrainRow

WORDS = tokenizer()
BODY = WORDS.to_str().encode()
STOP = WORDS.token_to_id(END)
VOCABULARY = WORDS.get_vocab_size()
OUTPUTS: dict[str, StructuredOutput] = {
    "regex": RegexOutput(pattern="[a-c]{2,4}(-[0-9]+)?"),
    "json_schema": JsonOutput(
        of={
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 6},
                "age": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
}
LOSS_ = LOSS.options(type="ppo_clip")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("small"))


def grammar(output: StructuredOutput, **changes: object) -> tuple[str, str]:
    """Return digest and text of what replies are held to."""
    said = {"structured": output.model_dump_json(), "stop": (STOP,), "tokenizer": hashlib.sha256(BODY).hexdigest()}
    body = ReplyGrammar(**{**said, **changes}).model_dump_json()
    return digest_of(body), body


GRAMMARS = dict(map(grammar, OUTPUTS.values()))


def replies() -> HeldReplies:
    return HeldReplies(BODY).know(GRAMMARS)


def learner_of(folder: Path, trainer: str = "native", precision: str = "fp32", loss: object = LOSS_) -> Learner:
    allow(ModelRoots((str(folder.parent),)))
    policy = PolicySpec(model=FolderModel(path=str(folder)), trainer=trainer, precision=precision)
    weights, shape = initial_weights(policy.source, 0, 0), shape_of(policy)
    allow(ModelRoots())
    return Learner(weights, shape, Objective.of(loss), AdamW(), precision, epoch="0:a")


def drawn(folder: Path, count: int = 4, temperature: float = 1.0) -> list[TrainRow]:
    """Have the torch engine draw replies under each grammar and under none; chains of two turns come of some."""
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = TorchEngine("cpu", 64, tokenizer_of=lambda _: BODY)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    engine.load("p", 0, "d", engine.prepare(state, parse_architecture(model.config.to_dict())))
    asked = {}
    for name, output in (*OUTPUTS.items(), ("free", None)):
        for seed in range(count):
            structured = "" if output is None else output.model_dump_json()
            sampling = SamplingParameters(structured=structured, library=LIBRARY if structured else "")
            prompt = tuple(WORDS.encode(f"Say {name} {'x' * (seed % 3)}").ids)
            settings = {"max_tokens": 40, "seed": seed, "stop": (STOP,), "sampling": sampling}
            asked[f"{name}.{seed}"] = Request(f"{name}.{seed}", "p", prompt, temperature=temperature, **settings)
    engine.submit(list(asked.values()))
    answers = finish(engine)
    rows = [_row(asked[name], answers[name]) for name in asked]
    return [*rows, *(_chain(one, other) for one, other in zip(rows[::2], rows[1::2], strict=True))]


def _row(request: Request, answer: object) -> TrainRow:
    structured = request.sampling.structured
    digest = next((d for d, body in GRAMMARS.items() if structured and structured in _structured(body)), "")
    rng = np.random.default_rng(len(answer.token_ids))
    return TrainRow(
        np.array(request.prompt, "<i4").tobytes(), np.array(answer.token_ids, "<i4").tobytes(),
        np.array(answer.logprobs, "<f4").tobytes(), b"", request.temperature, [float(rng.standard_normal())], 1.0,
        grammars=[digest] if digest else [],
    )  # fmt: skip


def _structured(body: str) -> str:
    return ReplyGrammar.model_validate_json(body).structured


def _chain(one: TrainRow, other: TrainRow) -> TrainRow:
    """Join two rows to one chain of two turns; its log-probabilities are stale, its second prompt is new."""
    spans = [*one.lengths(), *other.lengths()]
    named = [*(one.grammars or [""]), *(other.grammars or [""])]
    return structs.replace(
        one, prompt=one.prompt + other.prompt, response=one.response + other.response,
        logprobs=one.logprobs + other.logprobs, advantages=[*one.advantages, *other.advantages], spans=spans,
        grammars=named if any(named) else [],
    )  # fmt: skip


def plain_masks(row: TrainRow) -> torch.Tensor:
    """Say by the library alone, token by token, which ids each sampled one stood among: [tokens, vocabulary]."""
    reader = LLTokenizer(BODY.decode(), n_vocab=VOCABULARY, eos_token=[STOP])
    response, found, at = np.frombuffer(row.response, "<i4"), [], 0
    for digest, tokens in zip(row.grammars or [""] * len(row.said()), row.lengths()[1::2], strict=True):
        walk = None
        if digest:
            output = next(each for each in OUTPUTS.values() if grammar(each)[0] == digest)
            walk = LLMatcher(reader, grammar_of(output))
        for token in response[at : at + tokens].tolist():
            if walk is None:
                found.append(torch.ones(VOCABULARY, dtype=torch.bool))
                continue
            bits = np.unpackbits(np.frombuffer(walk.compute_bitmask(), np.uint8), count=VOCABULARY, bitorder="little")
            found.append(torch.from_numpy(bits.astype(bool)))
            walk.consume_token(token)
        at += tokens
    return torch.stack(found)


def expected_gradient(
    folder: Path, rows: list[TrainRow], entropy_coef: float, near: float = 0.0
) -> tuple[dict[str, torch.Tensor], float]:
    """The definition with dense masked logits on the library's model; `near` penalises leaving it, as it was."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.model.embed_tokens.padding_idx = None  # the end of a turn, which chains read, is its padding
    value, entropies = torch.zeros((), dtype=torch.float64), 0.0
    for row in rows:
        lengths, parts, at = row.lengths(), [], [0, 0]
        where = []
        for number, tokens in enumerate(lengths):
            side = number % 2
            ids = np.frombuffer((row.prompt, row.response)[side], "<i4")[at[side] : at[side] + tokens]
            if side:
                start = sum(len(part) for part in parts)
                where += range(start - 1, start + tokens - 1)
            parts.append(ids)
            at[side] += tokens
        ids = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0][where] / row.temperature
        logs = F.log_softmax(logits.masked_fill(~plain_masks(row), -torch.inf), -1)
        response = torch.from_numpy(np.frombuffer(row.response, "<i4").astype(np.int64))
        logprobs = logs.gather(1, response[:, None])[:, 0]
        entropy = -(logs.exp() * logs.masked_fill(logs.isneginf(), 0.0)).sum(-1)
        entropies += float(entropy.detach().sum())
        behaviour = torch.from_numpy(np.frombuffer(row.logprobs, "<f4").astype(np.float64))
        ratio = (logprobs - behaviour).exp()
        advantages = torch.tensor(np.repeat(row.advantages, lengths[1::2]))
        bounded = ratio.clamp(1 - LOSS_.clip_low, 1 + LOSS_.clip_high)
        terms = -torch.minimum(ratio * advantages, bounded * advantages)
        c, _ = aggregation_of(LOSS_)(len(response))
        distance = near * (logprobs - logprobs.detach()) ** 2 / 2
        value = value + row.weight * c * (terms - entropy_coef * entropy + distance).sum()
    value.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, entropies


def flat(learner: Learner, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradients[name].flatten() for name in learner.parameters.named()])


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("trainer", ["native", "transformers"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trainer_and_engine_agree_on_what_was_drawn(folder: Path, trainer: str, temperature: float) -> None:
    rows = [row for row in drawn(folder, temperature=temperature) if len(row.spans) <= 2]
    learner = learner_of(folder, trainer)
    _, stats = learner.gradient(rows, 0.0, Objective.of(LOSS_), replies=replies())
    assert stats.logprob_gap_max < 1e-5
    _, blind = learner.gradient([structs.replace(row, grammars=[]) for row in rows], 0.0, Objective.of(LOSS_))
    assert blind.logprob_gap_max > 1.0, "without its masks it computes another distribution"
    assert stats.entropy_sum < blind.entropy_sum


@pytest.mark.parametrize(("trainer", "precision", "bound"), [("native", "fp64", 1e-6), ("transformers", "fp32", 1e-5)])
def test_the_gradient_is_that_of_dense_masked_logits(
    folder: Path, trainer: str, precision: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = drawn(folder, temperature=0.8)
    learner = learner_of(folder, trainer, precision)
    expected, entropies = expected_gradient(folder, rows, 0.3)
    expected_flat = flat(learner, expected)
    for chunk in (scores.CHUNK, 5 * VOCABULARY):  # whole, and each pack in chunks of five positions
        monkeypatch.setattr(scores, "CHUNK", chunk)
        gradient, stats = learner.gradient(rows, 0.3, Objective.of(LOSS_), replies=replies())
        assert relative(gradient, expected_flat) < bound
        assert stats.entropy_sum == pytest.approx(entropies, rel=1e-5)


def test_the_penalty_of_a_reference_is_over_what_was_allowed(folder: Path, tmp_path: Path) -> None:
    """The reference differs only where the grammar lets nothing through, so that no penalty is left of it."""
    algorithm = AlgorithmSpec(loss=LOSS_, kl={"coefficient": 1.0})
    rows = [row for row in drawn(folder) if row.grammars and len(row.spans) <= 2]
    learner, near = learner_of(folder), learner_of(folder)
    reference = near.decoder
    same, stats = learner.gradient(rows, 0.0, Objective.of(LOSS_, algorithm), reference=reference, replies=replies())
    assert stats.kl_reference_sum == 0.0
    same = same.clone()
    never = torch.ones(VOCABULARY, dtype=torch.bool)
    for row in rows:
        never &= ~plain_masks(row).any(0)
    said = set(np.concatenate([np.frombuffer(row.prompt + row.response, "<i4") for row in rows]).tolist())
    ids = [number for number in never.nonzero().flatten().tolist() if number not in said]
    assert ids, "some ids are neither read nor ever allowed"
    near.parameters.named()["model.embed_tokens.weight"][ids] *= 3.0
    near.parameters.publish()
    gradient, stats = learner.gradient(
        rows, 0.0, Objective.of(LOSS_, algorithm), reference=reference, replies=replies()
    )
    assert stats.kl_reference_sum == 0.0
    assert torch.equal(gradient, same)
    _, blind = learner.gradient(
        [structs.replace(row, grammars=[]) for row in rows], 0.0, Objective.of(LOSS_, algorithm), reference=reference
    )
    assert blind.kl_reference_sum > 0.0


def test_pairs_are_compared_under_their_masks(folder: Path) -> None:
    loss = LOSS.options(type="online_dpo")
    rows = [row for row in drawn(folder) if row.grammars and len(row.spans) <= 2]
    pairs = [
        structs.replace(row, pair=f"{n // 2}:a", member=n % 2, advantages=[(1.0, -1.0)[n % 2]])
        for n, row in enumerate(rows)
    ]
    learner, near = learner_of(folder, loss=loss), learner_of(folder, loss=loss)
    near.parameters.named()["model.norm.weight"] *= 1.5
    near.parameters.publish()
    objective = Objective.of(loss)
    found, stats = learner.gradient(pairs, 0.0, objective, reference=near.decoder, replies=replies())
    found = found.clone()
    margin = []
    for row in pairs:
        [(own, other)] = [
            tuple(one.decoder.scores(pack(blocks_of([row], lambda n: (1.0, 1.0), VOCABULARY, replies=replies()),
                  VOCABULARY, 4096)[0])[0].sum().item() for one in (learner, near))
        ]  # fmt: skip
        margin.append(own - other)
    leads = [a - b for a, b in zip(margin[::2], margin[1::2], strict=True)]
    assert stats.loss_sum == pytest.approx(
        sum(float(F.softplus(torch.tensor(-loss.beta * h))) for h in leads), rel=1e-4
    )
    blind, _ = learner.gradient(
        [structs.replace(row, grammars=[]) for row in pairs], 0.0, objective, reference=near.decoder
    )
    assert relative(blind, found) > 0.1


def test_rows_without_a_grammar_keep_their_bits(folder: Path) -> None:
    """Beside rows that are held, and with nothing that could make masks: the same bits."""
    rows = [row for row in drawn(folder) if not row.grammars]
    learner, objective = learner_of(folder), Objective.of(LOSS_)
    before, _ = learner.gradient(rows, 0.2, objective)
    before = before.clone()
    after, _ = learner.gradient(rows, 0.2, objective, replies=replies())
    assert torch.equal(before, after)
    (batch,) = pack(blocks_of(rows, lambda n: (1.0, 1.0), VOCABULARY, replies=replies()), VOCABULARY, 2**20)
    assert batch.masks.bits.size == 0


def test_masks_are_packed_bits_and_each_is_kept_once(folder: Path) -> None:
    rows = drawn(folder, 8)
    (batch,) = pack(blocks_of(rows, lambda n: (1.0, 1.0), VOCABULARY, replies=replies()), VOCABULARY, 2**20)
    assert batch.masks.bits.dtype == np.uint8
    assert batch.masks.bits.shape[1] == -(-VOCABULARY // 8)
    assert len(np.unique(batch.masks.bits, axis=0)) == len(batch.masks.bits) < len(batch.masks.bits_of) / 4


@pytest.mark.parametrize("words", [288, 287, 320])
def test_masks_fit_a_vocabulary_of_any_size(words: int) -> None:
    """Of the library's words of 32 bits, with ids beyond those of the tokenizer too."""
    letters = tokenizer(marks=[f"<{n}>" for n in range(words - VOCABULARY)]) if words != 320 else WORDS
    body = letters.to_str().encode()
    digest, text = grammar(OUTPUTS["regex"], tokenizer=hashlib.sha256(body).hexdigest())
    ids = [*letters.encode("ab-7").ids, STOP]
    row = TrainRow(
        np.array([5], "<i4").tobytes(), np.array(ids, "<i4").tobytes(), bytes(4 * len(ids)), b"", 1.0, [1.0], 1.0,
        grammars=[digest],
    )  # fmt: skip
    held = HeldReplies(body).know({digest: text})
    (batch,) = pack(blocks_of([row], lambda n: (1.0, 1.0), words, replies=held), words, 4096)
    bits = np.unpackbits(batch.masks.bits[batch.masks.bits_of], axis=1, count=words, bitorder="little")
    letters_of = [letters.token_to_id(one) for one in "abc"]
    assert np.flatnonzero(bits[0]).tolist() == sorted(letters_of)
    assert np.flatnonzero(bits[2]).tolist() == sorted([*letters_of, letters.token_to_id("-"), STOP])
    logits = torch.zeros(len(ids), words)
    refused_ids = scores._refused(torch.from_numpy(batch.masks.bits[batch.masks.bits_of]), words)
    assert refused_ids.shape == logits.shape
    assert torch.equal(~refused_ids, torch.from_numpy(bits.astype(bool)))


def test_inputs_are_shared_only_under_equal_grammars(folder: Path) -> None:
    held = next(row for row in drawn(folder) if row.grammars and len(row.spans) <= 2)
    free = structs.replace(held, grammars=[])
    (block,) = blocks_of([held, free, held], lambda n: (1.0, 1.0), VOCABULARY, replies=replies())
    assert len(block.inputs) == 2
    assert block.source.tolist() == [0, 0, 1]
    masked, plain = pack([block], VOCABULARY, block.length)  # each part of a block takes its own masks along
    tokens = plain_masks(held)
    bits = np.unpackbits(masked.masks.bits[masked.masks.bits_of], axis=1, count=VOCABULARY, bitorder="little")
    assert torch.equal(torch.from_numpy(bits.astype(bool)), tokens)
    assert (plain.masks.bits[plain.masks.bits_of] == 0xFF).all()


def refused(rows: list[TrainRow], held: HeldReplies | None, learner: Learner) -> TrainerRefusal:
    with pytest.raises(TrainerRefusal) as found:
        learner.gradient(rows, 0.0, Objective.of(LOSS_), replies=held)
    assert found.value.code is RefusalCode.OTHER_GRAMMAR
    return found.value


def test_what_was_not_drawn_under_these_masks_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(folder)
    rows = [row for row in drawn(folder) if len(row.spans) <= 2]
    at = next(n for n, row in enumerate(rows) if row.grammars and len(row.response) > 8)
    for place in (0, 4, len(rows[at].response) - 4):
        ids = bytearray(rows[at].response)
        ids[place : place + 4] = np.array([WORDS.token_to_id("<|im_start|>")], "<i4").tobytes()
        wrong = [structs.replace(row, response=bytes(ids)) if n == at else row for n, row in enumerate(rows)]
        assert f"row {at}: a sampled token that the grammar of its reply does not allow" in str(
            refused(wrong, replies(), learner)
        )
    assert "nothing is there that makes masks" in str(refused(rows, None, learner))
    assert "its text was not sent" in str(refused(rows, HeldReplies(BODY), learner))
    swapped = dict(zip(GRAMMARS, reversed(GRAMMARS.values()), strict=True))
    assert "another one's" in str(refused(rows, HeldReplies(BODY).know(swapped), learner))
    other = tokenizer(marks=("<think>",)).to_str().encode()
    assert "over the tokenizer" in str(refused(rows, HeldReplies(other).know(GRAMMARS), learner))
    monkeypatch.setattr(held_replies, "LIBRARY", "llguidance 9.0.0")
    assert f"its masks are those of {LIBRARY}, and this trainer has llguidance 9.0.0" in str(
        refused(rows, replies(), learner)
    )


def test_a_row_says_the_grammar_of_each_turn(folder: Path) -> None:
    learner = learner_of(folder)
    row = next(row for row in drawn(folder) if row.grammars and len(row.spans) == 4)
    with pytest.raises(TrainerRefusal, match=r"malformed_row.*1 grammars of 2 turns"):
        learner.gradient([structs.replace(row, grammars=row.grammars[:1])], 0.0, Objective.of(LOSS_), replies=replies())


def test_rows_cross_the_wire_with_their_grammars(folder: Path) -> None:
    rows = drawn(folder)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(rows), type=list[TrainRow])
    assert [row.grammars for row in read] == [row.grammars for row in rows]
    assert reply_grammars.LIBRARY.startswith("llguidance ")
