"""Models of a hub: a commit's files are fetched without its pickles, and each failure has a name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flexmarl.contracts.hub_models import HubModel
from tests.support.hub_server import COMMIT, HubServer, hub_server
from tests.unit.workers.test_inspecting import write_chat_model
from workers.models.errors import ModelRefused
from workers.models.hub import fetch


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    model = write_chat_model(tmp_path / "repositories" / "mine")
    (model / "pytorch_model.bin").write_bytes(b"runs code")
    pickled = tmp_path / "repositories" / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"runs code")
    empty = tmp_path / "repositories" / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    names = {"us/mine": model, "us/private": model, "us/gated": model, "us/pickled": pickled, "us/empty": empty}
    with hub_server(HubServer(names, private=frozenset({"us/private"}), gated=frozenset({"us/gated"}))) as server:
        yield server


def refusal(hub: HubServer, folder: Path, memory: int = 0, **source: str) -> tuple[str, str]:
    with pytest.raises(ModelRefused) as refused:
        fetch(HubModel(**{"repository": "us/mine", **source}), hub.address, "", folder, memory)
    return refused.value.code, str(refused.value)


def test_the_files_of_a_commit_are_fetched_and_pickles_are_not(hub: HubServer, tmp_path: Path) -> None:
    assert fetch(HubModel(repository="us/mine"), hub.address, "", tmp_path, 0) == COMMIT
    found = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert "pytorch_model.bin" not in found
    expected = {p.name: p.read_bytes() for p in hub.repositories["us/mine"].iterdir() if p.suffix != ".bin"}
    assert found == expected


@pytest.mark.parametrize("name", ["us/private", "us/gated"])
def test_a_token_opens_what_is_not_for_everybody(name: str, hub: HubServer, tmp_path: Path) -> None:
    code, text = refusal(hub, tmp_path, repository=name)
    assert code == {"us/private": "hub_not_found", "us/gated": "hub_gated"}[name]
    assert "secret" in text
    assert fetch(HubModel(repository=name), hub.address, hub.token, tmp_path, 0) == COMMIT


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ({"repository": "us/none"}, "hub_not_found", "us/none"),
        ({"revision": "v9"}, "hub_no_revision", "has no revision v9"),
        ({"repository": "us/pickled"}, "pickle", "choose one with *.safetensors"),
        ({"repository": "us/empty"}, "no_weights", "has no *.safetensors"),
    ],
)
def test_what_is_no_model_is_refused_by_name(
    source: dict[str, str], code: str, said: str, hub: HubServer, tmp_path: Path
) -> None:
    found, text = refusal(hub, tmp_path, **source)
    assert (found, said in text) == (code, True), text
    assert hub.fetched == []


def test_what_no_host_can_hold_is_not_fetched(hub: HubServer, tmp_path: Path) -> None:
    code, text = refusal(hub, tmp_path, memory=1000)
    assert (code, "the largest host has 0.00 GB" in text) == ("too_large", True)
    assert hub.fetched == []


def test_a_hub_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    code, text = refusal(HubServer({}, address="http://127.0.0.1:9"), tmp_path)
    assert (code, "the hub gave no us/mine at main" in text) == ("hub_unreachable", True), text


def test_a_file_that_ends_half_way_is_told(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.cut = "model.safetensors"
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the tries of the library
    code, _ = refusal(hub, tmp_path)
    assert code == "hub_unreachable"


def test_what_the_disk_cannot_hold_twice_is_not_fetched(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 200_000}))
    (folder := tmp_path / "fetched").mkdir()
    code, text = refusal(hub, folder)
    assert (code, "twice while they are imported" in text) == ("state_full", True), text
    assert hub.fetched == []
