"""The collector is left as it was found, however a simulation ends."""

import gc

import pytest

from flexmarl.controlplane.common.collecting import YOUNG, collected_seldom


def test_the_collector_is_as_before():
    before = gc.get_threshold()

    def broken() -> None:
        with collected_seldom():
            assert gc.get_threshold() == (YOUNG, *before[1:])
            assert gc.get_freeze_count() > 1000
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
