"""vLLM draws replies under masks that the trainer makes again: by any end, and behind what other engines made."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flexmarl.contracts.reply_grammars import LIBRARY
from flexmarl.contracts.specification.team import FolderModel
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import END, START, small_chat_model
from tests.support.engines import RunningEngine, needs_vllm
from tests.unit.workers.test_train_grammars import BODY, LOSS_, OUTPUTS, WORDS, grammar, learner_of
from workers.models.opening import allow
from workers.models.weights import initial_weights
from workers.rollout.engines.wire import CompletionChoice
from workers.training.held_replies import HeldReplies
from workers.training.objective import Objective
from workers.training.wire import TrainRow

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

STOP = [WORDS.token_to_id(END), WORDS.token_to_id(START)]
PROMPT = WORDS.encode("Who is it?").ids
REPLIES = 12


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    home = tmp_path_factory.mktemp("grammars")
    folder = small_chat_model(home.parent / "grammar-model")
    model = {"model": {"type": "folder", "path": str(folder)}}
    spec = {
        "environment": {"type": "sums"},
        "agents": {"solver": {"sampling": {"structured": OUTPUTS["json_schema"].model_dump()}}, "reviser": {}},
        "policies": {"solver": model, "reviser": model},
        "resources": {"engine": "vllm"},
    }
    running = RunningEngine("vllm", home, spec=spec)
    try:
        running.ready()
        allow(ModelRoots((str(home.parent),)))
        digest = running.plane.put(initial_weights(FolderModel(path=str(folder)), 0, 0)).digest
        allow(ModelRoots())
        asyncio.run(running.load("solver", 0, digest))
        yield running
    finally:
        running.child.stop(20.0)


def ask(engine: RunningEngine, name: str, **more: Any) -> list[CompletionChoice]:
    sampling = {"structured": OUTPUTS[name].model_dump_json(), "library": LIBRARY}
    body = {
        "prompt": [PROMPT] * REPLIES, "seeds": list(range(REPLIES)), "max_tokens": 160, "temperature": 0.8,
        "stop_token_ids": STOP, "sampling": sampling, **more,
    }  # fmt: skip
    return asyncio.run(engine.complete(model="solver", version=0, **body))


def said(choice: CompletionChoice) -> str:
    return WORDS.decode(choice.token_ids, skip_special_tokens=True)


def whole(name: str, choice: CompletionChoice) -> bool:
    return bool(re.fullmatch("[a-c]{2,4}(-[0-9]+)?", said(choice)) if name == "regex" else json.loads(said(choice)))


def gap(engine: RunningEngine, name: str, choices: list[CompletionChoice]) -> float:
    """Return the largest difference of the trainer's log-probabilities and the engine's."""
    digest, body = grammar(OUTPUTS[name], stop=tuple(STOP))
    rows = [
        TrainRow(
            np.array(PROMPT, "<i4").tobytes(), np.array(one.token_ids, "<i4").tobytes(),
            np.array(one.logprobs, "<f4").tobytes(), b"", 0.8, [1.0], 1.0, grammars=[digest],
        )
        for one in choices
    ]  # fmt: skip
    learner = learner_of(engine.home.parent / "grammar-model")
    held = HeldReplies(BODY).know({digest: body})
    return learner.gradient(rows, 0.0, Objective.of(LOSS_), replies=held)[1].logprob_gap_max


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_trainer_agrees_with_what_vllm_drew(engine: RunningEngine, name: str) -> None:
    choices = ask(engine, name)
    ended = [one for one in choices if one.finish_reason == "stop"]
    assert all(whole(name, one) for one in ended)
    assert len(ended) > REPLIES / 3
    assert {one.token_ids[-1] for one in ended} == set(STOP), "each id that ends replies does"
    assert gap(engine, name, choices) < 1e-5


def test_a_reply_goes_on_where_others_left_it(engine: RunningEngine) -> None:
    first = [one for one in ask(engine, "json_schema") if len(one.token_ids) > 20]
    done = [{"token_ids": one.token_ids[:15], "logprobs": one.logprobs[:15], "segments": [0, 15]} for one in first]
    count = len(first)
    choices = ask(engine, "json_schema", prompt=[PROMPT] * count, seeds=list(range(count)), done=done)
    assert any(one.finish_reason == "stop" for one in choices)
    assert all(whole("json_schema", one) for one in choices if one.finish_reason == "stop")
    assert gap(engine, "json_schema", choices) < 1e-5


def test_other_masks_than_the_trainers_are_refused(engine: RunningEngine) -> None:
    body = {
        "model": "solver", "version": 0, "prompt": [PROMPT], "seeds": [0], "max_tokens": 4, "stop_token_ids": STOP,
        "sampling": {"structured": OUTPUTS["regex"].model_dump_json(), "library": "llguidance 0.1"},
    }  # fmt: skip
    status, answer = asyncio.run(engine.ask("/v1/completions", body))
    assert status == 422
    assert f"its masks are to be those of llguidance 0.1, and this engine has {LIBRARY}" in answer["detail"]
