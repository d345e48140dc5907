"""Files of an upload come from the control plane whole, go on after a break, and are refused by name otherwise."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest

from flexmarl.contracts.model_imports import UploadModel, upload_path, upload_token
from flexmarl.store.data.model_roots import ModelRoots
from tests.unit.workers.test_inspecting import write_chat_model
from workers.models import uploads
from workers.models.errors import ModelRefused
from workers.models.importing import Elsewhere, import_model
from workers.models.opening import allow

KEY = "cluster"


class Control:
    """A control plane that serves one upload's folder, and how it behaves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.upload, self.breaks = folder, uuid4(), 0
        self.offsets: list[int] = []
        """Where the requests for weights began."""

    def source(self, digest: str = "") -> UploadModel:
        names = sorted(path.name for path in self.folder.iterdir())
        told = {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in names}
        files = [
            {"name": name, "bytes": (self.folder / name).stat().st_size, "sha256": digest or told[name]}
            for name in names
        ]
        return UploadModel.model_validate({"type": "upload", "id": self.upload, "files": files})


class _Handler(BaseHTTPRequestHandler):
    control: Control

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = url.path.rpartition("/")[2]
        known = url.path == upload_path(self.control.upload, name)
        right = self.headers.get("Authorization") == f"Bearer {upload_token(KEY, self.control.upload)}"
        if not known or not right:
            self.send_error(404 if not known else 403)
            return
        offset = int(parse_qs(url.query)["offset"][0])
        content = (self.control.folder / name).read_bytes()[offset:]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if name.endswith(".safetensors"):
            self.control.offsets.append(offset)
            if self.control.breaks:
                self.control.breaks -= 1
                content = content[: len(content) // 2]
        self.wfile.write(content)


@pytest.fixture
def control(tmp_path: Path, monkeypatch) -> Iterator[tuple[Control, str]]:
    monkeypatch.setattr(uploads, "PAUSE_S", 0.0)
    made = Control(write_chat_model(tmp_path / "sent"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"control": made}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    allow(ModelRoots(), str(tmp_path / "home"))
    yield made, f"http://127.0.0.1:{server.server_port}"
    allow(ModelRoots())
    server.shutdown()
    server.server_close()
    thread.join()


def run(control: tuple[Control, str], tmp_path: Path, source: UploadModel | None = None, memory: int = 0) -> None:
    made, address = control
    wanted = source or made.source()
    import_model(str(tmp_path / "home"), wanted, Elsewhere("", address, upload_token(KEY, wanted.id), memory))


def refusal(control: tuple[Control, str], tmp_path: Path, **more: object) -> str:
    with pytest.raises(ModelRefused) as refused:
        run(control, tmp_path, **more)
    return refused.value.code


def test_an_upload_is_imported_and_what_was_fetched_goes(control, tmp_path: Path, capsys):
    control[0].breaks = 2
    run(control, tmp_path)
    assert '"digest"' in capsys.readouterr().out.splitlines()[-1]
    size = (control[0].folder / "model.safetensors").stat().st_size
    assert control[0].offsets == [0, size // 2, size // 2 + (size - size // 2) // 2]
    assert list((tmp_path / "home/models").glob("fetched-*")) == []


def test_a_second_import_goes_on_where_the_first_gave_up(control, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(uploads, "TRIES", 1)
    monkeypatch.setattr(uploads, "SILENT_S", 5.0)
    control[0].breaks = 1
    original = uploads._more
    monkeypatch.setattr(uploads, "_more", lambda *args: original(*args) if control[0].breaks else "gone")
    assert refusal(control, tmp_path) == "upload_unreachable"
    monkeypatch.setattr(uploads, "_more", original)
    run(control, tmp_path)
    assert control[0].offsets[-1] == (control[0].folder / "model.safetensors").stat().st_size // 2


def test_what_cannot_be_fetched_is_refused_by_name(control, tmp_path: Path):
    made, _ = control
    assert refusal(control, tmp_path, source=made.source(digest="0" * 64)) == "upload_damaged"
    gone = made.source().model_copy(update={"id": UUID(int=1)})
    assert refusal(control, tmp_path, source=gone) == "upload_gone"
    assert refusal(control, tmp_path, memory=1000) == "too_large"
    assert refusal((made, "http://127.0.0.1:9"), tmp_path) == "upload_unreachable"
