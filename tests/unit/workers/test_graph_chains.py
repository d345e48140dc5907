"""Whatever a team says, in every graph: a seat's next prompt begins with all that it has read and said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts.specification.graphs import GRAPH, GraphOptions
from flexmarl.contracts.wire import PolicyPin
from tests.support.chat_templates import END, SMOLLM2, renderer, tokenizer
from tests.unit.workers.test_graphs import CHAIN, Four
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.questions import Conversation
from workers.rollout.speech import Seat, Speech
from workers.vocabulary import Codec

RENDERER = renderer(SMOLLM2)
STOP = tokenizer().token_to_id(END)
CODEC = Codec(tokenizer().to_str().encode())
PIN = PolicyPin(version=1, digest="a" * 64)
ALL: list[GraphOptions] = [
    CHAIN,
    *(GRAPH.options(name) for name in GRAPH.variants()),
    GRAPH.options("sequence", rounds=3),
    GRAPH.options("debate", judge="judge", rounds=3),
    GRAPH.options("mixture", layers=2, tokens=40),
    GRAPH.options("hub", workers=["a", {"name": "b", "sees": "all"}]),
    GRAPH.options("sequence", order=["a", {"name": "b", "sees": "own"}, {"name": "c", "sees": ["a"]}], rounds=2),
]
LINES = ("accept", "reject", "4", "ask worker_1: 2+2?\nask worker_2: 4?", "ask a: so?", "next: speaker_2", "end", "")
REPLY = st.tuples(
    st.sampled_from(LINES) | st.text(st.characters(codec="utf-8", exclude_characters="<|>")), st.booleans()
)


@pytest.mark.parametrize("graph", ALL, ids=str)
@given(replies=st.lists(REPLY, min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_chains_only_grow(graph: GraphOptions, replies: list[tuple[str, bool]]) -> None:
    names = [seat.name for seat in graph.seats()]
    speech = Speech({name: Seat(name, PIN, CODEC, 8, 1.0, renderer=RENDERER) for name in names})
    episode, seen, taken = Conversation(Four(), graph, 8), dict.fromkeys(names, ()), 0
    while asks := episode.asks():
        heard = []
        for ask in asks:
            text, ended = replies[taken % len(replies)]
            taken += 1
            prompt = speech.prompt(ask)
            assert prompt[: len(seen[ask.role])] == seen[ask.role]
            sampled = (*RENDERER.encode(text), *([STOP] if ended else []))
            seen[ask.role] = prompt + sampled
            heard.append(speech.hear(ask, CompletionChoice(0, list(sampled), [0.0] * len(sampled), "stop", [])))
            assert heard[-1].tokens == len(sampled), "a budget counts what was sampled"
        episode.act(heard)
    assert speech.breaks == {}
    bounds = {role.name: (role.min_turns, role.max_turns) for role in graph.roles(8)}
    if graph.tokens is None:  # the replies here are longer than they are asked to be
        assert all(bounds[name][0] <= speech.calls.get(name, 0) for name in names)
    assert all(speech.calls.get(name, 0) <= bounds[name][1] for name in names)
