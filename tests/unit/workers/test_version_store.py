"""What a policy's versions leave on disk: old weights go by count and size, the newest stay however large they are."""

import os
import time
from pathlib import Path

import pytest
import torch

from flexmarl.host.backups import HOLD, HOLD_S, removals_held
from workers.training import version_store
from workers.training.version_store import VersionStore
from workers.transfer.base import StateMissing


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VersionStore:
    """A store of which any weights are more than it keeps of older ones."""
    monkeypatch.setattr(version_store, "WEIGHTS_BYTES", 1)
    return VersionStore(str(tmp_path), 1, "judge")


def test_a_frozen_policy_keeps_weights_larger_than_what_older_ones_may_take(store: VersionStore) -> None:
    digest = store.put_weights({"w": torch.ones(8)})
    store.settle()
    assert torch.equal(store.weights(digest)["w"], torch.ones(8))


def test_older_weights_go_when_newer_ones_come(store: VersionStore) -> None:
    old, new = (store.put_weights({"w": torch.full((8,), value)}) for value in (1.0, 2.0))
    store.settle()
    assert torch.equal(store.weights(new)["w"], torch.full((8,), 2.0))
    with pytest.raises(StateMissing):
        store.weights(old)


def test_nothing_goes_while_a_backup_is_made_and_all_of_it_afterwards(store: VersionStore, tmp_path: Path) -> None:
    hold = tmp_path / HOLD
    hold.touch()
    old, newer = (store.put_weights({"w": torch.full((8,), value)}) for value in (1.0, 2.0))
    store.settle()
    assert [store.weights(digest)["w"][0] for digest in (old, newer)] == [1.0, 2.0]
    hold.unlink()
    store.put_weights({"w": torch.full((8,), 3.0)})
    store.settle()
    for digest in (old, newer):
        with pytest.raises(StateMissing):
            store.weights(digest)


def test_a_hold_that_was_forgotten_ends(tmp_path: Path) -> None:
    assert not removals_held(tmp_path)
    (tmp_path / HOLD).touch()
    assert removals_held(tmp_path)
    forgotten = time.time() - HOLD_S - 1
    os.utime(tmp_path / HOLD, (forgotten, forgotten))
    assert not removals_held(tmp_path)
