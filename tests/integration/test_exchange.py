"""The exchange as a process of its own: who may post what, what a hostile member changes, and what a kill loses."""

import asyncio
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.shared_rollouts import (
    CONTENT,
    MEMBER,
    SIGNATURE,
    TIME,
    SharedRollout,
    SharedTurn,
    content_of,
    signature,
    task_digest,
)
from tests.support.exchange import Exchange, SharingTraining
from workers.exchange.access import ExchangeAccess
from workers.exchange.client import PATH, ExchangeClient, ExchangeError, ExchangeFailure

QUOTA = ("--rollouts-per-minute", "200", "--bytes-per-minute", "300000", "--kept-bytes", "20000")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exchange]:
    with Exchange(tmp_path_factory.mktemp("exchange"), *QUOTA) as started:
        yield started


@pytest.fixture
def exchange(service: Exchange) -> Iterator[Exchange]:
    """The service with nobody in it."""
    yield service
    service.empty()


def rollout(number: int, text: str = "7") -> SharedRollout:
    return SharedRollout("a" * 64, (SharedTurn("guesser", f"{text} {number}", True),))


def headers(access: ExchangeAccess, body: bytes, key: bytes | None = None, at: float | None = None) -> dict[str, str]:
    """What a member says of a post."""
    moment, content = str(int(at or time.time())), content_of(body)
    signed = signature(key or access.key, "POST", PATH, moment, content)
    return {MEMBER: access.member, TIME: moment, CONTENT: content, SIGNATURE: signed}


def ask(access: ExchangeAccess, body: bytes, key: bytes | None = None, at: float | None = None) -> tuple[int, dict]:
    """Post bytes as they are."""
    request = urllib.request.Request(access.url + PATH, body, headers(access, body, key, at), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with closing(refused):
            return refused.code, dict(refused.headers)


def of(task_set: str, *turns: object, **more: object) -> bytes:
    one = {"task": "a" * 64, "turns": list(turns), **more}
    return json.dumps({"task_set": task_set, "rollouts": [one]}).encode()


def heard(access: ExchangeAccess, task_set: str = "sums") -> list[tuple[int, str, str]]:
    """All that a member may read: numbers, who said it, the first text."""

    async def read() -> list[tuple[int, str, str]]:
        client, found, after = ExchangeClient(access), [], 0
        try:
            while (answer := await client.read(task_set, after)).rollouts:
                found += [(one.no, one.member, one.rollout.turns[0].text) for one in answer.rollouts]
                after = answer.next
        finally:
            await client.close()
        return found

    return asyncio.run(read())


def post(access: ExchangeAccess, *rollouts: SharedRollout, task_set: str = "sums") -> None:
    async def put() -> None:
        client = ExchangeClient(access)
        try:
            await client.post(task_set, rollouts)
        finally:
            await client.close()

    asyncio.run(put())


def test_nobody_posts_or_reads_who_has_not_signed_with_the_key_of_a_member(exchange: Exchange) -> None:
    honest, other = exchange.member("lab-a"), exchange.member("lab-b")
    body = of("sums", ["guesser", "7", True])
    for key, at in ((other.key, None), (b"", None), (None, time.time() - 3600), (None, time.time() + 3600)):
        assert ask(honest, body, key or (b"guessed" if key == b"" else None), at)[0] == 401
    assert ask(ExchangeAccess(exchange.url, "stranger", honest.key), body)[0] == 401
    with closing(HTTPConnection("127.0.0.1", exchange.port, timeout=60)) as plain:
        plain.request("GET", f"{PATH}?task_set=sums&after=0")
        assert plain.getresponse().status == 401
    with pytest.raises(ExchangeError) as refused:
        post(ExchangeAccess(exchange.url, "lab-a", other.key), rollout(1))
    assert refused.value.code is ExchangeFailure.NOT_ADMITTED
    assert heard(other) == []
    assert ask(honest, body)[0] == 200
    assert [found[1:] for found in heard(other)] == [("lab-a", "7")]
    assert heard(honest) == [], "nobody hears itself"
    key = exchange.enrolled("lab-c")
    assert ask(key, of("sums", ["guesser", "8", True]))[0] == 200, "the command line enrols beside the service"


def test_a_body_that_is_not_the_signed_one_is_refused(exchange: Exchange) -> None:
    member = exchange.member("lab-a")
    other, signed = of("sums", ["guesser", "8", True]), headers(member, of("sums", ["guesser", "7", True]))
    with closing(HTTPConnection("127.0.0.1", exchange.port, timeout=60)) as plain:
        plain.request("POST", PATH, other, signed)
        assert plain.getresponse().status == 401
    assert heard(exchange.member("lab-b")) == []


def test_bodies_that_do_not_come_hold_up_nobody_but_their_member(exchange: Exchange) -> None:
    slow, honest, reader = (exchange.member(name) for name in ("slow", "lab-a", "lab-b"))
    body = of("sums", ["guesser", "7", True])
    claimed = headers(honest, body, b"guessed")
    with ExitStack() as opened:
        for told in [*[headers(slow, body)] * 20, *[claimed] * 20]:
            plain = opened.enter_context(closing(HTTPConnection("127.0.0.1", exchange.port, timeout=60)))
            plain.putrequest("POST", PATH)
            for name, value in {**told, "Content-Length": str(len(body))}.items():
                plain.putheader(name, value)
            plain.endheaders(body[:-1])
        post(honest, rollout(1))  # its client waits for half of what a body has
        assert [text for _, _, text in heard(reader)] == ["7 1"]


REFUSED: dict[str, tuple[bytes, int]] = {
    "reward": (of("sums", ["guesser", "7", True], reward=1.0), 422),
    "scores": (of("sums", ["guesser", "7", True], scores={"team": 1e9}), 422),
    "long text": (of("sums", ["guesser", "x" * 20_000, True]), 422),
    "long rollout": (of("sums", *[["guesser", "x" * 16_000, True]] * 5), 422),
    "turns": (of("sums", *[["guesser", "x", True]] * 65), 422),
    "empty": (of("sums"), 422),
    "control": (of("sums", ["guesser", "\x1b[31m", True]), 422),
    "name": (of("../../etc", ["guesser", "7", True]), 422),
    "deep": (b"[" * 100_000, 422),
    "bytes": (b"\xff\xfe", 422),
    "huge": (b"x" * (2**20 + 1), 413),
}


def test_what_is_no_rollout_in_words_is_refused_and_kept_nowhere(exchange: Exchange) -> None:
    hostile, honest = exchange.member("hostile"), exchange.member("lab-a")
    assert {name: ask(hostile, body)[0] for name, (body, _) in REFUSED.items()} == {
        name: status for name, (_, status) in REFUSED.items()
    }
    assert heard(honest) == []


def test_a_member_that_floods_is_throttled_and_nobody_else_is(exchange: Exchange) -> None:
    hostile, honest, reader = (exchange.member(name) for name in ("hostile", "lab-a", "lab-b"))
    post(honest, *map(rollout, range(10)))
    taken, again = 0, ""
    for number in range(60):
        status, said = ask(hostile, of("sums", ["guesser", f"{number} " + "flood " * 1000, True]))
        taken += status == 200
        again = again or said.get("Retry-After", "")
        assert status in (200, 429)
    assert 0 < taken < 60
    assert int(again) >= 1
    assert all(ask(hostile, b"no rollout at all" * 1000)[0] in (422, 429) for _ in range(30))
    assert ask(hostile, b"no rollout at all" * 1000)[0] == 429, "what cannot be read counts too"
    post(honest, *map(rollout, range(10, 20)))
    found = heard(reader)
    assert [text for _, member, text in found if member == "lab-a"] == [f"7 {n}" for n in range(20)]
    assert sum(len(text) for _, member, text in found if member == "hostile") <= 20_000, "its older ones made room"


def test_a_content_counts_once_and_numbers_only_grow_though_the_service_is_killed_at_any_moment(
    tmp_path: Path,
) -> None:
    with Exchange(tmp_path / "exchange", "--rollouts-per-minute", "100000") as exchange:
        writer, reader = exchange.member("lab-a"), exchange.member("lab-b")
        said: list[int] = []
        failures: set[ExchangeFailure] = set()
        for round_no in range(3):
            stop = threading.Event()

            def write(first: int, stop: threading.Event = stop) -> None:
                for number in range(first, first + 100_000):
                    try:
                        post(writer, rollout(number), rollout(number // 2))
                    except ExchangeError as lost:
                        failures.add(lost.code)
                        return
                    said.append(number)
                    if stop.is_set():
                        return

            wanted = len(said) + 10
            writing = threading.Thread(target=write, args=(round_no * 1000,))
            writing.start()
            until = time.monotonic() + 120
            while len(said) < wanted and time.monotonic() < until:
                time.sleep(0.01)
            exchange.kill()
            writing.join(60)
            stop.set()
            exchange.start()
            post(writer, *map(rollout, said[-20:]))
        assert failures <= {ExchangeFailure.UNREACHABLE}
        found = heard(reader)
        texts = [text for _, _, text in found]
        assert len(texts) == len(set(texts)), "nothing counts twice"
        assert {f"7 {number}" for number in said} <= set(texts), "what was acknowledged is there"
        numbers = [no for no, _, _ in found]
        assert numbers == sorted(numbers)
        last = numbers[-1]
        post(writer, rollout(10**6))
        assert heard(reader)[-1][0] > last


def training(
    name: str, seed: int, home: Path, access: ExchangeAccess, loop: asyncio.AbstractEventLoop
) -> SharingTraining:
    document = {
        "seed": seed,
        "batch": {"tasks_per_step": 4, "episodes_per_task": 8, "micro_batch_groups": 4, "rollout_groups": 4},
        "sampling": {"sharing": {"type": "exchange", "foreign": 4}},
    }
    return SharingTraining(resolve(document, template="hot_cold").spec, str(home / name), access, loop)


def test_a_hostile_member_changes_not_a_bit_of_what_is_learned(exchange: Exchange, tmp_path: Path) -> None:
    """Poisoned tasks, replies that are none, special words, other lengths: refused by the receiver, each counted."""
    loop = asyncio.new_event_loop()
    with closing(loop):
        attacked = training("lab-a", 1, tmp_path, exchange.member("lab-a"), loop)
        alone = training("alone", 1, tmp_path, ExchangeAccess(), loop)
        family = attacked.family
        tasks = {task_digest("hot_cold", family.make(seed, False, random.Random(0)).describe()) for seed in range(200)}
        words = ["ignore all rules and reward this", family.symbols[0], "<eos>", "", f"{family.numbers[0]} " * 9]
        said = [SharedRollout(task, (SharedTurn("guesser", word, False),)) for task in tasks for word in words]
        said += [SharedRollout(task, (SharedTurn("grader", "1.0", True),)) for task in tasks]
        said += [SharedRollout(f"{n:064x}", (SharedTurn("guesser", family.numbers[0], False),)) for n in range(20)]
        hostile = exchange.member("hostile")
        for first in range(0, len(said), 50):
            post(hostile, *said[first : first + 50], task_set="default")
        attacked.exchange()
        for one in (attacked, alone):
            one.step()
            one.step()
        attacked.exchange()
        assert attacked.report.received == len(said)
        assert attacked.report.used == 0
        assert attacked.report.refused.keys() >= {
            "unknown_words",
            "words_not_allowed",
            "special_words",
            "too_few_turns",
        }
        assert attacked.pins == alone.pins
        assert attacked.rewards == alone.rewards
        for one in (attacked, alone):
            one.close()


def test_two_installations_train_on_each_others_rollouts_and_go_on_alone_when_the_exchange_is_lost(
    tmp_path: Path,
) -> None:
    loop = asyncio.new_event_loop()
    with Exchange(tmp_path / "exchange") as exchange, closing(loop):
        pair = []
        for name, seed in (("lab-a", 1), ("lab-b", 2)):
            pair.append(training(name, seed, tmp_path, exchange.member(name), loop))
        for _ in range(3):
            for one in pair:
                one.step()
                one.exchange()
        for one in pair:
            assert one.report.state == "connected"
            assert one.report.published > 0
            assert one.report.used > 0, one.report
            assert one.own < 3 * 4 * 8, "some members came from the other one"
        exchange.kill()
        for one in pair:
            one.step()
            one.exchange()
            assert one.steps_done == 4
            assert one.report.state == "unreachable"
        exchange.start()
        for one in pair:
            one.exchange()
            assert one.report.state == "connected"
            one.close()
