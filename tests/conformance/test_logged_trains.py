"""A small chat model replays logged conversations and is trained on what it said, in one process."""

from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import Origin
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import small_chat_model
from tests.support.local_training import LocalTraining
from workers.models.opening import allow
from workers.rollout import datasets

pytestmark = pytest.mark.timeout(600)

TURNS = 3
TALK = tuple(
    message
    for number in range(TURNS)
    for message in (Message("user", f"+{number}"), Message("assistant", str(number % 2)))
)


@pytest.fixture
def training(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    folder = small_chat_model(tmp_path / "model")
    allow(ModelRoots((str(tmp_path),)))
    rows = [(number == 0, to_line(DatasetRow(TALK[:-1], TALK[-1].content, {"no": number}))) for number in range(3)]
    changes: dict[str, Any] = {
        "environment": {
            "most_turns": TURNS, "most_patches": 2, "reply_tokens": 3, "thought_tokens": 4, **request.param,
            "dataset": {"name": "talks", "training": 2, "held_out": 1},
        },
        "policies": {
            "solver": {
                "model": {"type": "folder", "path": str(folder)}, "tuning": {"type": "full"}, "precision": "fp32",
            },
        },
        "batch": {"tasks_per_step": 2, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "evaluation": {"tasks": 1},
    }  # fmt: skip
    spec = resolve(changes, template="chat_logged").spec
    yield LocalTraining(spec, str(tmp_path), lines=datasets.keep(digest_of(rows), rows))
    allow(ModelRoots())
    datasets._kept.clear()


@pytest.mark.parametrize("training", [{"patch_writer": "on_policy"}], indirect=True)
def test_each_turn_that_was_replaced_ends_a_row_and_thoughts_are_in_none(training: LocalTraining) -> None:
    """A model that knows nothing says none of the logged turns: two are replaced, the third ends the episode."""
    (group,) = training.play([0], Origin.TRAIN, 4)
    settled, _ = training._judged(group)
    for attempt, row in zip(group, settled.episodes, strict=True):
        assert attempt.outcome is not None
        assert (attempt.outcome.facts["patches"], attempt.outcome.solved) == (2.0, False)
        assert attempt.outcome.facts["thought_tokens"] >= 2.0
        samples = [one for one in settled.samples if one.member == attempt.order.member]
        assert [(one.turn, len(one.spans)) for one in samples] == [(0, 1), (1, 1), (2, 1)]
        assert sum(len(one.response) for one in samples) == row.tokens <= TURNS * 3
        replaced = [entry for entry in row.transcript if len(entry) > 2]
        assert [entry[:2] for entry in replaced] == [["solver", 0], ["solver", 1], ["solver", 2]]
        assert [str(entry[2]).startswith("Patch point:") for entry in replaced] == [True, True, False]
        logged = training._codecs["solver"].decode(samples[1].prompt)
        assert "</think>\n\n0" in logged, "the logged turn is read behind its thought"
    training.step()
    assert training.steps_done == 1


@pytest.mark.parametrize("training", [{}], indirect=True)
def test_it_learns_from_turns_and_is_measured_without_patches(training: LocalTraining) -> None:
    before = training._pins["solver"]
    for _ in range(2):
        training.step()
    assert training._pins["solver"].version == before.version + 2
    assert training._pins["solver"].digest != before.digest
    evaluated = training.evaluate()
    assert 0.0 <= evaluated.team_score <= 1.0
    ((attempt,),) = training.play([1 << 30], Origin.EVAL, 1)
    assert attempt.outcome is not None
    facts = attempt.outcome.facts
    assert facts["patches"] == 0.0
    assert facts["sop"] == (facts["sop_progress"] + facts["sop_success"]) / 2.0
