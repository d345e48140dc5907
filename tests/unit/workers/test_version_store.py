"""What a policy's versions leave on disk: old weights go by count and size, the newest stay however large they are."""

from pathlib import Path

import pytest
import torch

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
