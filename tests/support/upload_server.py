"""A control plane as nodes know it: it serves one upload to who has its token, from an offset, and cuts wires."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from flexmarl.contracts.uploaded_models import WEIGHTS, upload_path, upload_token


@dataclass
class UploadServer:
    """It serves the files of a folder as an upload."""

    folder: Path
    key: str
    """The cluster's."""
    upload: str = field(default_factory=lambda: str(uuid4()))
    breaks: int = 0
    """So many of the next answers with weights end half-way."""
    address: str = ""
    offsets: list[int] = field(default_factory=list)
    """Where the requests for weights began."""

    @property
    def token(self) -> str:
        return upload_token(self.key, self.upload)

    def source(self) -> dict[str, Any]:
        """Return the source of an import, as its row has it."""
        return {"type": "upload", "id": self.upload, "files": list(map(_declared, sorted(self.folder.iterdir())))}


def _declared(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"name": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@contextmanager
def upload_server(control: UploadServer) -> Iterator[UploadServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"control": control}))
    control.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield control
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    control: UploadServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url, control = urlsplit(self.path), self.control
        name = url.path.rpartition("/")[2]
        if url.path != upload_path(control.upload, name):
            return self.send_error(404)
        if self.headers.get("Authorization") != f"Bearer {control.token}":
            return self.send_error(403)
        offset = int(parse_qs(url.query)["offset"][0])
        content = (control.folder / name).read_bytes()[offset:]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if name.endswith(WEIGHTS):
            control.offsets.append(offset)
            if control.breaks:
                control.breaks -= 1
                content = content[: len(content) // 2]
        self.wfile.write(content)
