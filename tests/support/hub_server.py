"""A model hub on this machine: the endpoints that `huggingface_hub` asks, over folders."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """Repositories by name, each a folder, and how the hub behaves."""

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.token = ""
        """What reading needs; empty: nothing."""
        self.gated = False
        self.status = 0
        """Answered to everything, when it is not 0."""
        self.breaks = 0
        """So many more times a file's transfer breaks off in its middle."""
        self.sizes: dict[str, int] = {}
        """Sizes that are told instead of the true ones."""
        self.asked: list[tuple[str, str, str]] = []
        """(path, Range, Authorization) of each request for a file's bytes."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, whole: bool) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        folder = self.hub.repositories.get("/".join(parts[:2]))
        if self.hub.status:
            return self._problem(self.hub.status)
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._problem(401, "RepoNotFound")
        if folder is None:
            return self._problem(404, "RepoNotFound")
        if self.hub.gated:
            return self._problem(403, "GatedRepo")
        revision = parts[3] if len(parts) > 3 else "main"
        if revision not in {"main", COMMIT}:
            return self._problem(404, "RevisionNotFound")
        if api:
            return self._told(folder, "/".join(parts[:2]))
        return self._file(folder / "/".join(parts[4:]), whole)

    def _told(self, folder: Path, name: str) -> None:
        names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        sizes = {one: self.hub.sizes.get(one, (folder / one).stat().st_size) for one in names}
        files = [{"rfilename": one, "size": size} for one, size in sizes.items()]
        body = json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode()
        self._send(200, body, {"Content-Type": "application/json"})

    def _file(self, path: Path, whole: bool) -> None:
        if not path.is_file():
            return self._problem(404, "EntryNotFound")
        content = path.read_bytes()
        tag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not whole:
            return self._send(200, content, tag)
        start = self.headers.get("Range", "")
        self.hub.asked.append((self.path, start, self.headers.get("Authorization", "")))
        at = int(start.removeprefix("bytes=").partition("-")[0] or 0) if start else 0
        if start:
            tag["Content-Range"] = f"bytes {at}-{len(content) - 1}/{len(content)}"
        cut = self.hub.breaks > 0 and path.suffix == ".safetensors"
        self.hub.breaks -= cut
        return self._send(206 if start else 200, content[at:], tag, cut)

    def _problem(self, status: int, code: str = "") -> None:
        self._send(status, b"{}", {"X-Error-Code": code} if code else {})

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True


@contextmanager
def hub_server() -> Iterator[tuple[Hub, str]]:
    """Serve a hub; it and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
