"""Servers of NeMo Gym behind URLs: rows are played as they were imported, in sessions that cookies tell apart; what
hangs, drops, floods or says garbage fails the attempt by name, and nobody is asked whom the operator did not allow."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.language.gym_rows import NotOfGym, task_of
from flexmarl.language.messages import Message, ToolCall
from tests.support.gym_endpoint import GymEndpoint, row
from workers.external_access import ExternalAccess
from workers.rollout.datasets import DatasetLines
from workers.rollout.environments.base import Outcome, Reply
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.nemo_gym_urls import NemoGymPool
from workers.rollout.stages import begin_here, family_of

pytestmark = pytest.mark.asyncio

SHORT_S = 0.5
ADD, READ = ToolCall("add", {"count": 2}), ToolCall("read")
COUNTS = (Message("assistant", "I add.", reasoning="Two.", tool_calls=(ADD, READ)), Message("assistant", "It is 5."))
SECRET = {"secrets": {"SHOP": "mine"}, "secret": "SHOP"}


def lines(*rows: dict[str, Any], held_out: Sequence[dict[str, Any]] = ()) -> DatasetLines:
    asked = (Message("user", "Add 2 and read."),)
    sides = [tuple(to_line(DatasetRow(asked, "", one)) for one in side) for side in (rows or (row(),), held_out)]
    return DatasetLines(*sides)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[GymEndpoint]:
    made = GymEndpoint()
    async with made.http:
        yield made


@pytest_asyncio.fixture
async def pools() -> AsyncIterator[list[NemoGymPool]]:
    made: list[NemoGymPool] = []
    yield made
    for one in made:
        await one.close()


class Players:
    """Plays with a server."""

    def __init__(self, server: GymEndpoint, pools: list[NemoGymPool]) -> None:
        self.server, self.pools = server, pools

    def pool(
        self, rows: DatasetLines | None = None, hosts: str | None = None, secrets: dict[str, str] | None = None,
        **settings: Any,
    ) -> NemoGymPool:  # fmt: skip
        spec = NemoGymUrl(url=f"http://{self.server.host}/shop", **settings)
        allowed = frozenset([self.server.host if hosts is None else hosts])
        self.pools.append(NemoGymPool(spec, ExternalAccess(allowed, secrets or {}), rows or lines()))
        return self.pools[-1]

    async def broke(self, pool: NemoGymPool) -> str:
        with pytest.raises(EnvironmentBroke) as broke:
            await played(pool)
        return str(broke.value)


@pytest.fixture
def players(server: GymEndpoint, pools: list[NemoGymPool]) -> Players:
    return Players(server, pools)


async def played(
    pool: NemoGymPool,
    heard: list[Message] | None = None,
    says: Sequence[Message] = COUNTS,
    held_out: bool = False,
    finish: str = "stop",
) -> Outcome:
    live = await pool.begin(0, held_out, 1)
    try:
        turn = 0
        while asks := live.asks():
            if heard is not None:
                heard += asks[0].messages
            said = says[min(turn, len(says) - 1)]
            await live.act([Reply("player", said.content, said, finish, tokens=3, prompt_tokens=7)])
            turn += 1
        return live.outcome()
    finally:
        live.leave()


async def test_a_row_is_seeded_its_tools_are_called_and_the_server_verifies_all_of_it(
    server: GymEndpoint, players: Players
) -> None:
    heard: list[Message] = []
    outcome = await played(players.pool(**SECRET), heard)
    assert (outcome.team_score, outcome.scores, outcome.solved) == (1.0, {"player": 1.0}, True)
    assert outcome.turn_rewards == {("player", 1): 1.0}
    assert outcome.facts == {
        "distance": 0.25, "exact": 1.0, "style": 0.5, "tool_calls": 2.0, "tool_errors": 0.0, "cut_off": 0.0,
        "epoch": 0.0,
    }  # fmt: skip
    assert [(one.role, one.content) for one in heard] == [
        ("system", "You count."), ("user", "Add 2 and read."), ("tool", '{"success": true}'), ("tool", '{"count": 5}'),
    ]  # fmt: skip
    assert [one.tool_call_id for one in heard[2:]] == ["call_1_0_0", "call_1_0_1"]
    assert server.paths() == ["seed_session", "add", "read", "verify"]
    assert server.heard[0][1] == row(), "the row goes as it was imported"
    verified = server.heard[-1][1]
    assert {name: verified[name] for name in row()} == row()
    response = verified["response"]
    assert [one["type"] for one in response["output"]] == [
        "reasoning", "message", "function_call", "function_call", "function_call_output", "function_call_output",
        "message",
    ]  # fmt: skip
    assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "Two."}]
    assert response["output"][2]["arguments"] == '{"count": 2}'
    assert response["output"][5] == {
        "type": "function_call_output", "call_id": "call_1_0_1", "output": '{"count": 5}'
    }  # fmt: skip
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (14, 6)
    assert response["tools"] == row()["responses_create_params"]["tools"]
    assert set(server.headers) == {"Bearer mine"}


async def test_equal_seeds_give_equal_transcripts_and_sessions_do_not_mix(
    server: GymEndpoint, players: Players
) -> None:
    pool = players.pool(lines(row(), row("Add 2 twice.", 7)))
    heard: list[list[Message]] = [[], []]
    first, second = await asyncio.gather(*(played(pool, one) for one in heard))
    assert (first, heard[0]) == (second, heard[1])
    assert len(server.counts) == 2
    whole = [body["response"]["output"] for path, body in server.heard if path == "verify"]
    assert whole[0] == whole[1]


async def test_gymnasium_steps_until_the_server_ends_it_and_closes_where_it_can(
    server: GymEndpoint, players: Players
) -> None:
    heard: list[Message] = []
    pool = players.pool(protocol="gymnasium")
    outcome = await played(pool, heard)
    assert (outcome.team_score, outcome.solved) == (1.0, True)
    assert outcome.turn_rewards == {("player", 0): 0.5, ("player", 1): 0.5}
    assert [(one.role, one.content) for one in heard[2:]] == [
        ("user", "The counter is 3."), ("tool", "5"), ("tool", "5"), ("user", "Go on."),
    ]  # fmt: skip
    await pool.close()
    assert server.paths() == ["reset", "step", "step", "close"]
    assert len(server.closed) == 1
    steps = [body["response"]["output"] for path, body in server.heard if path == "step"]
    assert [[one["type"] for one in items] for items in steps] == [
        ["reasoning", "message", "function_call", "function_call"], ["message"],
    ]  # fmt: skip


ADDS = (Message("assistant", "", tool_calls=(ADD,)),)


async def test_a_turn_limit_or_a_reply_that_was_cut_off_ends_an_episode(server: GymEndpoint, players: Players) -> None:
    outcome = await played(players.pool(max_turns=1), says=ADDS)
    assert (outcome.team_score, outcome.facts["cut_off"]) == (1.0, 1.0)
    assert server.paths() == ["seed_session", "add", "verify"]
    outcome = await played(players.pool(), says=ADDS, finish="length")
    assert (outcome.team_score, outcome.facts["tool_calls"]) == (0.0, 0.0)
    assert server.heard[-1][1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    outcome = await played(players.pool(protocol="gymnasium", max_turns=3), says=ADDS)
    assert (outcome.team_score, outcome.facts["cut_off"]) == (1.5, 1.0)


async def test_what_a_tool_refuses_is_told_and_endpoints_are_no_tools(server: GymEndpoint, players: Players) -> None:
    heard: list[Message] = []
    server.what = "wrong add"
    outcome = await played(players.pool(max_turns=1), heard, ADDS)
    await played(players.pool(max_turns=2), heard, ADDS)
    assert heard[-1].content == '{"detail": "count is missing"}'
    assert outcome.facts["tool_errors"] == 1.0
    server.what, server.heard = "well", []
    said = (Message("assistant", "", tool_calls=(ToolCall("verify", {"reward": 1}), ToolCall("../shop/add"))),)
    outcome = await played(players.pool(max_turns=2), heard, said)
    assert server.paths() == ["seed_session", "verify"]
    assert [one.content for one in heard[-2:]] == [
        "There is no tool verify. Tools: add, read.", "There is no tool ../shop/add. Tools: add, read.",
    ]  # fmt: skip
    bad = row()
    bad["responses_create_params"]["tools"] = [{"type": "function", "name": "verify", "parameters": {}}]
    known = "boot: its row offers a tool named verify, which no tool can have"
    assert await players.broke(players.pool(lines(bad))) == known


async def test_an_agent_never_reads_the_secret(server: GymEndpoint, players: Players) -> None:
    heard: list[Message] = []
    server.what = "echo add"
    await played(players.pool(**SECRET, max_turns=2), heard, ADDS)
    assert heard[-1].content == "You sent Bearer [secret]."
    response = server.heard[-1][1]["response"]["output"]
    assert {one["output"] for one in response if one["type"] == "function_call_output"} == {heard[-1].content}


ENDLESS = {"setup_timeout_s": 60.0, "step_timeout_s": 60.0, "score_timeout_s": 60.0}
BROKEN = {
    "hang seed_session": f"boot: no answer within {SHORT_S:g} s",
    "hang add": f"step: no answer within {SHORT_S:g} s",
    "hang verify": f"score: no answer within {SHORT_S:g} s",
    "drop seed_session": "boot: unreachable: it closed the connection: ServerDisconnectedError",
    "drop add": "step: unreachable: it closed the connection: ServerDisconnectedError",
    "flood read": "step: oversized: its answer has more than 1048576 bytes",
    "flood verify": "score: oversized: its answer has more than 1048576 bytes",
    "garbage verify": "score: garbage: its answer to /verify is no JSON object",
    "list seed_session": "boot: garbage: its answer to /seed_session is no JSON object",
    "biscuits seed_session": "boot: oversized: its cookies have more than 8192 characters",
    "moved seed_session": "boot: refused: status 307 at /seed_session; redirects are not followed, name the URL itself",
    "moved add": "step: refused: status 307 at /add; redirects are not followed, name the URL itself",
    "refused seed_session": "boot: refused: status 403 at /seed_session: no Bearer [secret]",
    "raise verify": "score: server_error: status 500 at /verify: \"KeyError('shelf')\"",
    "gateway add": "step: server_error: status 502 at /add: no upstream",
    "none": "score: none: the answer to /verify has no reward",
    "absent": "score: none: the answer to /verify has no reward",
    "much": "score: garbage: the reward of /verify is no number",
    "true": "score: garbage: the reward of /verify is no number",
    "nan": "score: nonfinite: the reward of /verify is nan, not a finite number",
    "nan_component": "score: nonfinite: distance is nan, not a finite number",
    "masked": "score: none: the server says that its reward counts for nothing: judge_unavailable: no judge",
}
DEADLINES = {"seed_session": "setup_timeout_s", "add": "step_timeout_s", "verify": "score_timeout_s"}


@pytest.mark.parametrize("what", list(BROKEN))
async def test_what_befalls_a_session_is_named(server: GymEndpoint, players: Players, what: str) -> None:
    server.what = what
    short = {DEADLINES[what.split()[1]]: SHORT_S} if what.startswith("hang") else {}
    assert await players.broke(players.pool(**SECRET, **{**ENDLESS, **short})) == BROKEN[what]


STEPS_BROKEN = {
    "hang reset": f"boot: no answer within {SHORT_S:g} s",
    "hang step": f"step: no answer within {SHORT_S:g} s",
    "raise step": "step: server_error: status 500 at /step: \"KeyError('shelf')\"",
    "garbage step": "step: garbage: its answer to /step is no JSON object",
    "silent": "step: garbage: the episode goes on, and its answer to /step tells the agent nothing",
    "absent": "score: none: the answer to /step has no reward",
    "nan": "score: nonfinite: the reward of /step is nan, not a finite number",
}


@pytest.mark.parametrize("what", list(STEPS_BROKEN))
async def test_what_befalls_a_step_is_named_and_the_session_is_closed(
    server: GymEndpoint, players: Players, what: str
) -> None:
    server.what = what
    short = {f"{'setup' if 'reset' in what else 'step'}_timeout_s": SHORT_S} if what.startswith("hang") else {}
    pool = players.pool(protocol="gymnasium", **{**ENDLESS, **short})
    assert await players.broke(pool) == STEPS_BROKEN[what]
    await pool.close()
    assert len(server.closed) == ("reset" not in what)


@pytest.mark.parametrize("full", [429, 503])
async def test_a_server_that_is_full_is_asked_again(server: GymEndpoint, players: Players, full: int) -> None:
    server.full = full
    server.free.clear()
    waiting = asyncio.create_task(played(players.pool()))
    async with asyncio.timeout(60):
        while not server.headers:
            await asyncio.sleep(0.01)
    assert not server.heard
    server.free.set()
    assert (await waiting).team_score == 1.0
    assert server.paths() == ["seed_session", "add", "read", "verify"], "nothing is made twice"
    server.free.clear()
    assert await players.broke(players.pool(setup_timeout_s=0.7)) == "boot: it was full for 0.7 s"


async def test_nobody_is_asked_whom_the_operator_did_not_allow(server: GymEndpoint, players: Players) -> None:
    known = f"boot: host_not_allowed: {server.host} is not among FLEXMARL_EXTERNAL_HOSTS of the rollout worker"
    assert await players.broke(players.pool(hosts="elsewhere.example")) == known
    missing = "boot: secret_missing: FLEXMARL_EXTERNAL_SECRET_SHOP is not set on the rollout worker"
    assert await players.broke(players.pool(secret="SHOP")) == missing
    assert not server.headers
    unreachable = players.pool()
    await server.http.close()
    assert await players.broke(unreachable) == "boot: unreachable: ClientConnectorError"


async def test_a_cancelled_begin_holds_nothing(server: GymEndpoint, players: Players) -> None:
    server.what = "hang reset"
    pool = players.pool(protocol="gymnasium")
    begun = asyncio.create_task(pool.begin(0, False, 1))
    async with asyncio.timeout(60):
        while not server.heard:
            await asyncio.sleep(0.01)
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    assert begun.cancelled()


async def test_evaluations_play_held_out_rows_or_those_of_training(server: GymEndpoint, players: Players) -> None:
    rows = lines(row(), held_out=[row(expected=6)])
    assert (await played(players.pool(rows), held_out=True)).team_score == 0.0
    outcome = await played(players.pool(rows, evaluation_rows="training"), held_out=True)
    assert outcome.team_score == 1.0
    assert "epoch" not in outcome.facts


async def test_a_row_sets_fewer_tokens_and_may_ask_for_json(server: GymEndpoint, players: Players) -> None:
    made = row()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    made["responses_create_params"] = {
        "input": "Say a number.", "max_output_tokens": 32,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
    }  # fmt: skip
    live = await players.pool(lines(made)).begin(0, False, 1)
    [ask] = live.asks()
    live.leave()
    assert (ask.max_tokens, ask.messages, ask.tools) == (32, (Message("user", "Say a number."),), ())
    assert json.loads(ask.structured)["of"] == schema


WRONG_ROWS = {
    "it has no column responses_create_params": {"question": "?"},
    "is not an object with input and tools": {"responses_create_params": "?"},
    "input: is neither a text nor a list of items": {"responses_create_params": {"input": []}},
    "tools/0: is not a function": {"responses_create_params": {"input": "?", "tools": [{"type": "web_search"}]}},
    "input: a message of the system or developer stands behind others": {
        "responses_create_params": {"input": [{"role": "user", "content": "?"}, {"role": "system", "content": "!"}]}
    },
    "previous_response_id": {"responses_create_params": {"input": "?", "previous_response_id": "resp_1"}},
}


@pytest.mark.parametrize("why", list(WRONG_ROWS))
async def test_a_row_that_is_no_task_says_why(server: GymEndpoint, players: Players, why: str) -> None:
    wrong = WRONG_ROWS[why]
    with pytest.raises(NotOfGym) as refused:
        task_of(DatasetRow((), "", wrong))
    assert why in str(refused.value)
    assert await players.broke(players.pool(lines(wrong))) == f"boot: {refused.value}"
    assert not server.headers


async def test_addresses_are_of_http_and_plays_are_not_copied() -> None:
    spec = ENVIRONMENT.variants()["nemo_gym_url"]()
    assert family_of(spec).roles == ("player",)
    with pytest.raises(ValueError, match="cannot be copied"):
        begin_here(NemoGymPool(NemoGymUrl(), ExternalAccess(), lines()), 1, False, 1)
    for wrong in ("wss://a.example/ws", "https://", "https://key@a.example/", "https://a.example/?key=1"):
        with pytest.raises(ValidationError):
            NemoGymUrl(url=wrong)
