"""What tests of workers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flexmarl.store.data.model_roots import ModelRoots
from workers.models.opening import allow


@pytest.fixture
def models_in_tmp(tmp_path: Path) -> Iterator[None]:
    """Let this process read models below the test's folder."""
    allow(ModelRoots((str(tmp_path),)))
    yield
    allow(ModelRoots())
