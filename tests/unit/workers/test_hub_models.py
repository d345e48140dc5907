"""Models of a hub: fetched whole, gone on with after a break, and refused by name."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flexmarl.contracts.model_imports import HubModel
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.hub_server import COMMIT, Hub, hub_server
from tests.unit.workers.test_inspecting import write_chat_model
from workers.models.errors import ModelRefused
from workers.models.importing import Elsewhere, import_model
from workers.models.opening import allow

NAME = "ada/tiny"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, str, Path]]:
    folder = write_chat_model(tmp_path_factory.mktemp("hub") / "tiny")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "onnx").mkdir()
    (folder / "onnx/model.json").write_text("{}")
    with hub_server() as (hub, address):
        yield hub, address, folder


@pytest.fixture
def hub(served: tuple[Hub, str, Path]) -> Hub:
    """The hub as it is when nothing is wrong with it."""
    fresh = Hub()
    vars(served[0]).update({**vars(fresh), "repositories": {NAME: served[2]}})
    return served[0]


@pytest.fixture
def run(served: tuple[Hub, str, Path], tmp_path: Path, capsys) -> Iterator[Callable[..., list[dict]]]:
    """Import a repository into a home; every line that the import says."""
    allow(ModelRoots(), str(tmp_path))

    def call(token: str = "", memory: int = 0, **source: str) -> list[dict]:
        wanted = HubModel(**{"repository": NAME, **source})
        import_model(str(tmp_path), wanted, Elsewhere(served[1], "", token, memory))
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    yield call
    allow(ModelRoots())


def test_a_repository_is_imported_at_its_commit_and_nothing_but_a_models_files_is_fetched(hub: Hub, run, tmp_path):
    *said, last = run()
    assert (last["facts"]["commit"], last["facts"]["architecture"]) == (COMMIT, "llama")
    shares = [line["now"] for line in said if line["now"].startswith("fetching")]
    assert (shares[0], shares[-1]) == ("fetching 0 %", "fetching 100 %")
    assert all(COMMIT in path for path, _, _ in hub.asked)
    assert not [path for path, _, _ in hub.asked if path.endswith(".bin") or "onnx" in path]
    assert list((tmp_path / "models").glob("fetched-*")) == [], "its content lies in the state plane"


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(hub: Hub, run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)
    hub.breaks = 1
    assert "digest" in run()[-1]
    ranges = [wanted for path, wanted, _ in hub.asked if path.endswith(".safetensors")]
    assert ranges[0] == ""
    assert int(ranges[1].removeprefix("bytes=").partition("-")[0]) > 0


def test_the_next_import_keeps_the_files_that_a_failed_one_fetched(hub: Hub, run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    hub.breaks = 10
    with pytest.raises(ModelRefused) as refused:
        run()
    assert refused.value.code == "hub_unreachable"
    hub.breaks, hub.asked = 0, []
    assert "digest" in run()[-1]
    assert not [path for path, _, _ in hub.asked if path.endswith("/config.json")], "what is whole is not fetched again"


def test_a_token_is_sent_to_a_hub_that_wants_one(hub: Hub, run):
    hub.token = "hf_right"
    assert "digest" in run(token="hf_right", secret="HUB_TOKEN")[-1]
    assert {sent for _, _, sent in hub.asked} == {"Bearer hf_right"}


@pytest.mark.parametrize(
    ("wrong", "asked", "code", "said"),
    [
        ({"token": "hf_right"}, {"token": "hf_wrong", "secret": "HUB_TOKEN"}, "hub_refused", "SECRET_HUB_TOKEN"),
        ({"token": "hf_right"}, {}, "hub_not_found", "name its secret"),
        ({"gated": True}, {}, "hub_gated", "accept its terms"),
        ({}, {"revision": "v9"}, "hub_no_revision", "no revision v9"),
        ({}, {"repository": "ada/none"}, "hub_not_found", "ada/none"),
        ({"status": 503}, {}, "hub_unreachable", "503"),
        ({"status": 429}, {}, "hub_unreachable", "later"),
        ({"sizes": {"model.safetensors": 10**9}}, {"memory": 10**8}, "too_large", "1.00 GB"),
        ({"sizes": {"model.safetensors": 2**60}}, {}, "state_full", "GB free"),
    ],
)  # fmt: skip
def test_what_the_hub_does_not_give_is_refused_by_name(hub: Hub, run, wrong, asked, code, said):
    vars(hub).update(wrong)
    with pytest.raises(ModelRefused) as refused:
        run(**asked)
    assert refused.value.code == code, refused.value
    assert said in str(refused.value)
    assert "hf_" not in str(refused.value)
    assert hub.asked == [], "no byte of a file was asked for"


@pytest.mark.parametrize(
    ("left", "code"),
    [
        (("config.json", "pytorch_model.bin"), "pickle"),
        (("config.json",), "no_weights"),
        (("model.safetensors",), "no_config"),
    ],
)
def test_a_repository_without_a_model_is_refused_before_anything_is_fetched(hub: Hub, run, tmp_path, left, code):
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{}")
    hub.repositories = {NAME: folder}
    with pytest.raises(ModelRefused) as refused:
        run()
    assert (refused.value.code, hub.asked) == (code, [])


def test_a_hub_that_is_away_is_told_from_a_fault(run, served, tmp_path):
    with pytest.raises(ModelRefused, match="FLEXMARL_HUB") as refused:
        import_model(str(tmp_path), HubModel(repository=NAME), Elsewhere("http://127.0.0.1:9"))
    assert refused.value.code == "hub_unreachable"
