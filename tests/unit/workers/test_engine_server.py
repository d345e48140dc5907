"""The engine child as its parent and its clients see it: a real process, real HTTP, weights from the state plane."""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import psutil
import pytest

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from tests.support.engine_child import start_engine
from tests.support.forked import Process
from workers.child import ChildInterval
from workers.models import build_model
from workers.models.weights import initial_weights
from workers.rollout.engine_client import EngineClient
from workers.rollout.engines.wire import CompletionResponse, HeldVersion, NotHeld, Slept, Stats
from workers.rollout.turns import TurnRequest
from workers.transfer.local import LocalTier

WORDS = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(37)))
SPEC = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
WAIT_S = 60
"""How long a process may take to end on a machine that has other work."""


@dataclass
class RunningChild:
    process: Process
    url: str
    digests: list[str]
    plane: LocalTier


def start_child(home: Path) -> RunningChild:
    plane = LocalTier(home)
    digests = [plane.put(build_model(FactoryModel(), WORDS, seed).state_dict()).digest for seed in (1, 2)]
    started = start_engine(home, "life-1", SPEC)
    return RunningChild(started.process, started.url, digests, plane)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningChild]:
    running = start_child(tmp_path_factory.mktemp("home"))
    yield running
    assert running.process.stdin is not None
    running.process.stdin.close()
    assert running.process.wait(WAIT_S) == 0, "end of standard input ends the child"
    assert running.process.stdout is not None
    assert running.process.stdout.read() == b"", "standard output holds the ready line alone"


async def ask(child: RunningChild, path: str, body: object = None, secret: str = "secret") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, child.url + path, data=msgspec.json.encode(body or {})) as response:
            return response.status, await response.read()


async def load(child: RunningChild, version: int, policy: str = "speaker") -> None:
    asked = {"policy": policy, "version": version, "digest": child.digests[version]}
    status, _ = await ask(child, "/load", asked)
    assert status == 200


def completion(child: RunningChild, version: int = 0, **changes: object) -> dict[str, object]:
    prompts = [[1, 3 + i, 4] for i in range(5)]
    body = {"model": "speaker", "prompt": prompts, "max_tokens": 6, "seeds": list(range(5)), "version": version}
    return body | {"digest": child.digests[version]} | changes


def choices_of(body: bytes) -> dict[int, tuple[list[int], list[int]]]:
    reply = msgspec.json.decode(body, type=CompletionResponse)
    assert reply.incarnation == "life-1"
    return {choice.index: (choice.token_ids, choice.segments) for choice in reply.choices}


async def stats_of(child: RunningChild) -> Stats:
    return msgspec.json.decode((await ask(child, "/stats"))[1], type=Stats)


async def test_nothing_is_answered_without_the_secret(child: RunningChild) -> None:
    for path, body in (("/health", None), ("/v1/completions", completion(child)), ("/load", {})):
        assert (await ask(child, path, body, secret="guess"))[0] == 401
    assert (await ask(child, "/health"))[0] == 200


async def test_a_whole_answer_and_a_stream_carry_the_same_choices(child: RunningChild) -> None:
    await load(child, 0)
    status, whole = await ask(child, "/v1/completions", completion(child))
    assert status == 200
    expected = choices_of(whole)
    assert list(expected) == [0, 1, 2, 3, 4]
    assert all(segments == [0, 6] for _, segments in expected.values())
    status, stream = await ask(child, "/v1/completions", completion(child, stream=True))
    lines = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line]
    assert (status, lines[-1]) == (200, b"[DONE]")
    streamed: dict[int, tuple[list[int], list[int]]] = {}
    for line in lines[:-1]:
        streamed |= choices_of(line)
    assert streamed == expected


async def test_choices_of_a_stream_come_as_they_finish(child: RunningChild) -> None:
    await load(child, 0)
    body = completion(child, stream=True, max_tokens=900, stop_token_ids=list(range(3, 20)), prompt=[[1, 3]] * 8)
    _, stream = await ask(child, "/v1/completions", body | {"seeds": list(range(8))})
    lines = [line for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    assert len(lines) > 1
    assert sum(len(choices_of(line.removeprefix(b"data: "))) for line in lines) == 8


async def test_other_weights_than_held_are_refused_with_what_is_held(child: RunningChild) -> None:
    await load(child, 0)
    for changes in ({"model": "listener"}, {"version": 5}, {"digest": "0" * 64}):
        status, body = await ask(child, "/v1/completions", completion(child) | changes)
        refusal = msgspec.json.decode(body, type=NotHeld)
        assert (status, refusal.code, "speaker" in refusal.holds) == (409, "not_held", True)
    missing = {"policy": "speaker", "version": 9, "digest": "0" * 64}
    status, body = await ask(child, "/load", missing)
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "state_missing")
    status, body = await ask(child, "/load", missing | {"policy": "stranger"})
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "not_held")


async def test_damaged_weights_are_refused_by_name_and_what_is_held_goes_on(child: RunningChild) -> None:
    await load(child, 0)
    damaged = child.plane.put(build_model(FactoryModel(), WORDS, 3).state_dict())
    path = Path(damaged.path)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    asked = {"policy": "speaker", "version": 7, "digest": damaged.digest}
    status, body = await ask(child, "/load", asked)
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "state_corrupt")
    path.write_bytes(whole[:-1])
    status, body = await ask(child, "/load", asked)
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "state_corrupt")
    assert (await ask(child, "/v1/completions", completion(child)))[0] == 200


@pytest.mark.parametrize(
    "changes",
    [{"seeds": [1]}, {"prompt": []}, {"prompt": [[]] * 5}, {"request_ids": ["a"] * 5}, {"surprise": 1}, {"prompt": 3}],
)
async def test_a_malformed_request_is_refused_and_changes_nothing(child: RunningChild, changes: dict) -> None:
    await load(child, 0)
    before = await stats_of(child)
    status, body = await ask(child, "/v1/completions", completion(child) | changes)
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (422, "bad_request")
    after = await stats_of(child)
    assert (after.running, after.waiting, after.generated_tokens) == (0, 0, before.generated_tokens)


async def test_a_new_version_answers_and_the_old_one_stays_for_groups_that_pin_it(child: RunningChild) -> None:
    await load(child, 0)
    old = choices_of((await ask(child, "/v1/completions", completion(child)))[1])
    await load(child, 1)
    await load(child, 1)
    new = choices_of((await ask(child, "/v1/completions", completion(child, version=1)))[1])
    assert all(segments[0] == 1 for _, segments in new.values())
    assert [ids for ids, _ in new.values()] != [ids for ids, _ in old.values()]
    assert choices_of((await ask(child, "/v1/completions", completion(child)))[1]) == old
    assert (await stats_of(child)).holds["speaker"].version == 1


async def test_a_load_that_arrives_behind_a_later_one_is_refused(child: RunningChild) -> None:
    order = {"policy": "speaker", "digest": child.digests[0], "version": 0}
    assert (await ask(child, "/load", order | {"order": 7}))[0] == 200
    status, body = await ask(child, "/load", order | {"version": 9, "order": 6})
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "superseded")
    assert (await ask(child, "/load", order | {"order": 7}))[0] == 200
    assert (await stats_of(child)).holds["speaker"].version != 9


def endless(child: RunningChild, name: str) -> dict[str, object]:
    return completion(child, prompt=[[1, 3]], seeds=[1], max_tokens=4000, request_ids=[name])


async def until_running(child: RunningChild, running: int) -> None:
    deadline = time.monotonic() + 10
    while (await stats_of(child)).running != running:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_abort_ends_a_reply_with_the_tokens_it_has(child: RunningChild) -> None:
    await load(child, 0)
    asking = asyncio.create_task(ask(child, "/v1/completions", endless(child, "long")))
    await until_running(child, 1)
    _, body = await ask(child, "/abort", {"request_ids": ["long", "nobody"]})
    assert msgspec.json.decode(body) == {"aborted": ["long"]}
    _, answer = await asking
    choice = msgspec.json.decode(answer, type=CompletionResponse).choices[0]
    assert choice.finish_reason == "abort"
    assert 0 < len(choice.token_ids) == len(choice.logprobs) < 4000
    assert (await stats_of(child)).running == 0, "what is acknowledged is out of the batch"


async def test_a_stream_tells_tokens_as_they_come_and_each_once(child: RunningChild) -> None:
    await load(child, 0)
    body = completion(child, prompt=[[1, 3], [1, 4]], seeds=[1, 2], max_tokens=500)
    _, whole = await ask(child, "/v1/completions", body)
    _, stream = await ask(child, "/v1/completions", body | {"stream": True, "progress": True})
    heard: dict[int, tuple[list[int], list[float]]] = {0: ([], []), 1: ([], [])}
    events = [msgspec.json.decode(line[6:], type=CompletionResponse) for line in stream.split(b"\n\n")[:-2]]
    for choice in (choice for event in events for choice in event.choices):
        assert choice.at == len(heard[choice.index][0])
        assert choice.segments == ([0, len(choice.token_ids)] if choice.token_ids else [])
        heard[choice.index][0].extend(choice.token_ids)
        heard[choice.index][1].extend(choice.logprobs)
    assert sum(choice.finish_reason == "length" for event in events for choice in event.choices) == 2
    for choice in msgspec.json.decode(whole, type=CompletionResponse).choices:
        assert heard[choice.index] == (choice.token_ids, choice.logprobs)
    done = [{"token_ids": ids[:7], "logprobs": logprobs[:7], "segments": [0, 7]} for ids, logprobs in heard.values()]
    _, carried = await ask(child, "/v1/completions", body | {"done": done})
    for choice in msgspec.json.decode(carried, type=CompletionResponse).choices:
        assert (choice.token_ids, choice.segments) == (heard[choice.index][0], [0, 500])
        assert max(abs(a - b) for a, b in zip(choice.logprobs, heard[choice.index][1], strict=True)) < 1e-5
    status, refusal = await ask(child, "/v1/completions", body | {"done": done[:1]})
    assert (status, msgspec.json.decode(refusal, type=NotHeld).code) == (422, "bad_request")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_its_requests(child: RunningChild, stream: bool) -> None:
    await load(child, 0)
    asking = asyncio.create_task(ask(child, "/v1/completions", endless(child, "left") | {"stream": stream}))
    await until_running(child, 1)
    asking.cancel()
    await until_running(child, 0)


async def test_busy_intervals_are_told_until_acknowledged(child: RunningChild) -> None:
    await load(child, 0, policy="listener")
    for _ in range(3):
        await ask(child, "/v1/completions", completion(child, model="listener"))
        await asyncio.sleep(0.01)
    _, body = await ask(child, "/intervals", {"acknowledged": -1})
    found = msgspec.json.decode(body, type=list[ChildInterval])
    assert {"load", "rollout"} <= {interval.phase for interval in found}
    assert sum(interval.tokens for interval in found if interval.policy == "listener") == 90
    assert all(interval.t0 <= interval.t1 <= time.time() for interval in found)
    for earlier, later in pairwise(found):
        assert earlier.t1 <= later.t0 + 1e-6, "one device, one thing at a time"
    _, body = await ask(child, "/intervals", {"acknowledged": found[-1].ord})
    assert msgspec.json.decode(body) == []


async def test_what_is_to_leave_refuses_at_once_and_is_gone_when_its_last_reply_ends(child: RunningChild) -> None:
    order = {"policy": "listener", "version": 0, "digest": child.digests[0]}
    assert (await ask(child, "/load", order | {"order": 3}))[0] == 200
    listener = endless(child, "listener-1") | {"model": "listener"}
    running = asyncio.create_task(ask(child, "/v1/completions", listener))
    await until_running(child, 1)
    leaving = asyncio.create_task(ask(child, "/unload", {"policy": "listener", "order": 5}))
    while "listener" in (await stats_of(child)).holds:
        await asyncio.sleep(0.01)
    status, body = await ask(child, "/v1/completions", listener | {"request_ids": ["listener-2"]})
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "not_held")
    assert not leaving.done(), "a reply still runs"
    assert not running.done()
    await ask(child, "/abort", {"request_ids": ["listener-1"]})
    assert (await leaving)[0] == 200
    assert choices_of((await running)[1])[0][0], "it ended with the tokens it had"
    status, body = await ask(child, "/load", order | {"order": 4})
    assert (status, msgspec.json.decode(body, type=NotHeld).code) == (409, "superseded")
    assert "listener" not in (await stats_of(child)).holds
    assert (await ask(child, "/unload", {"policy": "listener", "order": 6}))[0] == 200, "to forget twice is no error"


async def test_a_reply_that_is_repacked_is_the_reply_of_one_that_stayed(child: RunningChild) -> None:
    """The engine is emptied in its midst, and the client goes on where it is sent: here, once it is loaded again."""
    await load(child, 0)
    pin = PolicyPin(version=0, digest=child.digests[0])
    named: list[int] = []

    async def routes() -> list[EngineRoute]:
        held = (await stats_of(child)).holds
        return [EngineRoute(7, child.url, "secret", "life-1", {"speaker": pin} if "speaker" in held else {})]

    client = EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded")))
    request = TurnRequest("speaker", pin, (1, 3), 5, 700, 1.0, (), (), engine=7)
    try:
        stayed = await client.turn(request, time.monotonic() + WAIT_S)
        turn = asyncio.create_task(client.turn(request, time.monotonic() + WAIT_S))
        await until_running(child, 1)
        assert (await ask(child, "/unload", {"policy": "speaker", "hand_over": True, "to": 7}))[0] == 200
        while not client.counters.refused["aborted"]:
            await asyncio.sleep(0.002)
        named += [one.latest.to for one in client.counters.open._turns.values()]
        await load(child, 0)
        moved = await turn
    finally:
        await client.close()
    assert named == [7]
    assert client.counters.left[("aborted", "life-1")] == 1, "it was under way"
    assert moved.choice.token_ids == stayed.choice.token_ids
    assert np.allclose(moved.choice.logprobs, stayed.choice.logprobs, atol=1e-4)
    assert moved.choice.segments == [0, len(stayed.choice.token_ids)], "one version made all of it"
    assert moved.moves == 0


async def refused(child: RunningChild, path: str, body: object) -> str:
    status, answer = await ask(child, path, body)
    assert status == 409
    return msgspec.json.decode(answer, type=NotHeld).code


async def test_an_idle_engine_gives_its_memory_back_and_wakes_with_what_it_held(child: RunningChild) -> None:
    await load(child, 0)
    await ask(child, "/unload", {"policy": "listener"})
    large = child.plane.put(initial_weights(FactoryModel(), 60_000, 1)).digest
    order = {"policy": "listener", "version": 0, "digest": large}
    assert (await ask(child, "/load", order))[0] == 200
    held = (await stats_of(child)).holds
    said = choices_of((await ask(child, "/v1/completions", completion(child)))[1])
    running = asyncio.create_task(ask(child, "/v1/completions", endless(child, "awake")))
    await until_running(child, 1)
    assert await refused(child, "/sleep", {}) == "busy"
    await ask(child, "/abort", {"request_ids": ["awake"]})
    assert (await running)[0] == 200
    process = psutil.Process(child.process.pid)
    full = process.memory_full_info().uss
    async with asyncio.timeout(WAIT_S):
        while full - process.memory_full_info().uss < 25 * 2**20:  # two matrices of 15 MiB go
            assert (await ask(child, "/sleep", {}))[0] == 200
            await asyncio.sleep(0.05)
    assert (await stats_of(child)).holds == {}
    for path, body in (("/v1/completions", completion(child)), ("/load", order), ("/unload", {"policy": "listener"})):
        assert await refused(child, path, body) == "asleep"
    assert (await ask(child, "/sleep", {}))[0] == 200, "to fall asleep twice is no error"
    status, answer = await ask(child, "/wake", {})
    assert (status, msgspec.json.decode(answer, type=dict[str, HeldVersion])) == (200, held)
    assert choices_of((await ask(child, "/v1/completions", completion(child)))[1]) == said
    assert (await ask(child, "/unload", {"policy": "listener"}))[0] == 200


async def test_an_engine_that_is_to_sleep_makes_its_replies_to_their_end_and_takes_no_more(child: RunningChild) -> None:
    await load(child, 0)
    running = asyncio.create_task(ask(child, "/v1/completions", endless(child, "last")))
    await until_running(child, 1)
    falling = asyncio.create_task(ask(child, "/sleep", {"drain": True, "order": 7}))
    async with asyncio.timeout(WAIT_S):
        while (await ask(child, "/v1/completions", completion(child)))[0] != 409:
            await asyncio.sleep(0.005)
    assert not falling.done()
    await ask(child, "/abort", {"request_ids": ["last"]})
    assert (await running)[0] == 200
    status, answer = await falling
    assert status == 200
    assert msgspec.json.decode(answer, type=Slept).bytes > 100_000
    assert await refused(child, "/wake", {"empty": True, "order": 6}) == "superseded"
    assert await refused(child, "/v1/completions", completion(child)) == "asleep"
    assert await ask(child, "/wake", {"empty": True, "order": 8}) == (200, b"{}")
    assert (await stats_of(child)).holds == {}
    await load(child, 0)


def test_sigterm_ends_the_child_even_with_work_running(tmp_path: Path) -> None:
    running = start_child(tmp_path)

    async def keep_busy() -> None:
        await load(running, 0)
        asking = asyncio.create_task(ask(running, "/v1/completions", endless(running, "long")))
        await until_running(running, 1)
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(aiohttp.ClientError):
            await asking

    asyncio.run(keep_busy())
    assert running.process.wait(WAIT_S) == 0, "it ended by itself, and left the endless reply where it was"
