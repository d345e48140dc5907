"""When providers are asked: at once after a change and at a hint that a request waits, otherwise after a pause."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flexmarl.controlplane.runs.providing import working


class Scripted:
    """Rounds that say in turn whether they changed something, and the hints between them."""

    def __init__(self, *changes: bool, hinted: bool = True) -> None:
        self.done: list[str] = []
        self.stopping = threading.Event()
        self._changes, self._hinted = list(changes), hinted

    def owns(self) -> bool:
        return True

    def round(self) -> bool:
        self.done.append("round")
        changed = self._changes.pop(0)
        if not self._changes:
            self.stopping.set()
        return changed

    def notifies(self, *, timeout: float, stop_after: int) -> Iterator[Any]:
        self.done.append("rest")
        if self._hinted:
            yield SimpleNamespace(payload="")

    def play(self) -> list[str]:
        working._provide(self, self, self.stopping, lambda: None)  # type: ignore[arg-type]
        return self.done


@pytest.fixture(autouse=True)
def unpaused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "ROUND_S", 0.2)


def test_what_was_asked_for_is_submitted_without_a_pause() -> None:
    assert Scripted(True, False, False, False).play() == ["round", "round", "rest", "round", "rest", "round"]


def test_what_changes_at_every_round_gets_its_pauses() -> None:
    assert Scripted(*[True] * 5).play() == ["round", "round", "rest", "round", "round", "rest", "round"]


def test_without_a_hint_the_next_round_comes_after_the_pause() -> None:
    done = Scripted(False, False, hinted=False).play()
    assert (done[0], done[-1]) == ("round", "round")
    assert set(done[1:-1]) == {"rest"}, "it listens until the pause is over"
