"""Files of an upload come from the control plane whole, go on after a break, and are refused by name otherwise."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.uploaded_models import UploadModel
from tests.support.upload_server import UploadServer, upload_server
from tests.unit.workers.test_inspecting import write_chat_model
from workers.models import uploads
from workers.models.errors import ModelRefused
from workers.models.uploads import fetch_upload

WEIGHTS = "model.safetensors"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadServer]:
    monkeypatch.setattr(uploads, "PAUSE_S", 0.0)
    (tmp_path / "here").mkdir()
    with upload_server(UploadServer(write_chat_model(tmp_path / "sent"), "cluster")) as server:
        yield server


def fetch(
    control: UploadServer, folder: Path, memory: int = 0, address: str = "", **source: object
) -> dict[str, bytes]:
    wanted = UploadModel.model_validate({**control.source(), **source})
    fetch_upload(wanted, address or control.address, control.token, folder, memory)
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


def refusal(control: UploadServer, folder: Path, **more: Any) -> tuple[str, str]:
    with pytest.raises(ModelRefused) as refused:
        fetch(control, folder, **more)
    return refused.value.code, str(refused.value)


def test_files_come_whole_and_go_on_where_a_transfer_broke_off(control: UploadServer, tmp_path: Path) -> None:
    control.breaks = 2
    assert fetch(control, tmp_path / "here") == {path.name: path.read_bytes() for path in control.folder.iterdir()}
    size = (control.folder / WEIGHTS).stat().st_size
    assert control.offsets == [0, size // 2, size // 2 + (size - size // 2) // 2]


def test_a_later_attempt_goes_on_with_what_an_earlier_one_left(control: UploadServer, tmp_path: Path) -> None:
    left = (control.folder / WEIGHTS).read_bytes()[:100]
    (tmp_path / "here/model").mkdir()
    (tmp_path / "here/model" / WEIGHTS).write_bytes(left)
    assert fetch(control, tmp_path / "here")[WEIGHTS] == (control.folder / WEIGHTS).read_bytes()
    assert control.offsets == [100]


def test_a_file_with_another_digest_is_refused_and_fetched_anew_the_next_time(
    control: UploadServer, tmp_path: Path
) -> None:
    (tmp_path / "here/model").mkdir()
    (tmp_path / "here/model" / WEIGHTS).write_bytes(b"of another file")
    code, text = refusal(control, tmp_path / "here")
    assert (code, WEIGHTS in text) == ("upload_damaged", True)
    assert fetch(control, tmp_path / "here")[WEIGHTS] == (control.folder / WEIGHTS).read_bytes()


def test_what_cannot_be_fetched_is_refused_by_name(control: UploadServer, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert refusal(control, folder, id="00000000-0000-0000-0000-000000000001")[0] == "upload_gone"
    assert refusal(control, folder, memory=1000)[0] == "too_large"
    assert refusal(control, folder, address="http://127.0.0.1:9")[0] == "upload_unreachable"
    assert control.offsets == []
