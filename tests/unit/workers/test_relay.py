"""Receivers of one content pass its chunks on to each other: the origin sends each once, and whoever fails is passed
by."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from workers.transfer import LocalTier, relay
from workers.transfer.base import Coming, CorruptState, Source, StateError, StateMissing
from workers.transfer.contents import encode
from workers.transfer.relay import Relayed

CHUNKS = 24


class Beside(Source):
    """What lies in a folder of this machine, with a count of the chunks that were asked for."""

    def __init__(self, tier: LocalTier, name: str = "", lacks: type[StateMissing] = Coming) -> None:
        """`lacks`: what is raised for what is not here."""
        self.name = name
        self.lacks = lacks
        self.tier = tier
        self.given: Counter[str] = Counter()
        self._lock = threading.Lock()

    def manifest(self, digest: str) -> bytes:
        return self.tier.manifest(digest)

    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        try:
            room[:] = self.tier.chunk(chunk).read_bytes()
        except OSError:
            raise self.lacks(digest, "not here") from None
        with self._lock:
            self.given[chunk] += 1

    def delta(self, digest: str, bases: Sequence[str], most: float) -> None:
        return None


class Away(Beside):
    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        raise StateError(digest, "cannot be reached")


class Other(Beside):
    """Gives bytes that are not the chunk's."""

    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        room[:] = bytes(len(room))


@pytest.fixture
def origin(tmp_path: Path) -> Beside:
    return Beside(LocalTier(tmp_path / "origin", "maker"), "origin")


def put(origin: Beside) -> str:
    weights = {"w": torch.rand(CHUNKS * 2**14, generator=torch.Generator().manual_seed(7))}
    return origin.tier.store(encode(weights, None, 2**16)).digest


def test_the_origin_sends_each_chunk_once_however_many_receive(origin, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(relay, "LEAST_WAIT_S", 60.0)
    digest = put(origin)
    names = [f"host-{number}:1" for number in range(4)]
    tiers = {name: LocalTier(tmp_path / name, "receiver") for name in names}
    relays = {own: Relayed(origin, own, {name: Beside(tiers[name]) for name in names if name != own}) for own in names}
    with ThreadPoolExecutor(len(names)) as pool:
        for one in [pool.submit(tiers[name].bring, digest, relays[name]) for name in names]:
            one.result()
    chunks = origin.tier.description(digest).chunks
    assert len(chunks) == CHUNKS
    assert origin.given == dict.fromkeys(chunks, 1)
    assert sum(one.passed_on for one in relays.values()) == (len(names) - 1) * CHUNKS
    there = origin.tier.get(digest)
    assert all(torch.equal(tier.get(digest)["w"], there["w"]) for tier in tiers.values())


@pytest.mark.parametrize(
    ("kind", "lacks", "wait_s"),
    [(Away, Coming, 60.0), (Other, Coming, 60.0), (Beside, StateMissing, 60.0), (Beside, Coming, 0.0)],
)
def test_a_receiver_that_is_away_or_gives_other_bytes_or_brings_them_not_or_too_late_is_passed_by(
    kind: type[Beside], lacks: type[StateMissing], wait_s: float, origin, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(relay, "LEAST_WAIT_S", wait_s)
    digest, here = put(origin), LocalTier(tmp_path / "here", "receiver")
    failing = kind(LocalTier(tmp_path / "empty", "nobody"), lacks=lacks)
    relayed = Relayed(origin, "here:1", {"there:1": failing})
    assert here.bring(digest, relayed).bytes == origin.tier.locate(digest).bytes
    assert torch.equal(here.get(digest)["w"], origin.tier.get(digest)["w"])
    assert relayed.passed_on == 0
    assert set(origin.given) == set(origin.tier.description(digest).chunks)


def test_an_origin_that_gives_other_bytes_is_found_out(origin, tmp_path) -> None:
    digest, here = put(origin), LocalTier(tmp_path / "here", "receiver")
    with pytest.raises(CorruptState):
        here.bring(digest, Relayed(Other(origin.tier), "here:1", {"there:1": Away(origin.tier)}))


def test_each_brings_its_own_first_and_then_those_of_the_next_receiver(origin) -> None:
    chunks = [f"{number:064x}" for number in range(7)]
    names = ["a:1", "b:1", "c:1"]
    relays = {own: Relayed(origin, own, {name: origin for name in names if name != own}) for own in names}
    assert {own: list(one.order(chunks)) for own, one in relays.items()} == {
        "a:1": [0, 3, 6, 1, 4, 2, 5],
        "b:1": [1, 4, 2, 5, 0, 3, 6],
        "c:1": [2, 5, 0, 3, 6, 1, 4],
    }


def test_a_small_content_comes_from_the_origin_alone(origin) -> None:
    relayed = Relayed(origin, "a:1", {f"{name}:1": origin for name in "bcd"})
    assert relayed.order(["0" * 64, "1" * 64, "2" * 64]) == [0, 1, 2]
    assert not relayed._receivers
