"""The brake on guessing passwords delays, counts in four ways, and keeps nobody out for ever."""

import threading
from ipaddress import ip_network

import pytest
import redis
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.test import Client

from flexmarl.controlplane.accounts import brake, hashing
from flexmarl.controlplane.accounts.brake import PasswordLimit, Try
from flexmarl.controlplane.common.problems import Busy
from flexmarl.controlplane.common.proxies import client_address, seen_through
from tests.support.controlplane import PASSWORD

NEAR = [ip_network("127.0.0.1"), ip_network("10.1.0.0/16"), ip_network("2001:db8::/32")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["10.0.0.1"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.4"], "198.51.100.4"),
        ("127.0.0.1", ["10.0.0.1", "198.51.100.4"], "198.51.100.4"),
        ("127.0.0.1", ["10.0.0.1", "198.51.100.4", "10.1.2.3"], "198.51.100.4"),
        ("127.0.0.1", ["10.1.9.9", "10.1.2.3"], "10.1.9.9"),
        ("127.0.0.1", ["198.51.100.4", "unknown", "10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["198.51.100.4:443"], "198.51.100.4"),
        ("::ffff:127.0.0.1", ["[2001:db9::7]:443"], "2001:db9::7"),
        ("2001:db8::1", ["::ffff:198.51.100.4"], "198.51.100.4"),
        ("", ["198.51.100.4"], ""),
    ],
)
def test_the_rightmost_address_that_is_not_trusted_calls(peer, forwarded, address) -> None:
    assert client_address(peer, forwarded, NEAR) == address


def test_forwarded_headers_never_go_further_in() -> None:
    scope = {
        "type": "websocket",
        "scheme": "ws",
        "client": ("127.0.0.1", 4000),
        "headers": [(b"host", b"web"), (b"x-forwarded-for", b"198.51.100.4"), (b"x-forwarded-proto", b"https"),
                    (b"x-forwarded-host", b"rl.example.org"), (b"accept", b"*/*")],
    }  # fmt: skip
    seen = seen_through(scope, NEAR)
    assert (seen["client"], seen["scheme"]) == (("198.51.100.4", 0), "wss")
    assert seen["headers"] == [(b"accept", b"*/*"), (b"host", b"rl.example.org")]
    plain = seen_through(scope, [])
    assert (plain["client"], plain["scheme"]) == (("127.0.0.1", 4000), "ws")
    assert plain["headers"] == [(b"host", b"web"), (b"accept", b"*/*")]


@pytest.fixture
def at(monkeypatch):
    """Stop the clock of the brake at the begin of a window; returns a function that sets it on."""
    now = [1_800_000_000.0]
    monkeypatch.setattr(brake.time, "time", lambda: now[0])

    def on(seconds: float) -> None:
        now[0] += seconds

    return on


class AwayCache:
    """A cache whose server does not answer."""

    def __getattr__(self, name: str) -> None:
        raise redis.ConnectionError("away")


def test_a_process_counts_for_itself_while_the_cache_is_away(at, monkeypatch) -> None:
    monkeypatch.setattr(brake, "cache", AwayCache())
    attempt = Try("ada", "203.0.113.9")
    assert [brake.begin(attempt) for _ in range(brake.PAIR.most)] == [0] * brake.PAIR.most
    assert brake.begin(attempt) > 0
    brake.forgive(attempt)
    assert brake.begin(attempt) == 0, "one of them was right"
    assert brake.begin(Try("eve", "198.51.100.4")) == 0


FROM_ADDRESS = (brake.ADDRESS, lambda n: Try(f"name{n}", "203.0.113.9"), Try("other", "203.0.113.9"))
FROM_NETWORK = (brake.ADDRESS, lambda n: Try(f"name{n}", f"2001:db8::{n:x}"), Try("other", "2001:db8::ffff"))
OF_NAME = (brake.NAME, lambda n: Try("ada", f"203.0.{n}.9"), Try("ada", "198.51.100.4"))
OF_ALL = (brake.EVERYBODY, lambda n: Try(f"name{n}", f"203.0.{n}.9"), Try("new", "198.51.100.4"))


@pytest.mark.parametrize(("limit", "nth", "another"), [FROM_ADDRESS, FROM_NETWORK, OF_NAME, OF_ALL])
def test_tries_are_counted_beyond_one_pair(at, limit: PasswordLimit, nth, another) -> None:
    assert [brake.begin(nth(n)) for n in range(limit.most)] == [0] * limit.most
    wait_s = brake.begin(another)
    assert 0 < wait_s <= limit.window_s + 1
    known = Try(another.name, another.address, device="a browser of hers")
    assert brake.begin(known) == 0, "where she signed in before, strangers do not count"
    at(wait_s)
    assert brake.begin(another) == 0, "a delay, not a lock"


def test_tries_that_are_not_looked_at_count_nowhere(at) -> None:
    for n in range(brake.EVERYBODY.most):
        brake.begin(Try(f"name{n}", f"203.0.{n}.9"))
    ada = Try("ada", "198.51.100.4")
    assert all(brake.begin(ada) for _ in range(3 * brake.PAIR.most))
    at(brake.EVERYBODY.window_s + 1)
    assert brake.begin(ada) == 0


def test_parallel_tries_do_not_pass_together(at) -> None:
    line, waits = threading.Barrier(40), []

    def knock() -> None:
        line.wait()
        waits.append(brake.begin(Try("ada", "203.0.113.9")))

    threads = [threading.Thread(target=knock) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert waits.count(0) == brake.PAIR.most


@pytest.mark.django_db
def test_the_page_says_when_to_come_back(person, at) -> None:
    person("editor", "edith")
    mine, body = Client(), {"username": "edith", "password": PASSWORD}
    assert mine.post("/sign-in", body).status_code == 302
    mine.post("/sign-out")
    for _ in range(brake.PAIR.most):
        assert Client().post("/sign-in", {**body, "password": "wrong"}).status_code == 200
    answer = Client().post("/sign-in", body)
    assert (answer.status_code, int(answer["Retry-After"]) > 0) == (429, True)
    assert "Try again in" in answer.content.decode()
    assert mine.post("/sign-in", body).status_code == 302, "the browser in which she signed in before"


@pytest.mark.django_db
def test_a_device_cookie_is_of_one_name_and_cannot_be_made_up(person, at) -> None:
    person("editor", "edith"), person("editor", "otto")
    mine, body = Client(), {"username": "edith", "password": PASSWORD}
    mine.post("/sign-in", body)
    forged = mine.cookies["flexmarl_device"].value.replace("edith", "otto")
    for _ in range(brake.PAIR.most):
        Client().post("/sign-in", {"username": "otto", "password": "wrong"})
    mine.post("/sign-out")
    assert mine.post("/sign-in", {**body, "username": "otto"}).status_code == 429
    mine.cookies["flexmarl_device"] = forged
    assert mine.post("/sign-in", {**body, "username": "otto"}).status_code == 429


def test_hashes_are_made_a_few_at_a_time() -> None:
    gate, seen = threading.Event(), []

    def slow() -> str:
        seen.append(threading.current_thread().name)
        gate.wait(60)
        return ""

    threads = [threading.Thread(target=hashing.bounded, args=(slow,)) for _ in range(hashing.MOST_AT_ONCE)]
    for thread in threads:
        thread.start()
    try:
        while hashing._places._value or len(seen) < hashing.THREADS:
            threading.Event().wait(0.01)
        with pytest.raises(Busy):
            hashing.bounded(lambda: "")
        assert len(seen) == hashing.THREADS
    finally:
        gate.set()
        for thread in threads:
            thread.join()
    assert hashing.bounded(lambda: "free again") == "free again"


def test_hashes_are_those_of_django() -> None:
    ours, theirs = hashing.BoundedPBKDF2(), PBKDF2PasswordHasher()
    assert ours.encode("secret", "salt", 1000) == theirs.encode("secret", "salt", 1000)
    assert ours.verify("secret", theirs.encode("secret", "salt", 1000))
