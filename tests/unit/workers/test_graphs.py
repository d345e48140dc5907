"""Graphs of teams: who is asked when, what each seat reads, when a talk ends, and whom which score pays."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from flexmarl.contracts.specification.graphs import (
    GRAPH,
    DebateGraph,
    DialogueGraph,
    GraphOptions,
    HubGraph,
    MixtureGraph,
    SequenceGraph,
    VerifyGraph,
)
from workers.rollout.environments.base import Reply
from workers.rollout.environments.graphs import GRAPHS, verdict
from workers.rollout.environments.questions import AnswerScore, Conversation


class Four:
    """A question whose answer is 4."""

    text = "What is 2+2?"

    def judge(self, reply: str) -> AnswerScore:
        answer = reply.rsplit(maxsplit=1)[-1] if reply[-1:].isdigit() else ""
        return AnswerScore(float(answer == "4"), "" if answer else "none", answer)

    def describe(self) -> dict[str, object]:
        return {"title": self.text, "facts": {}}


Asked = list[tuple[str, str]]


def talk(graph: GraphOptions, *stages: Sequence[str], tokens: int = 1) -> tuple[list[Asked], Conversation]:
    """Play a conversation to its end; returns of each stage who was asked what."""
    episode, asked = Conversation(Four(), graph, 8, ("none",)), []
    for replies in stages:
        asks = episode.asks()
        asked.append([(ask.role, ask.messages[-1].content) for ask in asks])
        episode.act([Reply(ask.role, text, tokens=tokens) for ask, text in zip(asks, replies, strict=True)])
    assert episode.asks() == [], "the talk goes on"
    return asked, episode


def order(asked: list[Asked]) -> list[tuple[str, ...]]:
    return [tuple(seat for seat, _ in stage) for stage in asked]


CHAIN = GRAPH.options(
    "sequence", order=[{"name": "planner", "does": "plan"}, "solver", {"name": "verifier", "does": "verify"}]
)


def test_a_sequence_plans_answers_and_verifies() -> None:
    asked, episode = talk(CHAIN, ["Add them."], ["It is 4"], ["I accept it"])
    assert order(asked) == [("planner",), ("solver",), ("verifier",)]
    texts = [text for ((_, text),) in asked]
    assert texts[0] == "What is 2+2?\n\nDo not answer: say how to find the answer."
    assert texts[1] == "What is 2+2?\n\nThe planner said: Add them."
    assert texts[2].startswith("What is 2+2?\n\nThe planner said: Add them.\n\nThe solver said: It is 4\n\nIs the")
    outcome = episode.outcome()
    assert (outcome.scores, outcome.solved) == ({"planner": 1.0, "solver": 1.0, "verifier": 1.0}, True)
    assert outcome.turn_rewards == {("solver", 0): 1.0, ("verifier", 0): 1.0, ("planner", 0): 1.0}
    assert outcome.facts == {"none": 0.0, "verdict_right": 1.0}


@pytest.mark.parametrize(
    ("answer", "says", "worth"),
    [("5", "accept", 0.0), ("5", "reject", 1.0), ("4", "reject", 0.0), ("4", "well", 0.0), ("5", "well", 0.0)],
)
def test_a_verdict_is_worth_what_it_says_of_the_answer(answer: str, says: str, worth: float) -> None:
    outcome = talk(CHAIN, ["Add."], [answer], [says])[1].outcome()
    right = float(answer == "4")
    assert (outcome.scores, outcome.team_score) == ({"planner": right, "solver": right, "verifier": worth}, right)


def test_a_seat_that_is_paid_with_the_team_has_its_score_in_place_of_its_own() -> None:
    graph = GRAPH.options("sequence", order=[{"name": "a", "reward": "team"}, "b"])
    outcome = talk(graph, ["4"], ["5"])[1].outcome()
    assert outcome.scores == {"a": 0.0, "b": 0.0}
    assert outcome.turn_rewards == {("a", 0): 0.0, ("b", 0): 0.0}
    assert outcome.facts["revised"] == -1.0


@pytest.mark.parametrize(
    ("sees", "read"),
    [
        ("all", ["", "b said: b1", "The c said: c1"]),
        ("last", ["", "The c said: c1"]),
        ("own", ["Answer again in the same form."]),
        (["b"], ["The b said: b1"]),
    ],
)
def test_a_seat_reads_what_it_is_allowed(sees: Any, read: list[str]) -> None:
    graph = GRAPH.options("sequence", order=[{"name": "a", "sees": sees}, "b", "c"], rounds=2)
    asked, _ = talk(graph, *[[f"{seat}{turn}"] for turn in (1, 2) for seat in "abc"])
    ((_, second),) = asked[3]
    assert all(text in second for text in read)
    assert ("b1" in second, "c1" in second) == (sees in ("all", ["b"]), sees in ("all", "last"))
    assert "a1" not in second, "what it said itself stands in its chain"
    assert "What is" not in second, "a seat reads the question once"


def test_debaters_answer_at_once_and_read_each_other_and_the_most_frequent_answer_counts() -> None:
    asked, episode = talk(DebateGraph(), ["4", "5", "6"], ["it is 4", "5", "4"])
    assert order(asked) == [("debater_1", "debater_2", "debater_3")] * 2
    assert [text for _, text in asked[0]] == ["What is 2+2?"] * 3
    assert asked[1][1][1] == "The debater_1 said: 4\n\nThe debater_3 said: 6\n\nAnswer again in the same form."
    outcome = episode.outcome()
    assert (outcome.team_score, outcome.scores["debater_2"]) == (1.0, 0.0)
    assert outcome.turn_rewards["debater_3", 0] == 0.0
    assert outcome.turn_rewards["debater_3", 1] == 1.0


def test_of_as_many_votes_the_earlier_answer_counts_and_no_answer_has_no_vote() -> None:
    two = GRAPH.options("debate", debaters=["a", "b"], rounds=1)
    assert talk(two, ["5", "4"])[1].outcome().team_score == 0.0
    assert talk(two, ["hm", "4"])[1].outcome().team_score == 1.0


def test_a_judge_reads_all_and_has_the_last_word() -> None:
    graph = GRAPH.options("debate", debaters=["a", "b"], rounds=1, judge="judge")
    asked, episode = talk(graph, ["4", "4"], ["5"])
    assert order(asked) == [("a", "b"), ("judge",)]
    assert asked[1][0][1].endswith("The a said: 4\n\nThe b said: 4")
    assert episode.outcome().scores == {"a": 1.0, "b": 1.0, "judge": 0.0}
    assert episode.outcome().team_score == 0.0


def test_a_mixture_aggregates_what_its_layers_propose() -> None:
    asked, episode = talk(MixtureGraph(layers=2), ["1", "2", "3"], ["4", "5", "6"], ["4"])
    assert order(asked) == [("proposer_1", "proposer_2", "proposer_3")] * 2 + [("aggregator",)]
    assert all(f"said: {n}" in asked[2][0][1] for n in range(1, 7))
    assert episode.outcome().team_score == 1.0
    assert episode.outcome().scores == {"proposer_1": 1.0, "proposer_2": 0.0, "proposer_3": 0.0, "aggregator": 1.0}


def test_a_verifier_ends_it_by_accepting_and_else_the_rounds_do() -> None:
    asked, episode = talk(VerifyGraph(rounds=3), ["5"], ["reject"], ["4"], ["accept"])
    assert order(asked) == [("generator",), ("verifier",)] * 2
    assert asked[2][0][1] == "A colleague said: reject. Answer again in the same form."
    assert episode.outcome().scores == {"generator": 1.0, "verifier": 1.0}
    assert episode.outcome().turn_rewards["generator", 0] == 0.0
    assert episode.outcome().turn_rewards["verifier", 0] == 1.0
    talk(VerifyGraph(rounds=2), ["5"], ["reject"], ["4"], ["no word"])


def test_a_hub_asks_its_workers_at_once_and_concludes() -> None:
    asked, episode = talk(
        GRAPH.options("hub", workers=["sales", "stock"]),
        ["Let me see.\nask stock: how many?\nAsk sales: how much?"],
        ["2 each", "2 left"],
        ["It is 4"],
    )
    assert order(asked) == [("planner",), ("sales", "stock"), ("planner",)]
    assert asked[1] == [("sales", "how much?"), ("stock", "how many?")]
    assert asked[2][0][1] == "The sales said: 2 each\n\nThe stock said: 2 left\n\nAsk again, or answer."
    assert episode.outcome().scores == {"planner": 1.0, "sales": 1.0, "stock": 1.0}
    assert episode.outcome().turn_rewards == {("planner", 1): 1.0, ("sales", 0): 1.0, ("stock", 0): 1.0}


def test_a_hub_that_has_asked_as_often_as_it_may_has_to_answer() -> None:
    asked, episode = talk(HubGraph(rounds=1), ["ask worker_1: how?"], ["so"], ["ask worker_2: 4"])
    assert order(asked) == [("planner",), ("worker_1",), ("planner",)]
    assert asked[2][0][1].endswith("Answer now.")
    assert episode.outcome().team_score == 1.0


def test_a_hub_without_a_question_answers_at_once_and_pays_who_was_not_asked_with_the_team() -> None:
    outcome = talk(HubGraph(), ["ask nobody: 4"])[1].outcome()
    assert outcome.scores == {"planner": 1.0, "worker_1": 1.0, "worker_2": 1.0}
    assert outcome.turn_rewards == {("planner", 0): 1.0}


def test_a_moderator_calls_upon_seats_and_ends_the_talk() -> None:
    asked, episode = talk(DialogueGraph(), ["next: speaker_2"], ["5"], ["hm"], ["4"], ["so\nend"])
    assert order(asked) == [(name,) for name in ("moderator", "speaker_2", "moderator", "speaker_2", "moderator")]
    assert episode.outcome().scores == {"moderator": 1.0, "speaker_1": 1.0, "speaker_2": 1.0}
    again, _ = talk(DialogueGraph(turns=2), ["end"], ["5"], ["next: nobody"], ["4"])
    assert order(again) == [("moderator",), ("speaker_1",), ("moderator",), ("speaker_2",)], "not before anybody spoke"


def test_a_talk_ends_when_its_tokens_are_used_and_those_who_speak_at_once_share_them() -> None:
    graph = GRAPH.options("debate", rounds=3, tokens=10)
    episode = Conversation(Four(), graph, 8)
    assert [ask.max_tokens for ask in episode.asks()] == [3, 3, 3]
    episode.act([Reply(ask.role, "4", tokens=2) for ask in episode.asks()])
    assert [ask.max_tokens for ask in episode.asks()] == [1, 1, 1]
    episode.act([Reply(ask.role, "4", tokens=1) for ask in episode.asks()])
    assert episode.asks() == [], "one token for three"
    assert episode.outcome().team_score == 1.0
    assert [role.min_turns for role in graph.roles(8)] == [1, 1, 1]
    assert [role.max_turns for role in graph.roles(8)] == [3, 3, 3]


def test_a_team_whose_tokens_end_before_it_answers_has_no_score() -> None:
    graph = CHAIN.model_copy(update={"tokens": 3})
    episode = talk(graph, ["Add."], tokens=3)[1]
    assert episode.outcome().scores == {"planner": 0.0, "solver": 0.0, "verifier": 0.0}
    assert [role.min_turns for role in graph.roles(8)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("graph", "hears"),
    [
        (SequenceGraph(), [(), ("solver",)]),
        (SequenceGraph(rounds=2), [("reviser",), ("solver",)]),
        (VerifyGraph(rounds=1), [(), ("generator",)]),
        (HubGraph(), [("worker_1", "worker_2"), ("planner",), ("planner",)]),
        (MixtureGraph(), [(), (), (), ("proposer_1", "proposer_2", "proposer_3")]),
        (DebateGraph(rounds=1), [(), (), ()]),
        (DebateGraph(), [("debater_2", "debater_3"), ("debater_1", "debater_3"), ("debater_1", "debater_2")]),
        (DialogueGraph(), [("speaker_1", "speaker_2"), ("moderator", "speaker_2"), ("moderator", "speaker_1")]),
    ],
    ids=str,
)
def test_roles_follow_from_the_graph(graph: GraphOptions, hears: list[tuple[str, ...]]) -> None:
    assert [role.hears for role in graph.roles(8)] == hears
    assert {role.name for role in graph.roles(8) if role.opens} == set(graph.stages()[0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"type": "sequence", "order": ["a", "a"]}, "two seats are named a"),
        ({"type": "sequence", "order": [{"name": "a", "sees": ["c"]}, "b"]}, "a cannot see c; seats: a, b"),
        ({"type": "sequence", "order": [{"name": "a", "does": "plan"}]}, "does: answer fits"),
        ({"type": "mixture", "proposers": [f"p{n}" for n in range(16)]}, "at most 16 are allowed"),
        ({"type": "debate", "debaters": ["a", "b"], "judge": "b"}, "two seats are named b"),
    ],
)
def test_seats_that_cannot_be_are_refused_with_what_fits(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GRAPH.options(settings.pop("type"), **settings)


def test_every_graph_is_played() -> None:
    assert GRAPHS.names() == tuple(GRAPH.variants())


@pytest.mark.parametrize(
    ("text", "accepts"), [("Accepted.", True), ("accept? no: REJECT", False), ("unacceptable", None), ("", None)]
)
def test_the_last_word_of_a_verdict_counts(text: str, accepts: bool | None) -> None:
    assert verdict(text) is accepts
