"""The collector is left as it was found, however a simulation ends."""

import gc
from collections.abc import Iterator

import pytest

from flexmarl.controlplane.common.collecting import YOUNG, collected_seldom


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Begin as a process that has frozen nothing; tests freeze what they have loaded."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_the_collector_is_as_before() -> None:
    before = gc.get_threshold()

    def broken() -> None:
        with collected_seldom():
            assert gc.get_threshold() == (YOUNG, *before[1:])
            assert gc.get_freeze_count() > 1000
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_what_was_frozen_before_stays_so() -> None:
    gc.freeze()
    with collected_seldom():
        pass
    assert gc.get_freeze_count() > 1000
