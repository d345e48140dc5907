"""A team of chat models plays and trains, token-faithfully: the engine reads what the model's template writes.

Everything that computes is real, in one process; the model is a small Llama of random weights with a byte tokenizer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import Origin
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import END, small_chat_model
from tests.support.local_training import LocalTraining
from workers.models.opening import allow
from workers.training.errors import TrainerRefusal

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    allow(ModelRoots((str(tmp_path),)))
    yield small_chat_model(tmp_path / "model")
    allow(ModelRoots())


def training(model: Path, home: Path, rounds: int = 1) -> LocalTraining:
    policy = {
        "model": {"type": "folder", "path": str(model)},
        "tuning": {"type": "lora", "rank": 4, "alpha": 8},
        "precision": "fp32",
    }
    changes = {
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "environment": {"type": "sums", "reply_tokens": 6, "graph": {"rounds": rounds}},
        # Random weights hardly ever say a right sum: what moves them is the bonus.
        "algorithm": {"entropy": {"start": 0.05}},
    }
    return LocalTraining(resolve(changes, template="chat_sums").spec, str(home))


def test_a_prompt_is_what_the_models_own_template_writes(model: Path, tmp_path: Path) -> None:
    team = training(model, tmp_path / "home")
    words = AutoTokenizer.from_pretrained(model)
    groups = team.play(range(4), Origin.TRAIN, 2)
    turns = [turn for group in groups for attempt in group for turn in attempt.turns]
    assert [turn.role for turn in turns] == ["solver", "reviser"] * 8
    for solver, reviser in zip(turns[::2], turns[1::2], strict=True):
        said = words.decode(solver.reply.choice.token_ids, skip_special_tokens=True)
        question = words.decode(solver.prompt).split("user\n")[1].split(END)[0]
        asked = [
            {"role": "system", "content": "You are the reviser of a team of two."},
            {"role": "user", "content": f"{question} A colleague said: {said.strip() or 'nothing'}"},
        ]
        expected = words.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert list(reviser.prompt) == expected
        ended = reviser.reply.choice.token_ids[-1] == words.eos_token_id
        assert reviser.reply.choice.finish_reason == ("stop" if ended else "length")


def test_a_step_moves_the_adapters_and_the_team_plays_with_them(model: Path, tmp_path: Path) -> None:
    team = training(model, tmp_path / "home")
    before = {name: pin.digest for name, pin in team._pins.items()}
    team.step()
    team.step()
    assert {name: pin.version for name, pin in team._pins.items()} == {"solver": 2, "reviser": 2}
    assert all(team._pins[name].digest != digest for name, digest in before.items())
    team.evaluate()


def test_a_conversation_is_trained_as_one_row_by_what_the_engine_said_of_it(model: Path, tmp_path: Path) -> None:
    """The trainer reads a chain once and gives each sampled token the chance that the engine gave it, turn by turn."""
    team = training(model, tmp_path / "home", rounds=3)
    settled, advantages = team._judged(team.play(range(1), Origin.TRAIN, 4)[0])
    rows = team._rows(settled, advantages)
    assert [len(own) for own in rows.values()] == [4, 4]
    assert all(len(row.advantages) == 3 and row.said() == [0, 1, 2] for own in rows.values() for row in own)
    team.step()
    assert all(gap < 1e-5 for gap in team.gaps.values()), team.gaps


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no system message') }}", "refuses the conversation: no system message"),
        ("{% for m in messages %}", "the chat template cannot be read"),
    ],
)
def test_a_model_whose_template_does_not_render_is_refused_by_name(
    model: Path, tmp_path: Path, template: str, said: str
) -> None:
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(TrainerRefusal, match=rf"policies\.(solver|reviser)\.model\.path: .*{said}"):
        training(model, tmp_path / "home")


def test_a_model_without_a_template_is_spoken_to_by_the_plain_one(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").unlink()
    team = training(model, tmp_path / "home")
    words = AutoTokenizer.from_pretrained(model)
    ((attempt,),) = team.play(range(1), Origin.EVAL, 1)
    text = words.decode(attempt.turns[0].prompt)
    assert text.startswith("system: You are the solver of a team of two.\nuser: What is ")
    assert text.endswith("Answer with only the number.\nassistant: ")


def test_an_agent_reads_no_more_than_it_is_set_to(model: Path, tmp_path: Path) -> None:
    whole = training(model, tmp_path / "whole", rounds=3)
    short = training(model, tmp_path / "short", rounds=3)
    solver = short.spec.agents["solver"].model_copy(update={"context_tokens": 250})
    short.spec = short.spec.model_copy(update={"agents": {**short.spec.agents, "solver": solver}})
    read = {}
    for name, team in (("whole", whole), ("short", short)):
        groups = team.play(range(4), Origin.TRAIN, 2)
        turns = [turn for group in groups for attempt in group for turn in attempt.turns if turn.role == "solver"]
        read[name] = max(len(turn.prompt) for turn in turns)
    assert read["short"] <= 250 < read["whole"]
