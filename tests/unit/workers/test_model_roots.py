"""Folders of models are read below allowed roots alone, without following links, and never wait for a pipe."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save_file

from flexmarl.contracts.folder_roots import NOT_ALLOWED, SETTING
from flexmarl.contracts.model_sizes import FACTORY_SIZES
from flexmarl.contracts.specification.team import FactoryModel, FolderModel, Lora, PolicySpec
from flexmarl.store.data.model_roots import FolderNotAllowed, FolderUnreadable, ModelRoots, read_roots
from workers.errors import SettingsError
from workers.models import UnsupportedModel, architecture_of, opening, tokenizer_of
from workers.models.adapter import WrongAdapterError
from workers.models.folders import copy_files, read_adapter
from workers.models.inspecting import inspect
from workers.models.opening import ModelFolder, allow
from workers.models.tokenizer import SPECIAL_WORDS, tokenizer_json
from workers.models.weights import initial_weights, model_config, weight_shapes
from workers.rollout.engines.tokenizers import Tokenizers
from workers.rollout.engines.wire import LoadRequest
from workers.settings import load

WORDS = 16
READ_S = 2.0
"""Nothing that is refused may take longer: a pipe that is waited for takes for ever."""


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    source = FactoryModel()
    (folder / "config.json").write_text(json.dumps(model_config(source, WORDS)))
    (folder / "tokenizer.json").write_bytes(tokenizer_json((*SPECIAL_WORDS, *(f"w{n}" for n in range(WORDS - 3)))))
    save_file(initial_weights(source, WORDS, 1), folder / "model.safetensors")
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An allowed root with a model in it, and somebody else's model outside."""
    root, home = tmp_path / "models", tmp_path / "home"
    write_model(root / "mine")
    write_model(home / "checkpoints/run-1/step-5/speaker")
    allow(ModelRoots((str(root),), (str(home),)))
    yield root, home
    allow(ModelRoots())


def read_all(path: object) -> None:
    source = FolderModel(path=str(path))
    inspect(source.path)
    architecture_of(source)
    tokenizer_of(source, ())
    weight_shapes(source, 0)
    initial_weights(source, 0, 0)


def test_a_folder_below_a_root_is_read_whole(places) -> None:
    root, _ = places
    read_all(root / "mine")
    shapes = weight_shapes(FolderModel(path=f"{root}//mine/"), 0)
    assert shapes["model.embed_tokens.weight"] == (WORDS, FACTORY_SIZES["S"].hidden)


LOAD = LoadRequest("p", 0, "d", tokenizer="0" * 64)
READERS = {
    "check": inspect,
    "architecture": lambda path: architecture_of(FolderModel(path=path)),
    "tokenizer": lambda path: tokenizer_of(FolderModel(path=path), ()),
    "shapes": lambda path: weight_shapes(FolderModel(path=path), 0),
    "weights": lambda path: initial_weights(FolderModel(path=path), 0, 0),
    "config": lambda path: model_config(FolderModel(path=path), 0),
    "adapter": lambda path: read_adapter(path, {}, Lora()),
    "copies": lambda path: copy_files(path, Path("/nowhere"), "tokenizer.json"),
    "engine": lambda path: Tokenizers({"p": PolicySpec(model=FolderModel(path=path))}).check(LOAD),
}


@pytest.mark.parametrize("reader", READERS)
def test_without_a_setting_no_reader_reads_any_folder(reader: str, places) -> None:
    root, _ = places
    allow(ModelRoots())
    with pytest.raises((UnsupportedModel, WrongAdapterError), match=f"No folder is allowed here.*{SETTING}"):
        READERS[reader](str(root / "mine"))


def test_outside_every_answer_is_the_same_whatever_lies_there(places, tmp_path: Path) -> None:
    root, home = places
    os.mkfifo(tmp_path / "pipe")
    outside = [
        str(home / "checkpoints/run-1/step-5/speaker"),
        str(home / "checkpoints/run-1/step-6/speaker"),
        str(home),
        str(tmp_path / "nowhere"),
        str(tmp_path / "pipe"),
        "/etc/passwd",
        "/proc/self/root",
        f"{root}/../home/checkpoints/run-1/step-5/speaker",
        f"{root}/mine/../../home",
        f"{root}-more/x",
        "mine",
        "./mine",
        "~/mine",
        f"{root}/mine\0",
        "",
    ]
    texts = set()
    for path in outside:
        with pytest.raises(UnsupportedModel) as refused:
            ModelFolder(path)
        texts.add(str(refused.value))
    assert len(texts) == 1, texts
    assert texts.pop().startswith(NOT_ALLOWED)


def test_a_link_leads_nowhere(places, tmp_path: Path) -> None:
    root, home = places
    theirs = home / "checkpoints/run-1/step-5/speaker"
    (root / "link").symlink_to(theirs)
    (root / "up").symlink_to(home)
    (root / "inner").symlink_to(root / "mine")
    for path in (root / "link", root / "up/checkpoints/run-1/step-5/speaker", root / "inner"):
        with pytest.raises(UnsupportedModel, match="links are not followed") as refused:
            read_all(path)
        assert str(tmp_path) not in str(refused.value).replace(str(root), "")
    other = write_model(root / "files")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        kept = (other / name).read_bytes()
        (other / name).unlink()
        (other / name).symlink_to(theirs / name)
        with pytest.raises(UnsupportedModel, match=f"{name} is a link"):
            read_all(other)
        (other / name).unlink()
        (other / name).write_bytes(kept)
    read_all(other)


def test_the_installation_s_own_data_is_closed_even_below_a_root(places, tmp_path: Path) -> None:
    _, home = places
    allow(ModelRoots((str(tmp_path),), (str(home),)))
    read_all(tmp_path / "models/mine")
    texts = set()
    for path in (home / "checkpoints/run-1/step-5/speaker", home / "nowhere", home, home / "checkpoints"):
        with pytest.raises(UnsupportedModel) as refused:
            read_all(path)
        texts.add(str(refused.value))
    assert len(texts) == 1
    allow(ModelRoots((str(home / "checkpoints"),), (str(home),)))
    with pytest.raises(UnsupportedModel, match="may not be used"):
        read_all(home / "checkpoints/run-1/step-5/speaker")


def test_a_root_may_be_a_link_of_the_operator(places, tmp_path: Path) -> None:
    root, _ = places
    (tmp_path / "alias").symlink_to(root)
    allow(ModelRoots((str(tmp_path / "alias"),)))
    read_all(tmp_path / "alias/mine")
    read_all(root / "mine")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_is_refused_at_once(name: str, places) -> None:
    root, _ = places
    folder = write_model(root / "pipes")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    began = time.monotonic()
    with pytest.raises(UnsupportedModel, match=f"{name} is not a regular file"):
        read_all(folder)
    assert time.monotonic() - began < READ_S


def test_a_device_and_a_folder_are_no_files(places) -> None:
    root, _ = places
    folder = write_model(root / "odd")
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(UnsupportedModel, match=r"config\.json is not a regular file"):
        architecture_of(FolderModel(path=str(folder)))


def test_a_huge_or_bottomless_configuration_is_refused(places) -> None:
    root, _ = places
    folder = write_model(root / "huge")
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no disk, and would take all memory
    began = time.monotonic()
    with pytest.raises(UnsupportedModel, match=r"config\.json is longer than"):
        architecture_of(FolderModel(path=str(folder)))
    (folder / "config.json").write_text('{"rope_scaling": ' + "[" * 200_000)
    with pytest.raises(UnsupportedModel, match=r"config\.json is not JSON"):
        architecture_of(FolderModel(path=str(folder)))
    assert time.monotonic() - began < READ_S


def test_reading_ends_at_its_deadline(places, monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = places
    monkeypatch.setattr(opening, "LOAD_S", -1.0)
    with pytest.raises(UnsupportedModel, match="could not be read in time"):
        initial_weights(FolderModel(path=str(root / "mine")), 0, 0)


def test_a_folder_that_is_exchanged_for_a_link_after_it_was_opened_stays_what_it_was(places) -> None:
    root, home = places
    own = (root / "mine" / "tokenizer.json").read_bytes()
    with ModelFolder(str(root / "mine")) as folder:
        (root / "mine").rename(root / "away")
        (root / "mine").symlink_to(home / "checkpoints/run-1/step-5/speaker")
        assert folder.read("tokenizer.json") == own
        (home / "checkpoints/run-1/step-5/speaker/tokenizer.json").write_text("theirs")
        assert folder.read("tokenizer.json") == own


def test_the_setting_names_absolute_folders() -> None:
    assert read_roots("") == ()
    assert read_roots(" /models , /data/hf ") == ("/models", "/data/hf")
    for wrong in ("models", "/", "/models/../etc", "/models,x"):
        with pytest.raises(ValueError, match=SETTING):
            read_roots(wrong)
    given = {"DATABASE_URL": "postgresql://x/x", "REDIS_URL": "redis://x", "FLEXMARL_CLUSTER_KEY": "x"}
    with pytest.raises(SettingsError, match=SETTING):
        load({**given, "FLEXMARL_HOME": "/tmp", SETTING: "here"})


def test_a_missing_root_and_a_missing_folder_below_one_are_told_without_a_path(places, tmp_path: Path) -> None:
    root, _ = places
    allowed = ModelRoots((str(root), str(tmp_path / "unmounted")))
    for path in (root / "nowhere", tmp_path / "unmounted/x", root / "mine/config.json"):
        with pytest.raises(FolderUnreadable) as refused:
            allowed.open(str(path))
        assert str(tmp_path) not in str(refused.value)
    with pytest.raises(FolderNotAllowed):
        allowed.open(str(tmp_path / "elsewhere"))
