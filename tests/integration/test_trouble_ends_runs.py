"""Models that cannot be trained on end their runs by name, with what to do: through the real services.

What each process refuses is shown one by one in the unit tests; here that its words arrive where people look.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch
from safetensors.torch import save_file

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.store.reads.report import consistency_report
from tests.support.system import System
from workers.models import tokenizer_json
from workers.models.weights import initial_weights, model_config
from workers.rollout.environments.registry import family_of

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

TEMPLATE = "reference_game"
WORDS = family_of(resolve({}, template=TEMPLATE).spec.environment).vocabulary()
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


class Trouble:
    """A model of the game's own vocabulary, before something about it goes wrong."""

    def __init__(self) -> None:
        self.config = model_config(FactoryModel(), len(WORDS))
        self.state: State = initial_weights(FactoryModel(), len(WORDS), 1)
        self.words = WORDS

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        save_file(self.state, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "tokenizer.json").write_bytes(tokenizer_json(self.words))


def too_short(model: Trouble) -> None:
    model.config["max_position_embeddings"] = 4


def without_numbers(model: Trouble) -> None:
    model.state["model.norm.weight"][3] = float("nan")


def overflowing(model: Trouble) -> None:
    for name in ("model.norm.weight", "lm_head.weight"):
        model.state[name] *= 1e30


def more_words(model: Trouble) -> None:
    model.words = (*WORDS, "more")


CASES: dict[str, tuple[Callable[[Trouble], None], str, str, str]] = {
    "context_overflow": (too_short, "episodes_failed", "positions exceed the model's 4", "Trajectories lists each"),
    "nonfinite_weights": (without_numbers, "command_failed", "model.norm.weight contains values", "open the log"),
    "nonfinite_logprobs": (overflowing, "episodes_failed", "is not a number", "Trajectories lists each"),
    "unsupported_model": (more_words, "command_failed", "the embedding knows", "open the log"),
}


def spec(folder: Path) -> dict[str, Any]:
    return {
        "batch": {
            "tasks_per_step": 2,
            "episodes_per_task": 2,
            "micro_batch_groups": 2,
            "rollout_groups": 2,
            "max_attempts": 1,
        },
        "policies": {
            role: {"model": {"type": "folder", "path": str(folder)}, "warmup": None} for role in ("speaker", "listener")
        },
        "budget": {"train_steps": 2, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
    }


@pytest.mark.parametrize("code", CASES)
def test_a_run_with_a_model_that_cannot_be_trained_ends_by_name(system: System, tmp_path: Path, code: str) -> None:
    spoil, reason, words, next_step = CASES[code]
    model = Trouble()
    spoil(model)
    model.write(tmp_path)
    api = system.api()
    run = api.finish(api.create_run(name=code, template=TEMPLATE, spec=spec(tmp_path))["id"], 300)
    assert (run["status"], run["reason"]) == ("failed", reason), run["reason_text"]
    for part in (code, words, next_step):
        assert part in run["reason_text"]
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        assert [check for check in consistency_report(conn, run["no"]) if not check.ok] == []
        assert conn.execute("SELECT count(*) FROM store.sample WHERE run_id = %s", [run["no"]]).fetchone() == (0,)
