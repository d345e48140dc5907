"""Whole episodes with resources servers of the real package nemo-gym, on the rows that it has of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.controlplane.datasets.mapping import ColumnMapping, MappedRow, mapped
from flexmarl.language.messages import Message, ToolCall
from tests.support.nemo_gym_servers import PYTHON, rows_of, served
from workers.external_access import ExternalAccess
from workers.rollout.datasets import DatasetLines
from workers.rollout.environments.base import Outcome, Reply
from workers.rollout.nemo_gym_urls import NemoGymPool

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON, reason="FLEXMARL_NEMO_PYTHON names no interpreter with nemo-gym"),
    pytest.mark.timeout(600),
]

assert not PYTHON or os.access(PYTHON, os.X_OK), "FLEXMARL_NEMO_PYTHON is no program"


def imported(rows: list[dict[str, Any]]) -> DatasetLines:
    """Return rows as an import keeps them."""
    kept = [mapped(number, one, ColumnMapping(request="responses_create_params")) for number, one in enumerate(rows)]
    assert all(isinstance(one, MappedRow) for one in kept), kept
    lines = tuple(one.line for one in kept if isinstance(one, MappedRow))
    return DatasetLines(lines, lines)


class Player:
    """Says what a test scripts."""

    def __init__(self, host: str, rows: list[dict[str, Any]], **settings: Any) -> None:
        spec = NemoGymUrl(url=f"http://{host}", **settings)
        self.pool = NemoGymPool(spec, ExternalAccess(frozenset([host])), imported(rows))
        self.heard: list[Message] = []

    async def play(self, place: int, *says: Message) -> Outcome:
        live = await self.pool.begin(place, True, place)
        try:
            for said in says:
                [ask] = live.asks()
                self.heard += ask.messages
                await live.act([Reply("player", said.content, said, tokens=1, prompt_tokens=1)])
            assert not live.asks(), "the episode is over"
            return live.outcome()
        finally:
            live.leave()

    async def close(self) -> None:
        await self.pool.close()


def says(text: str = "", **calls: Any) -> Message:
    return Message("assistant", text, tool_calls=tuple(ToolCall(name, given) for name, given in calls.items()))


async def test_reasoning_gym_scores_answers_of_its_rows(tmp_path: Path) -> None:
    rows = rows_of("reasoning_gym")
    async with served("reasoning_gym", tmp_path / "log") as host:
        player = Player(host, rows)
        right = [await player.play(place, says(f"<answer>{row['answer']}</answer>")) for place, row in enumerate(rows)]
        wrong = await player.play(0, says("<answer>nobody knows</answer>"))
        await player.close()
    assert [one.team_score for one in right] == [1.0] * len(rows)
    assert (wrong.team_score, wrong.facts["score"]) == (0.0, 0.0)


async def test_a_session_of_tools_is_kept_by_its_cookie(tmp_path: Path) -> None:
    rows = rows_of("example_session_state_mgmt")
    async with served("example_session_state_mgmt", tmp_path / "log") as host:
        player = Player(host, rows)
        adds = rows[0]["expected_count"] - rows[0]["initial_count"]
        outcome = await player.play(0, says(increment_counter={"count": adds}), says(get_counter_value={}), says("ok"))
        missed = await player.play(0, says(increment_counter={"count": adds + 1}), says("ok"))
        refused = await player.play(0, says(increment_counter={"count": "many"}), says("ok"))
        await player.close()
    told = [one.content for one in player.heard if one.role == "tool"]
    assert told[:2] == ['{"success":true}', f'{{"count":{rows[0]["expected_count"]}}}']
    assert "int_parsing" in told[-1], "what the server says of a wrong argument is told"
    assert [one.team_score for one in (outcome, missed, refused)] == [1.0, 0.0, 0.0]
    assert refused.facts["tool_errors"] == 1.0


async def test_blackjack_is_played_in_steps(tmp_path: Path) -> None:
    rows = rows_of("blackjack")
    async with served("blackjack", tmp_path / "log") as host:
        player = Player(host, rows, protocol="gymnasium")
        stood = [await player.play(place, says("<action>stand</action>")) for place in range(5)]
        hits = await until_over(player, "<action>hit</action>")
        await player.close()
    assert {one.team_score for one in stood} <= {-1.0, 0.0, 1.0}
    assert hits.team_score == -1.0, "who never stands goes bust"
    assert any(one.content.startswith("Your hand: [") for one in player.heard)


async def until_over(player: Player, text: str) -> Outcome:
    live = await player.pool.begin(0, True, 9)
    while live.asks():
        await live.act([Reply("player", text, says(text))])
    live.leave()
    return live.outcome()


async def test_an_assistant_of_an_office_calls_its_tools(tmp_path: Path) -> None:
    rows = rows_of("workplace_assistant")
    async with served("workplace_assistant", tmp_path / "log") as host:
        player = Player(host, rows)
        looked = says(company_directory_find_email_address={"name": "carlos"})
        outcome = await player.play(0, looked, says("I did nothing."))
        await player.close()
    [told] = [one.content for one in player.heard if one.role == "tool"]
    assert "carlos" in told
    assert (outcome.team_score, outcome.facts["tool_calls"]) == (0.0, 1.0)
