"""Episodes as conversations: what each role read and said, in the form that datasets take."""

from typing import Any

import numpy as np
import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.datasets.mapping import ColumnMapping, MappedRow, mapped
from flexmarl.controlplane.telemetry.trajectories import conversations
from flexmarl.language.chains import Chain
from flexmarl.language.messages import Message
from flexmarl.store.data.payload import Arrays
from flexmarl.store.reads.episodes import EpisodeSummary
from flexmarl.store.reads.trajectories import EpisodeDetail, TurnRecord
from tests.support.chat_templates import CHATML, END, FORGETTING, MARKS, QWEN3, renderer, tokenizer
from tests.support.played import play

WORDS = tokenizer(MARKS)


class OneRun:
    no = 1


def ids(text: str) -> tuple[int, ...]:
    return tuple(WORDS.encode(text + END, add_special_tokens=False).ids)


def turn(
    role: str, number: int, chain: int, prompt: tuple[int, ...], sampled: tuple[int, ...], **more: Any
) -> TurnRecord:
    payload = np.array([*prompt, *sampled], "<i4").tobytes()
    given = {
        "role": role, "turn": number, "policy": role, "version": 0, "segments": [], "finish": "stop", "reward": 0.0,
        "temperature": 1.0, "engine": "", "latency_ms": 1.0, "arrays": Arrays(payload, len(prompt), len(sampled)),
        "unreadable": "", "cut": None, "chain": chain,
    }  # fmt: skip
    return TurnRecord(**{**given, **more})


def talk(
    template: str, said: list[tuple[str, str]], role: str = "solver", **settings: Any
) -> tuple[list[TurnRecord], list[int]]:
    """Play a conversation as a chain; its turns, and those that began a chain anew."""
    chain, turns, anew, begun = Chain(renderer(template, MARKS, **settings)), [], [], 0
    for number, (asked, answer) in enumerate(said):
        before = chain.number
        system = [Message("system", "Be brief.")] if number == 0 else []
        prompt = chain.ask([*system, Message("user", asked)])
        if chain.number != before:
            begun = number
            anew.append(number)
        sampled = ids(answer)
        chain.answer(sampled)
        turns.append(turn(role, number, begun, prompt, sampled))
    return turns, anew


def episode(turns: list[TurnRecord], breaks: dict[str, list[tuple[str, int]]] | None = None) -> EpisodeDetail:
    summary = EpisodeSummary(
        3, 1, 1, "train", "finished", "", 0, {"solver": 0.5}, 0.25, True, 1, 1, {}, {}, 0.0, 1.0, 1.0
    )
    return EpisodeDetail(summary, [], turns, {}, [], {}, breaks or {})


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "decoder_of", lambda run, policy: None if policy == "external" else WORDS)


def exported(found: EpisodeDetail, role: str = "") -> list[dict[str, Any]]:
    return list(conversations.conversations_of(OneRun(), found, role))


def said(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in row["messages"]]


SAID = [("2+3?", "5"), ("3+4?", "seven")]
WHOLE = [("system", "Be brief."), ("user", "2+3?"), ("assistant", "5"), ("user", "3+4?"), ("assistant", "seven")]


@pytest.mark.parametrize("template", [CHATML, QWEN3])
def test_a_chain_is_one_conversation_that_a_dataset_takes(template: str) -> None:
    [row] = exported(episode(talk(template, SAID)[0]))
    assert said(row) == WHOLE
    assert (row["role"], row["reward"], row["trajectory"]) == ("solver", 0.5, "3-1-1")
    kept = mapped(1, row, ColumnMapping(messages="messages"))
    assert isinstance(kept, MappedRow)
    assert (kept.row.answer, kept.row.columns) == ("seven", {"role": "solver", "reward": 0.5, "trajectory": "3-1-1"})


def test_thoughts_that_later_prompts_forget_are_part_of_what_was_said() -> None:
    turns, anew = talk(FORGETTING, [("2+3?", "<think>\nadd\n</think>\n\n5"), SAID[1]])
    assert anew == [1]
    [row] = exported(episode(turns, {"thoughts_rewritten": [("solver", 1)]}))
    assert said(row) == [*WHOLE[:2], ("assistant", "<think>\nadd\n</think>\n\n5"), *WHOLE[3:]]


def test_a_thought_that_the_prompt_closes_is_nobodys_words() -> None:
    [row] = exported(episode(talk(QWEN3, SAID[:1], enable_thinking=False)[0]))
    assert said(row) == WHOLE[:3]


def test_another_history_is_another_conversation() -> None:
    turns = [*talk(CHATML, SAID)[0]]
    [alone], _ = talk(CHATML, [("4+5?", "9")])
    turns.append(turn("solver", 2, 2, tuple(alone.arrays.prompt_ids()), ids("9")))
    first, second = exported(episode(turns, {"other_history": [("solver", 2)]}))
    assert said(first) == WHOLE
    assert said(second) == [("system", "Be brief."), ("user", "4+5?"), ("assistant", "9")]


def test_each_role_has_a_conversation_and_one_may_be_chosen() -> None:
    turns = [*talk(CHATML, SAID)[0], *talk(CHATML, SAID[:1], "reviser")[0]]
    assert [(row["role"], row["reward"]) for row in exported(episode(turns))] == [("solver", 0.5), ("reviser", 0.25)]
    assert [row["role"] for row in exported(episode(turns), "reviser")] == ["reviser"]


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param(talk(CHATML, [SAID[0], ("3+4?", " ")])[0], id="an empty reply"),
        pytest.param(
            talk(QWEN3, [("2+3?", 'So<tool_call>\n{"name": "sum", "arguments": {}}\n</tool_call>')])[0], id="a call"
        ),
        pytest.param([turn("solver", 0, 0, ids("red round"), ids("5"))], id="words of a game"),
        pytest.param([turn("solver", 0, 0, (), (), unreadable="gone")], id="tokens that are gone"),
        pytest.param([turn("solver", 0, 0, ids("a"), ids("5"), policy="external")], id="no tokenizer"),
    ],
)
def test_what_a_dataset_does_not_take_is_left_out(turns: list[TurnRecord]) -> None:
    assert exported(episode(turns)) == []


@pytest.mark.django_db
def test_the_export_has_lines_of_either_kind(api, editor, make_run) -> None:
    from tests.controlplane.test_trajectories import exported as lines_of

    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    assert lines_of(api, run, "lines=conversations") == []
    assert len(lines_of(api, run, "lines=trajectories")) == 4
    base = f"/api/v1/runs/{run.id}/trajectories/export"
    for query, pointer in (("role=solver", "lines"), ("lines=words", "lines")):
        refused = api.get(f"{base}?{query}")
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, pointer)
