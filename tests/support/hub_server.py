"""A hub of models as its library knows one: repositories of files at a commit, some private or gated, and cut wires."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class HubServer:
    """Its repositories: name -> folder. `private` and `gated` ones are read with the token only."""

    repositories: dict[str, Path]
    token: str = "let-me-in"
    private: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    cut: str = ""
    """File whose bytes end half-way."""
    address: str = ""
    fetched: list[str] = field(default_factory=list)
    """Files whose bytes were asked for."""


@contextmanager
def hub_server(hub: HubServer) -> Iterator[HubServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/revision/")
            if not rest:
                name, _, rest = path.removeprefix("/api/models/").partition("/tree/")
                return self._answer(name, rest, lambda: self._tree(name))
            return self._answer(name, rest, lambda: self._info(name))
        name, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        return self._answer(name, revision, lambda: self._file(name, file))

    def _answer(self, name: str, revision: str, found: Callable[[], None]) -> None:
        allowed = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if name not in self.hub.repositories or (name in self.hub.private and not allowed):
            self._send(401 if name in self.hub.private else 404, {"error": "no"}, "RepoNotFound")
        elif name in self.hub.gated and not allowed and "/api/" not in self.path:
            self._send(403, {"error": "no"}, "GatedRepo")
        elif revision not in ("main", COMMIT):
            self._send(404, {"error": "no"}, "RevisionNotFound")
        else:
            found()

    def _files(self, name: str) -> list[Path]:
        folder = self.hub.repositories[name]
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def _info(self, name: str) -> None:
        siblings = [
            {"rfilename": path.name, "size": path.stat().st_size, "blobId": _blob(path)} for path in self._files(name)
        ]
        self._send(200, {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []})

    def _tree(self, name: str) -> None:
        self._send(
            200,
            [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _blob(path)}
                for path in self._files(name)
            ],
        )

    def _file(self, name: str, file: str) -> None:
        path = self.hub.repositories[name] / file
        if not path.is_file():
            return self._send(404, {"error": "no"}, "EntryNotFound")
        body = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.hub.fetched.append(file)
            self.wfile.write(body[: len(body) // 2] if file == self.hub.cut else body)
            self.close_connection = file == self.hub.cut
        return None

    def _send(self, status: int, body: object, code: str = "") -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(sent)


def _blob(path: Path) -> str:
    return sha1(path.read_bytes()).hexdigest()
