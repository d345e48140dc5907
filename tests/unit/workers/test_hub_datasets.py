"""Datasets of a hub: what a commit has is listed, and what is fetched is what the hub said, or refused by name."""

import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from flexmarl.contracts.hub_datasets import MANIFEST, DatasetOrigin, HubDataset, HubListing
from tests.support.hub_datasets import TEST, TRAIN, grade_school, write
from tests.support.hub_server import COMMIT, HubServer, hub_server
from workers.datasets.hub import chosen, fetch, listed, look
from workers.errors import ImportRefused

MOST = 2**20


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    at = tmp_path / "repositories"
    names = {
        "us/school": grade_school(at / "school"),
        "us/script": write(at / "script", {"script.py": "raise SystemExit", "data.zip": "PK"}),
        "us/plain": write(at / "plain", {"train.csv": "a,b\n1,2\n", "test.csv": "a,b\n3,4\n"}),
    }
    names |= dict.fromkeys(("us/private", "us/gated"), names["us/school"])
    large = frozenset({TEST})
    limits = {"private": frozenset({"us/private"}), "gated": frozenset({"us/gated"}), "large": large}
    with hub_server(HubServer(names, **limits)) as server:
        yield server


def listing(hub: HubServer, folder: Path, token: str = "", **source: object) -> HubListing:
    return listed(look(HubDataset.model_validate({"repository": "us/school", **source}), hub.address, token, folder))


def fetched(
    hub: HubServer, folder: Path, most: int = MOST, token: str = "", **more: object
) -> tuple[Path, DatasetOrigin]:
    asked = {"repository": "us/school", "configuration": "main", "splits": ("train", "test"), **more}
    repository = look(HubDataset.model_validate(asked), hub.address, token, folder)
    return fetch(repository, chosen(repository, most), folder, lambda *_: None)


def refusal(hub: HubServer, folder: Path, **more: object) -> tuple[str, str]:
    with pytest.raises(ImportRefused) as refused:
        fetched(hub, folder, **more)
    return refused.value.code, str(refused.value)


def test_the_configurations_of_a_card_are_listed_with_what_is_left_out(hub: HubServer, tmp_path: Path) -> None:
    found = listing(hub, tmp_path)
    assert (found.commit, found.licence) == (COMMIT, "mit")
    main, pictures = found.configurations
    assert [(one.name, one.files) for one in main.splits] == [("train", 2), ("test", 1)]
    assert main.splits[1].bytes == (hub.repositories["us/school"] / TEST).stat().st_size
    assert main.refused == ""
    assert "pictures/one.png is none of" in pictures.refused
    assert [one.path for one in found.left_out] == ["school.py"]
    assert "no code of a repository runs here" in found.left_out[0].why
    assert hub.fetched == ["README.md"]


def test_the_shards_of_splits_are_one_archive_that_says_where_it_is_from(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    archive, origin = fetched(hub, tmp_path / "first")
    assert (origin.repository, origin.commit, origin.configuration, origin.licence) == (
        "us/school",
        COMMIT,
        "main",
        "mit",
    )
    assert [one.split for one in origin.files] == ["train", "train", "test"]
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        assert names == [MANIFEST, *(one.path for one in origin.files)]
        assert DatasetOrigin.model_validate_json(packed.extractfile(MANIFEST).read()) == origin
        for one in origin.files:
            body = packed.extractfile(one.path).read()
            assert body == (hub.repositories["us/school"] / one.path).read_bytes()
            assert (one.bytes, one.digest) == (len(body), sha256(body).hexdigest())
    (tmp_path / "second").mkdir()
    assert fetched(hub, tmp_path / "second")[0].read_bytes() == archive.read_bytes()
    assert "school.py" not in hub.fetched
    assert hub.pinned, "a branch may move while its files are fetched"


@pytest.mark.parametrize("name", ["us/private", "us/gated"])
def test_a_token_opens_what_is_not_for_everybody(name: str, hub: HubServer, tmp_path: Path) -> None:
    code, text = refusal(hub, tmp_path, repository=name)
    assert code == {"us/private": "hub_not_found", "us/gated": "hub_gated"}[name]
    assert "name" in text
    assert "secret" in text
    assert fetched(hub, tmp_path, token=hub.token, repository=name)[1].commit == COMMIT


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"repository": "us/none"}, "hub_not_found", "the hub shows no dataset us/none"),
        ({"revision": "v9"}, "hub_no_revision", "has no revision v9"),
        ({"repository": "us/script"}, "no_data", "script.py: it is a program"),
        ({"repository": "us/script"}, "no_data", "try revision refs/convert/parquet"),
        ({"configuration": "other"}, "no_configuration", "main, pictures"),
        ({"splits": ("train", "dev")}, "no_split", "no split dev: train, test"),
        ({"configuration": "pictures", "splits": ("train",)}, "unreadable_files", "pictures/one.png"),
        ({"most": 100}, "too_large", "FLEXMARL_MOST_DATASET_MIB"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name_and_not_fetched(
    asked: dict[str, object], code: str, said: str, hub: HubServer, tmp_path: Path
) -> None:
    found, text = refusal(hub, tmp_path, **asked)
    assert (found, said in text) == (code, True), text
    assert set(hub.fetched) <= {"README.md"}


@pytest.mark.parametrize("file", [TRAIN[0], TEST])
def test_bytes_that_are_not_what_the_hub_said_are_refused(file: str, hub: HubServer, tmp_path: Path) -> None:
    hub.lies = frozenset({file})
    code, text = refusal(hub, tmp_path)
    assert (code, file in text) == ("hub_mismatch", True), text


def test_a_file_that_ends_half_way_is_told(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.cut = TEST
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the tries of the library
    assert refusal(hub, tmp_path)[0] == "hub_unreachable"


def test_a_hub_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    code, text = refusal(HubServer({}, address="http://127.0.0.1:9"), tmp_path)
    assert (code, "the hub gave no us/school at main" in text) == ("hub_unreachable", True), text


def test_what_the_disk_cannot_hold_is_not_fetched(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    code, text = refusal(hub, tmp_path)
    assert (code, "twice while they are fetched" in text) == ("state_full", True), text
    assert hub.fetched == ["README.md"]


def test_a_full_disk_is_told_by_its_name(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workers.datasets.hub.tarfile.open", full)
    assert refusal(hub, tmp_path)[0] == "state_full"
