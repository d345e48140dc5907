"""A scripted model calls tools and answers: what it reads is context of the same chain, what it says is trained, and
the environment sees the reply that ends the turn."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.tools import PinnedTool
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.replies import written_call
from tests.support.chat_templates import CHATML, renderer
from tests.support.gateway_stand import PIN, WORDS, Scripted
from tests.support.tool_endpoint import ToolEndpoint
from workers.external_access import ExternalAccess
from workers.rollout import datasets
from workers.rollout.environments.base import Reply
from workers.rollout.environments.dataset_questions import DatasetFamily
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.isolation.lines import ToolResult
from workers.rollout.recorder import chains_of
from workers.rollout.speech import Seat
from workers.rollout.tool_use import FORM, LAST, UNREADABLE, ToolStage
from workers.vocabulary import Codec

pytestmark = pytest.mark.asyncio

ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
SEVEN = written_call(ToolCall("add", {"a": 3, "b": 4}))
PAIR = {"type": "sequence", "order": ["solver", "reviser"]}


class Session:
    """Adds, and remembers what it was asked."""

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool

    async def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        self.pool.asked += calls
        if self.pool.broken:
            raise EnvironmentBroke("call: its server ended with code 3")
        return [self.result(call) for call in calls]

    def result(self, call: ToolCall) -> ToolResult:
        if "a" not in call.arguments:
            return ToolResult("a is missing", 12, True)
        text = str(call.arguments["a"] + call.arguments["b"])
        return ToolResult(text, self.pool.characters or len(text), False)

    def leave(self) -> None:
        self.pool.left += 1


class Pool:
    def __init__(self, *, broken: bool = False, characters: int = 0) -> None:
        self.asked: list[ToolCall] = []
        self.offered = (PinnedTool.model_validate(ADD),)
        self.begun = self.left = 0
        self.broken, self.characters = broken, characters

    async def tools(self) -> tuple[PinnedTool, ...]:
        return self.offered

    async def begin(self) -> Session:
        self.begun += 1
        return Session(self)

    async def close(self) -> None:
        return


def stage(pool: Pool, turns: int = 2, **options: Any) -> ToolStage:
    server = {"package": "adder@1.0", "pinned": {"tools": [ADD]}, **options.pop("server", {})}
    scores = options.pop("scores", [{"type": "number"}])
    tools = {"servers": [server], "turns": turns, **options.pop("tools", {})}
    spec = DatasetTasks.model_validate({"scores": scores, "tools": tools, **options})
    family = DatasetFamily(spec)
    rows = [(False, to_line(DatasetRow((Message("user", "What is 3+4?"),), "7", {})))] * 2
    family.lines = datasets.keep(digest_of(rows), rows)
    return ToolStage(family, spec.tools, (pool,), spec.graph.tokens is not None)  # type: ignore[arg-type]


async def played(stage: ToolStage, engine: Scripted) -> EpisodeAttempt:
    codec = Codec(WORDS.to_str().encode())
    seats = {role: Seat(role, PIN, codec, 200, 1.0, renderer=renderer(CHATML)) for role in stage.family.roles}
    order = EpisodeOrder(0, 0, 1, 0, False, 1, 30.0, 30.0, None)
    return await play_episode(order, stage, seats, engine)  # type: ignore[arg-type]


def read(engine: Scripted, turn: int) -> str:
    return str(WORDS.decode(list(engine.asked[turn].prompt), skip_special_tokens=False))


async def test_a_scripted_model_calls_a_tool_and_answers_in_one_chain() -> None:
    pool, engine = Pool(), Scripted(SEVEN, "It is 7")
    attempt = await played(stage(pool), engine)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert pool.asked == [ToolCall("add", {"a": 3, "b": 4})]
    assert '"description": "Add."' in read(engine, 0), "the prompt says which tools there are"
    assert "<tool_response>\n7\n</tool_response>" in read(engine, 1)
    first, second = attempt.turns
    whole = first.prompt + tuple(first.reply.choice.token_ids)
    assert second.prompt[: len(whole)] == whole, "what was sampled is never rendered again"
    assert chains_of(attempt.turns) == [attempt.turns], "one row"
    assert attempt.outcome is not None
    assert attempt.outcome.team_score == 1.0
    assert attempt.outcome.turn_rewards == {("solver", 1): 1.0}, "the turn that answered is paid"
    assert [one.turn for one in attempt.outcome.judged] == [1]
    facts = attempt.outcome.facts
    assert (facts["tool_calls"], facts["tool_errors"], facts["tool_turns_used_up"]) == (1.0, 0.0, 0.0)
    assert (pool.begun, pool.left) == (1, 1)


async def test_an_episode_without_a_call_begins_no_session() -> None:
    pool = Pool()
    attempt = await played(stage(pool), Scripted("7"))
    assert attempt.outcome is not None
    assert attempt.outcome.facts["tool_calls"] == 0.0
    assert pool.begun == 0


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (written_call(ToolCall("sub", {"a": 1})), "Error: there is no tool sub. There are: add."),
        (written_call(ToolCall("add", {})), "Error: a is missing"),
        ('<tool_call>{"name": "add", "arguments": [3]}</tool_call>', UNREADABLE),
        ('<tool_call>{"name": "add", "arguments": {"a": 3</tool_call>', UNREADABLE),
    ],
)
async def test_what_was_called_wrongly_is_told_and_counted(said: str, told: str) -> None:
    engine = Scripted(said, "7")
    attempt = await played(stage(Pool()), engine)
    assert attempt.outcome is not None, attempt.reason
    assert f"<tool_response>\n{told}\n</tool_response>" in read(engine, 1)
    assert attempt.outcome.facts["tool_errors"] == 1.0
    assert attempt.outcome.team_score == 1.0
    assert FORM in UNREADABLE


async def test_a_result_that_was_cut_off_says_so() -> None:
    engine = Scripted(SEVEN, "7")
    await played(stage(Pool(characters=5000)), engine)
    assert "7\n[cut off: 1 of 5000 characters]" in read(engine, 1)


async def test_a_reply_with_several_calls_gets_a_result_for_each_and_no_more_than_eight_are_made() -> None:
    calls = "\n".join(written_call(ToolCall("add", {"a": n, "b": 0})) for n in range(9))
    pool, engine = Pool(), Scripted(calls, "7")
    spec = stage(pool, reply_tokens=2000)
    codec = Codec(WORDS.to_str().encode())
    seats = {"solver": Seat("solver", PIN, codec, 2000, 1.0, renderer=renderer(CHATML))}
    attempt = await play_episode(EpisodeOrder(0, 0, 1, 0, False, 1, 30.0, 30.0, None), spec, seats, engine)  # type: ignore[arg-type]
    assert attempt.outcome is not None, attempt.reason
    assert [call.arguments["a"] for call in pool.asked] == list(range(8))
    assert read(engine, 1).count("<tool_response>") == 9
    assert "at most 8 calls" in read(engine, 1)
    assert attempt.outcome.facts["tool_calls"] == 9.0
    assert attempt.outcome.facts["tool_errors"] == 1.0


async def test_calls_beyond_the_turns_are_not_made() -> None:
    pool, engine = Pool(), Scripted(SEVEN, SEVEN, f"7\n{SEVEN}")
    attempt = await played(stage(pool, turns=2), engine)
    assert attempt.outcome is not None, attempt.reason
    assert len(pool.asked) == 2
    assert LAST not in read(engine, 1)
    assert LAST in read(engine, 2)
    assert attempt.outcome.facts["tool_turns_used_up"] == 1.0
    assert attempt.outcome.team_score == 1.0, "its words are its answer"


async def test_only_the_seats_that_are_named_have_tools_and_rewards_stand_at_their_turns() -> None:
    pool, engine = Pool(), Scripted("6", SEVEN, "7")
    attempt = await played(stage(pool, graph=PAIR, server={"agents": ["reviser"]}), engine)
    assert attempt.outcome is not None, attempt.reason
    assert [turn.role for turn in attempt.turns] == ["solver", "reviser", "reviser"]
    assert "Add." not in read(engine, 0)
    assert "Add." in read(engine, 1)
    assert attempt.outcome.turn_rewards == {("solver", 0): 0.0, ("reviser", 1): 1.0}


async def test_a_team_with_a_budget_keeps_it_with_tools() -> None:
    engine = Scripted(SEVEN, SEVEN, SEVEN, "7")
    graph = {"type": "sequence", "order": ["solver"], "tokens": 90}
    attempt = await played(stage(Pool(), turns=9, graph=graph), engine)
    assert attempt.outcome is not None, attempt.reason
    assert sum(len(turn.reply.choice.token_ids) for turn in attempt.turns) <= 90


async def test_a_broken_server_fails_the_attempt_by_name() -> None:
    pool = Pool(broken=True)
    attempt = await played(stage(pool), Scripted(SEVEN))
    assert attempt.status is EpisodeStatus.FAILED
    assert attempt.reason == "environment: tools of adder@1.0: call: its server ended with code 3"
    assert attempt.broke
    assert pool.left == 1


async def test_a_reply_that_was_cut_off_in_a_call_is_an_answer() -> None:
    inner = stage(Pool()).family.make(0, False, random.Random(0))
    made = await stage(Pool()).around(SimpleNamespace(asks=inner.asks, task={}))  # type: ignore[arg-type]
    [turn] = [made._turns[0] for _ in [made.asks()]]
    cut = Reply("solver", "<tool_call>", Message("assistant", "<tool_call>"), "length")
    assert made._ends_turn(turn, cut)


async def test_servers_with_tools_of_one_name_fail_episodes_by_name() -> None:
    url = {"type": "mcp_url", "url": "https://tools.example.org/mcp"}
    pool, other = Pool(), Pool()
    both = stage(pool, tools={"servers": [{"package": "adder@1.0", "pinned": {"tools": [ADD]}}, url]})
    both.pools = (pool, other)  # type: ignore[assignment]
    attempt = await played(both, Scripted("7"))
    assert attempt.reason == (
        "environment: tools: boot: adder@1.0 and https://tools.example.org/mcp both have a tool add. "
        "Give them to different agents, or remove one."
    )


async def test_a_server_behind_a_url_is_asked_before_the_first_prompt() -> None:
    url = {"type": "mcp_url", "url": "https://tools.example.org/mcp"}
    pool, engine = Pool(), Scripted(SEVEN, "It is 7")
    attempt = await played(stage(pool, tools={"servers": [url]}), engine)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert '"description": "Add."' in read(engine, 0)
    assert (pool.begun, pool.left) == (1, 1)


async def test_a_server_behind_a_url_that_lists_no_tools_fails_the_attempt_by_its_url() -> None:
    async with ToolEndpoint() as server:
        pool = server.pool(ExternalAccess())
        made = stage(pool, tools={"servers": [{"type": "mcp_url", "url": server.url}]})  # type: ignore[arg-type]
        attempt = await played(made, Scripted("7"))
        await pool.close()
    assert attempt.reason == (
        f"environment: tools of {server.url}: boot: host_not_allowed: "
        f"{server.host} is not among FLEXMARL_EXTERNAL_HOSTS of the rollout worker"
    )
    assert attempt.broke
