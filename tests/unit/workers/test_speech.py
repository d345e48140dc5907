"""What the seats of an attempt are told: instructions of their agents come first, once, as a part of their chains."""

from dataclasses import replace
from typing import Any

import pytest

from flexmarl.contracts.wire import PolicyPin
from flexmarl.language.messages import Message
from tests.support.chat_templates import renderer, tokenizer
from workers.rollout.engines.wire import CompletionChoice, SamplingParameters
from workers.rollout.environments.base import Ask
from workers.rollout.episode import EpisodeOrder, request_of
from workers.rollout.speech import Seat, Speech
from workers.vocabulary import Codec

RENDERER = renderer()
CODEC = Codec(tokenizer().to_str().encode())
OWN = Message("system", "You add.")
QUESTION = Message("user", "2+3?")


PIN = PolicyPin(version=1, digest="a" * 64)


def speech(**seats: Any) -> Speech:
    made = {role: Seat(role, PIN, CODEC, 8, 1.0, instructions=text, renderer=RENDERER) for role, text in seats.items()}
    return Speech(made)


def asked(*messages: Message, role: str = "solver") -> Ask:
    return Ask(role, "", 8, messages=messages)


@pytest.mark.parametrize(
    ("instructions", "delta", "told"),
    [
        ("", (OWN, QUESTION), (OWN, QUESTION)),
        ("Be {{ role }}.", (OWN, QUESTION), (Message("system", "Be solver."), QUESTION)),
        ("{{ environment }} Be short.", (OWN, QUESTION), (Message("system", "You add. Be short."), QUESTION)),
        ("Be short.", (QUESTION,), (Message("system", "Be short."), QUESTION)),
        ("{{ team | join('+') }}", (QUESTION,), (Message("system", "solver+reviser"), QUESTION)),
    ],
)
def test_instructions_stand_in_place_of_the_environments_own_words(
    instructions: str, delta: tuple[Message, ...], told: tuple[Message, ...]
) -> None:
    spoken = speech(solver=instructions, reviser="")
    ask = asked(*delta)
    assert spoken.prompt(ask) == RENDERER.encode(RENDERER.text(told))
    assert spoken.conversation(ask) == told


def test_they_are_said_once_and_a_later_prompt_extends_the_first() -> None:
    spoken = speech(solver="Be {{ role }}.")
    first = spoken.prompt(asked(OWN, QUESTION))
    reply = RENDERER.encode("5<|im_end|>")
    spoken.hear(asked(OWN, QUESTION), CompletionChoice(0, list(reply), [0.0] * len(reply), "stop", [1, len(reply)]))
    later = asked(Message("user", "Sure?"))
    second = spoken.prompt(later)
    assert second[: len(first) + len(reply)] == first + reply
    assert [one.content for one in spoken.conversation(later) if one.role == "system"] == ["Be solver."]


def test_an_environment_reads_a_reply_up_to_a_stop_string_and_the_chain_keeps_what_was_sampled() -> None:
    seat = Seat("solver", PIN, CODEC, 8, 1.0, SamplingParameters(stop=("!",)), renderer=RENDERER)
    spoken = Speech({"solver": seat})
    first, sampled = spoken.prompt(asked(QUESTION)), RENDERER.encode("5! no<|im_end|>")
    reply = spoken.hear(asked(QUESTION), CompletionChoice(0, list(sampled), [0.0] * len(sampled), "stop", []))
    assert (reply.text, reply.message and reply.message.content) == ("5", "5")
    assert spoken.prompt(asked(Message("user", "Sure?")))[: len(first) + len(sampled)] == first + sampled


def test_what_is_asked_in_words_has_its_instructions_beside_the_prompt() -> None:
    spoken = speech(solver="Give hints.")
    ask = Ask("solver", "2", 8)
    assert spoken.prompt(ask) == tuple(CODEC.encode("2"))
    assert spoken.conversation(ask) == (Message("system", "Give hints."),)
    assert speech(solver="").conversation(ask) == ()


def test_instructions_that_do_not_render_for_a_seat_are_named() -> None:
    spoken = speech(solver="{% if role == 'solver' %}{{ 1 | length }}{% endif %}")
    with pytest.raises(ValueError, match="solver"):
        spoken.prompt(asked(QUESTION))


def test_a_seat_that_is_asked_afresh_remembers_nothing_and_begins_another_row() -> None:
    said, reply = speech(solver=""), list(RENDERER.encode("5<|im_end|>"))
    ask = replace(asked(Message("user", "Grade this.")), fresh=True)
    prompts, begins = [], []
    for _ in range(2):
        prompts.append(said.prompt(ask))
        begins.append(said.begins(ask))
        said.hear(ask, CompletionChoice(0, reply, [0.0] * len(reply), "stop", [1, len(reply)]))
    assert prompts[0] == prompts[1]
    assert begins == [0, 1]


@pytest.mark.parametrize(("limit", "asked_for", "longest"), [(None, 300, 300), (20, 300, 20), (400, 300, 300)])
def test_a_reply_is_as_long_as_it_is_asked_for_unless_its_agent_sets_less(
    limit: int | None, asked_for: int, longest: int
) -> None:
    said = Speech({"solver": replace(speech(solver="").seats["solver"], max_tokens=limit)})
    order, ask = EpisodeOrder(0, 0, 1, 7, False, 0, 60.0, 60.0, None), replace(asked(QUESTION), max_tokens=asked_for)
    assert request_of(order, ask, said, said.prompt(ask)).max_tokens == longest


def test_whoever_goes_on_from_a_copy_has_rows_of_its_own_and_the_whole_talk_as_its_prompt() -> None:
    spoken = speech(solver="")
    first = asked(OWN, QUESTION)
    read = spoken.prompt(first)
    reply = RENDERER.encode("5<|im_end|>")
    spoken.hear(first, CompletionChoice(0, list(reply), [0.0] * len(reply), "stop", [1, len(reply)]))
    later, breaks = asked(Message("user", "Sure?")), {}
    other = spoken.continued(breaks)
    prompts = other.prompt(later), spoken.prompt(later)
    assert prompts[0] == prompts[1]
    assert prompts[0][: len(read) + len(reply)] == (*read, *reply)
    assert (other.turn_of(later), other.begins(later)) == (1, 1), "its row begins with what it says itself"
    assert (spoken.turn_of(later), spoken.begins(later)) == (1, 0)
    assert other.breaks is breaks
