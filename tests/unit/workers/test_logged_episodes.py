"""Logged conversations as episodes: what counts as the logged turn, what stands in its place, and what is measured."""

import asyncio
import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flexmarl.contracts.specification.logged import LoggedEpisodes
from flexmarl.contracts.wire import PolicyPin
from flexmarl.language.chains import Chain
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.logged import NotLogged, turns_of
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.renderer import Renderer
from tests.conformance.environment_kit import check_family
from tests.support.chat_templates import renderer, tokenizer
from workers.rollout import datasets
from workers.rollout.environments.base import Environment, Outcome, Reply
from workers.rollout.environments.logged_episodes import LoggedFamily
from workers.rollout.environments.registry import family_of
from workers.rollout.speech import Seat, Speech
from workers.vocabulary import Codec

TALK = (
    Message("system", "Be brief."),
    Message("user", "Say one."),
    Message("assistant", "One."),
    Message("user", "Say two."),
    Message("assistant", "<think>After one.</think>Two."),
    Message("user", "Say three."),
)
ROW = DatasetRow(TALK, "Three.")
TOOLS = [{"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}]
FIND = {"name": "find", "arguments": '{"what": "it", "n": 1}'}
CALLS = [
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": FIND}]},
    {"role": "tool", "content": "There.", "tool_call_id": "a"},
    {"role": "assistant", "content": "It is there."},
]
CALLING = DatasetRow((Message("user", "Where is it?"),), "", {"talk": CALLS, "tools": TOOLS})


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    datasets._kept.clear()


def family(rows: Sequence[DatasetRow] = (ROW, ROW), **options: Any) -> LoggedFamily:
    made = family_of(LoggedEpisodes.model_validate(options))
    assert isinstance(made, LoggedFamily)
    lines = [(number == 0, to_line(row)) for number, row in enumerate(rows)]
    made.lines = datasets.keep(digest_of(lines), lines)
    return made


def episode(held_out: bool = False, rows: Sequence[DatasetRow] = (ROW, ROW), **options: Any) -> Environment:
    return family(rows, **options).make(0, held_out, random.Random(0))


def said(environment: Environment, *texts: str) -> Outcome:
    for text in texts:
        environment.act([Reply(environment.asks()[0].role, text)])
    assert environment.asks() == []
    return environment.outcome()


def rewards(outcome: Outcome) -> list[float]:
    return [outcome.turn_rewards["solver", turn] for turn in range(len(outcome.turn_rewards))]


@pytest.mark.parametrize("options", [{}, {"most_patches": 0}, {"patch_writer": "off_policy"}], ids=str)
def test_it_keeps_the_contract_of_environments(options: dict[str, Any]) -> None:
    made = family([ROW] * 9, **options)
    check_family(made, made.options.facts(), episodes=30)


def test_a_model_that_says_what_was_logged_is_told_what_was_logged() -> None:
    talk = episode()
    assert [ask.messages for ask in talk.asks()] == [TALK[:2]]
    talk.act([Reply("solver", "  one ")])
    (ask,) = talk.asks()
    assert (ask.messages, ask.fresh) == (TALK[3:4], False)
    assert talk.asks() == [ask]
    outcome = said(talk, "two", "three")
    assert (outcome.team_score, outcome.solved, rewards(outcome)) == (1.0, True, [1.0, 1.0, 1.0])
    facts = {"sop": 1.0, "sop_progress": 1.0, "sop_success": 1.0, "patches": 0.0, "logged_turns": 3.0, "epoch": 0.0}
    assert outcome.facts == facts
    assert outcome.remarks == {}


def test_a_turn_that_differs_is_replaced_and_the_conversation_begins_anew_with_it() -> None:
    """UI-S1's rewards: .1 for the form alone."""
    talk = episode()
    talk.act([Reply("solver", "uno")])
    (ask,) = talk.asks()
    assert ask.fresh
    assert ask.messages == (*TALK[:3], TALK[3])
    outcome = said(talk, "two", "three")
    assert rewards(outcome) == [0.1, 1.0, 1.0]
    assert (outcome.team_score, outcome.solved) == (pytest.approx(0.7), False)
    assert (outcome.facts["patches"], outcome.facts["sop"]) == (1.0, 0.0)
    assert outcome.remarks["solver", 0] == "Patch point: the logged turn replaced this one, thought-free: One."
    assert outcome.judged[0].why == {"accuracy": "Logged: One."}


def test_after_the_last_patch_a_turn_that_differs_ends_the_episode() -> None:
    outcome = said(episode(most_patches=1), "uno", "due")
    assert rewards(outcome) == [0.1, 0.1]
    assert outcome.remarks["solver", 1] == "The turn is not the logged one, and the episode ended with it."
    assert rewards(said(episode(most_patches=2), "uno", "due", "three")) == [0.1, 0.1, 1.0]


def test_evaluations_patch_nothing_and_measure_semi_online_performance() -> None:
    """The sheet's figures: 4 of 4 and 1 of 4 turns are PG .625, TSR .5 and score .5625."""
    four = DatasetRow((*TALK, Message("assistant", "Three."), Message("user", "Say four.")), "Four.")
    played = [said(episode(True, (four, four)), *texts) for texts in (("one", "two", "three", "four"), ("one", "due"))]
    names = ("sop_progress", "sop_success", "sop")
    assert [sum(one.facts[name] for one in played) / 2 for name in names] == [0.625, 0.5, 0.5625]
    assert [one.facts["patches"] for one in played] == [0.0, 0.0]


def test_a_reply_that_was_cut_off_says_nothing_is_worth_nothing() -> None:
    talk = episode(most_patches=0)
    talk.act([Reply("solver", "one", finish="length")])
    assert rewards(said(talk)) == [0.0]
    assert rewards(said(episode(most_patches=0), " ")) == [0.0]


@pytest.mark.parametrize(
    ("call", "worth"),
    [
        ({"what": "it", "n": 1}, 1.0),
        ({"n": 1, "what": "it"}, 1.0),
        ({"what": "it", "n": True}, 0.5),
        ({"what": "other"}, 0.5),
    ],
)
def test_calls_are_compared_by_name_and_arguments(call: dict[str, Any], worth: float) -> None:
    """UI-S1's rewards: .1 for the form, .4 more for the kind of turn, .5 more for all of it."""
    made = episode(rows=[CALLING, CALLING], column="talk", tools_column="tools", most_patches=0)
    assert made.asks()[0].tools == ({"type": "function", "function": TOOLS[0]},)
    made.act([Reply("solver", "", Message("assistant", "I look.", tool_calls=(ToolCall("find", call),)))])
    assert made.outcome().turn_rewards["solver", 0] == pytest.approx(worth, abs=1e-15)
    if worth == 1.0:
        assert made.asks()[0].messages == (Message("tool", "There."),)
        assert said(made, "it is there").solved


def test_another_tool_and_words_in_place_of_a_call_are_of_the_wrong_kind() -> None:
    for text in ('<tool_call>{"name": "seek", "arguments": {}}</tool_call>', "It is there."):
        outcome = said(episode(rows=[CALLING, CALLING], column="talk", most_patches=0), text)
        assert rewards(outcome) == [0.1]


def test_words_are_compared_by_the_scores_of_the_specification() -> None:
    rows = [DatasetRow((Message("user", "1+1?"),), "It is 2.")] * 2
    assert said(episode(rows=rows, scores=["number"]), "2").solved
    both = [{"type": "number", "weight": 3}, {"type": "exact"}]
    assert not said(episode(rows=rows, scores=both), "2").solved
    half = said(episode(rows=rows, scores=both, match_at=0.75), "2")
    assert half.solved
    assert half.judged[0].parts["words exact"] == 0.0


def test_scores_that_are_computed_apart_are_known_before_a_turn_is_judged() -> None:
    rows = [DatasetRow((Message("user", "Half?"),), "1/2")] * 2
    made = family(rows, scores=["math"])
    one = made.make(0, False, random.Random(0))

    async def played() -> Outcome:
        await one.score([Reply("solver", "0.5")])  # type: ignore[attr-defined]
        outcome = said(one, "0.5")
        await made.close()
        return outcome

    assert asyncio.run(played()).solved


def test_a_thought_of_another_policy_stands_before_the_logged_turn() -> None:
    talk = episode(patch_writer="off_policy", thought_tokens=7)
    talk.act([Reply("solver", "uno")])
    (ask,) = talk.asks()
    assert (ask.role, ask.max_tokens, ask.fresh, ask.aside) == ("writer", 7, True, False)
    assert "One." in ask.messages[0].content
    talk.act([Reply("writer", "English, then.")])
    assert talk.asks()[0].messages[2] == Message("assistant", "<think>\nEnglish, then.\n</think>\n\nOne.")
    outcome = said(talk, "two", "three")
    assert set(outcome.scores) == {"solver", "writer"}
    assert "off-policy: English, then. One." in outcome.remarks["solver", 0]


def speech(words: Renderer) -> Speech:
    seat = Seat(
        "p", PolicyPin(version=0, digest="0" * 64), Codec(tokenizer().to_str().encode()), 8, 1.0, renderer=words
    )
    return Speech({"solver": seat})


def test_a_thought_of_the_policy_itself_is_no_turn_of_it() -> None:
    """Its turns are numbered as if nothing had been said between, and its own conversation does not feel it."""
    talk, words = episode(patch_writer="on_policy"), renderer()
    spoken = speech(words)
    numbers = []
    for text in ("uno", "I think.", "two", "three"):
        (ask,) = talk.asks()
        prompt = spoken.prompt(ask)
        numbers.append((spoken.turn_of(ask), ask.aside))
        if ask.messages[0] == TALK[0]:
            assert prompt == Chain(words).ask(ask.messages)
        answer = type("Answer", (), {"token_ids": words.encode(text + "<|im_end|>"), "finish_reason": "stop"})
        talk.act([spoken.hear(ask, answer)])  # type: ignore[arg-type]
    assert numbers == [(0, False), (1, True), (1, False), (2, False)]
    outcome = talk.outcome()
    assert rewards(outcome) == [0.1, 1.0, 1.0]
    assert outcome.facts["thought_tokens"] == 9.0
    assert "on-policy: I think. One." in outcome.remarks["solver", 0]


def test_what_replaced_a_turn_is_read_and_never_sampled() -> None:
    """The row with the replaced turn ends with it; the next one has the logged turn among what it reads."""
    talk, words, codec = episode(), renderer(), Codec(tokenizer().to_str().encode())
    spoken, rows = speech(words), []
    for text in ("uno", "two", "three"):
        (ask,) = talk.asks()
        prompt, answer = spoken.prompt(ask), words.encode(text + "<|im_end|>")
        rows.append((spoken.begins(ask), codec.decode(prompt), codec.decode(answer, special=True)))
        heard = type("Answer", (), {"token_ids": answer, "finish_reason": "stop"})
        talk.act([spoken.hear(ask, heard)])  # type: ignore[arg-type]
    assert [begins for begins, _, _ in rows] == [0, 1, 1]
    assert "One." in rows[1][1]
    assert "uno" not in rows[1][1]
    assert [said for _, _, said in rows] == ["uno<|im_end|>", "two<|im_end|>", "three<|im_end|>"]
    assert spoken.breaks == {}


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ([{"role": "assistant", "content": "Hello."}], "begins with the assistant"),
        ([*CALLS[:1], CALLS[3], CALLS[3]], "two turns of the assistant"),
        ([*CALLS[:1], {"role": "assistant", "content": "<think>x</think>"}], "turn 1 of the assistant says nothing"),
        ([*CALLS[:1]], "the assistant says nothing in it"),
        ([*CALLS[:1], {"role": "assistant", "content": 3}], "message 2 of column talk has no text"),
        ([{"role": "robot", "content": ""}], "message 1 of column talk has none of the roles"),
        ([*CALLS[:1], {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}], "calls no function"),
        ("words", "no list of messages"),
    ],
)
def test_rows_that_cannot_be_replayed_say_why(column: Any, why: str) -> None:
    with pytest.raises(NotLogged, match=why):
        turns_of(DatasetRow((Message("user", "?"),), "", {"talk": column}), "talk", 8)


def test_long_conversations_end_at_the_most_turns_and_copies_go_their_own_way() -> None:
    talk = episode(most_turns=2)
    talk.act([Reply("solver", "one")])
    other = copy.deepcopy(talk)
    assert said(talk, "two").solved
    assert not said(other, "due").solved
