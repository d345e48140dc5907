"""A real chat model imitates conversations: SmolLM2-135M-Instruct, with its own template and tokenizer, in one process.

What it learns is compared with what transformers computes of the same texts.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from flexmarl.contracts.resolve import resolve
from flexmarl.controlplane.datasets.mapping import ColumnMapping, MappedRow, mapped
from flexmarl.language.dataset_rows import DatasetRow
from flexmarl.language.demonstrations import chains_of, conversation_of
from tests.support.chat_model import chat_home, chat_model  # noqa: F401 - fixtures
from tests.support.forms import form
from workers.child import IntervalLog
from workers.models.tokenizer import folder_spoken
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import BindRequest
from workers.vocabulary import renderer_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEPS, CONVERSATIONS = form(short=(2, 6), full=(4, 20))
START, END = "<|im_start|>assistant\n", "<|im_end|>"


def conversations() -> list[MappedRow]:
    """The first conversations of the example, as they are imported."""
    lines = (ROOT / "examples/datasets/talks.jsonl").read_bytes().splitlines()[:CONVERSATIONS]
    rows = [mapped(number, orjson.loads(line), ColumnMapping(messages="messages")) for number, line in enumerate(lines)]
    return [row for row in rows if isinstance(row, MappedRow)]


def labelled(tokenizer: Any, row: DatasetRow) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation as transformers writes it; -100: not learned."""
    said = [{"role": one.role, "content": one.content} for one in conversation_of(row)]
    text = tokenizer.apply_chat_template(said, tokenize=False)
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans, place = [], text.find(START)
    while place >= 0:
        begun = place + len(START)
        spans.append((begun, text.index(END, begun) + len(END)))
        place = text.find(START, begun)
    inside = [any(first <= at < last for first, last in spans) for at, _ in found["offset_mapping"]]
    pairs = zip(found["input_ids"], inside, strict=True)
    return found["input_ids"], [number if learned else -100 for number, learned in pairs]


def test_a_chat_model_learns_what_assistants_say(chat_model: Path, tmp_path: Path) -> None:  # noqa: F811 - a fixture
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = conversations()
    assert len(rows) == CONVERSATIONS
    tokenizer, net = AutoTokenizer.from_pretrained(chat_model), AutoModelForCausalLM.from_pretrained(chat_model)
    spoken = folder_spoken(str(chat_model))
    renderer = renderer_of(spoken.tokenizer, spoken.chat)
    assert renderer is not None
    total, count = 0.0, 0
    for row in rows:
        ids, labels = labelled(tokenizer, row.row)
        [chain] = chains_of(renderer, conversation_of(row.row))
        parts = zip(chain.read, chain.sampled, strict=True)
        learned = [
            pair for read, said in parts for pair in (*((one, -100) for one in read), *zip(said, said, strict=True))
        ]
        assert learned == list(zip(ids, labels, strict=True))[: len(learned)]
        assert set(labels[len(learned) :]) <= {-100}
        with torch.no_grad():
            tokens = sum(label != -100 for label in labels)
            total += float(net.float()(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss) * tokens
        count += tokens

    warmup = {
        "steps": STEPS,
        "batch_size": len(rows),
        "learning_rate": 1e-3,
        "demonstrations": {"dataset": {"name": "talks"}},
    }
    policy = {"precision": "fp32", "tuning": {"type": "lora", "rank": 8}, "warmup": warmup}
    spec = resolve({"policies": {"solver": policy}}, template="chat_sums").spec
    trainer = Trainer(spec, 1, "a", str(tmp_path), "cpu", IntervalLog())
    facts = trainer.bind(BindRequest("solver", CREATE, demonstrations=[row.line for row in rows])).facts
    assert facts["warmup_loss_first"] == pytest.approx(total / count, rel=1e-4)
    assert facts["warmup_loss_last"] < form(short=0.95, full=0.5) * facts["warmup_loss_first"]
    assert (facts["warmup_tokens"], facts["warmup_conversations"]) == (STEPS * count, len(rows))
