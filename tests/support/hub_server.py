"""A hub as its library knows one: models and datasets at a commit, some private or gated, and cut wires."""

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
    """Its models and datasets: name -> folder. `private` and `gated` ones are read with the token only."""

    repositories: dict[str, Path]
    token: str = "let-me-in"
    private: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    cut: str = ""
    """File whose bytes end half-way."""
    large: frozenset[str] = frozenset()
    """Files kept outside of git: the hub says their SHA-256."""
    lies: frozenset[str] = frozenset()
    """Files whose bytes are not those that the hub said."""
    revisions: frozenset[str] = frozenset({"main"})
    address: str = ""
    fetched: list[str] = field(default_factory=list)
    """Files whose bytes were asked for."""
    pinned: bool = True
    """Whether each of them was asked for by its commit."""


@contextmanager
def hub_server(hub: HubServer, port: int = 0) -> Iterator[HubServer]:
    """Serve it; port 0 takes a free one."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"hub": hub}))
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
        kind = next((kind for kind in ("models", "datasets") if path.startswith(f"/api/{kind}/")), "")
        if kind:
            name, _, rest = path.removeprefix(f"/api/{kind}/").partition("/revision/")
            if not rest:
                name, _, rest = path.removeprefix(f"/api/{kind}/").partition("/tree/")
                return self._answer(name, rest, lambda: self._tree(name))
            return self._answer(name, rest, lambda: self._info(name))
        name, _, rest = path.removeprefix("/datasets").lstrip("/").partition("/resolve/")
        revision = next((one for one in self.hub.revisions if rest.startswith(f"{one}/")), rest.partition("/")[0])
        return self._answer(name, revision, lambda: self._file(name, rest.removeprefix(f"{revision}/")))

    def _answer(self, name: str, revision: str, found: Callable[[], None]) -> None:
        allowed = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if name not in self.hub.repositories or (name in self.hub.private and not allowed):
            self._send(401 if name in self.hub.private else 404, {"error": "no"}, "RepoNotFound")
        elif name in self.hub.gated and not allowed and "/api/" not in self.path:
            self._send(403, {"error": "no"}, "GatedRepo")
        elif revision not in (*self.hub.revisions, COMMIT):
            self._send(404, {"error": "no"}, "RevisionNotFound")
        else:
            found()

    def _files(self, name: str) -> list[Path]:
        folder = self.hub.repositories[name]
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def _info(self, name: str) -> None:
        siblings = [
            {"rfilename": path, "size": len(body), "blobId": _blob(body), **self._lfs(path, body)}
            for path, body in self._bodies(name)
        ]
        self._send(200, {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []})

    def _lfs(self, path: str, body: bytes) -> dict[str, object]:
        said = {"size": len(body), "sha256": sha256(body).hexdigest(), "pointerSize": 130}
        return {"lfs": said} if path in self.hub.large else {}

    def _tree(self, name: str) -> None:
        self._send(
            200,
            [
                {"type": "file", "path": path, "size": len(body), "oid": _blob(body)}
                for path, body in self._bodies(name)
            ],
        )

    def _bodies(self, name: str) -> list[tuple[str, bytes]]:
        folder = self.hub.repositories[name]
        return [(str(path.relative_to(folder)), path.read_bytes()) for path in self._files(name)]

    def _file(self, name: str, file: str) -> None:
        self.hub.pinned &= f"/resolve/{COMMIT}/" in self.path
        path = self.hub.repositories[name] / file
        if not path.is_file():
            return self._send(404, {"error": "no"}, "EntryNotFound")
        body = path.read_bytes()
        if file in self.hub.lies:
            body = body[::-1]
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


def _blob(body: bytes) -> str:
    """Return the digest by which git knows bytes."""
    return sha1(b"blob %d\0%b" % (len(body), body)).hexdigest()
