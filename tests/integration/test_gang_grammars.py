"""Several trainer processes share a policy whose replies were held to grammars: the training of one process.

A further rank makes the masks of its own rows: its leader sends it the tokenizer, and the texts of the grammars.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.chat_templates import small_chat_model
from tests.support.trainer_child import Refused, TrainerChild, bind, start_trainer
from tests.unit.workers.test_train_grammars import GRAMMARS, OUTPUTS, drawn, grammar
from workers.training.wire import AccumulateReply, AccumulateRequest, StepReply, StepRequest, TrainRow

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[TrainerChild]]:
    folder = small_chat_model(tmp_path / "models" / "small")
    policy = {"model": {"type": "folder", "path": str(folder)}, "precision": "fp32"}
    spec = {
        "environment": {"type": "sums"},
        "agents": {"solver": {}, "reviser": {}},
        "policies": {"solver": policy, "reviser": policy},
        "algorithm": {"loss": {"type": "ppo_clip"}},
    }
    (tmp_path / "home").mkdir()
    found = [start_trainer(tmp_path / "home", lease, spec, roots=(str(tmp_path / "models"),)) for lease in (1, 2)]
    yield found
    for child in found:
        child.stop()


def named(rows: list[TrainRow], folder: Path) -> tuple[list[TrainRow], dict[str, str]]:
    """Name the grammars over the tokenizer as it lies in the model's folder; returns their texts too."""
    own = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    texts = dict(grammar(output, tokenizer=own) for output in OUTPUTS.values())
    names = {"": "", **dict(zip(GRAMMARS, texts, strict=True))}
    return [structs.replace(row, grammars=[names[one] for one in row.grammars]) for row in rows], texts


def accumulate(leader: TrainerChild, number: int, rows: list[TrainRow], texts: dict[str, str]) -> dict[str, float]:
    asked = AccumulateRequest("solver", f"0:{leader.incarnation}", number, 0.05, rows, grammars=texts)
    return leader.ask("/accumulate", asked, AccumulateReply).stats


def test_two_ranks_take_the_gradient_of_one(ranks: list[TrainerChild], tmp_path: Path) -> None:
    folder = tmp_path / "models" / "small"
    rows, texts = named(drawn(folder), folder)
    first = bind(ranks[:1], "solver")
    leader = ranks[0]
    found = []
    for meeting, gang in enumerate((ranks[:1], ranks), start=1):
        bind(gang, "solver", meeting, first)
        stats = [accumulate(leader, number, part, texts) for number, part in enumerate((rows[::2], rows[1::2]))]
        step = StepRequest("solver", f"0:{leader.incarnation}", [0, 1], 1, 1e-3)
        found.append((leader.ask("/step", step, StepReply).grad_norm, stats))
    (alone, one), (shared, two) = found
    assert shared == pytest.approx(alone, rel=1e-5)
    for name in ("loss_sum", "entropy_sum", "tokens"):
        assert sum(each[name] for each in two) == pytest.approx(sum(each[name] for each in one), rel=1e-4)
    fresh = [row for row in rows if len(row.spans) <= 2]
    bind(ranks, "solver", 3, first)
    assert accumulate(leader, 0, fresh, texts)["logprob_gap_max"] < 1e-5
    held = next(row for row in rows if row.grammars and len(row.spans) <= 2)
    wrong = structs.replace(held, response=held.prompt[:4] + held.response[4:])
    with pytest.raises(Refused, match="a sampled token that the grammar of its reply does not allow"):
        accumulate(leader, 1, [wrong, *fresh], texts)
