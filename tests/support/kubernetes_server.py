"""What stands for the API server of a Kubernetes cluster, spoken to over HTTP.

It answers as the real one does for what is used here: statuses, messages, label and field selectors, dry runs.
Manifests are held against the schemas that Kubernetes publishes.
"""

import json
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml

TOKEN = "token-of-the-test"
ACCOUNT = "system:serviceaccount:flexmarl:flexmarl"
NAMESPACE = "flexmarl"
_PATH = re.compile(r"/(?:api/v1|apis/([a-z]+)/v1)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?")
Shown = dict[str, Any]


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
        self.status["code"] = code


class ApiServer:
    """The objects of one namespace, and what is answered about them."""

    def __init__(self, folder: Path, cpus: tuple[int, ...]) -> None:
        self.folder = folder
        self.nodes = {f"node-{number + 1}": count for number, count in enumerate(cpus)}
        self.denied: set[tuple[str, str]] = set()
        """(verb, kind) that the account may not."""
        self.quota_cpus: int | None = None
        self.fails: Refusal | None = None
        """What everything is answered with."""
        self.once_made: Callable[[], None] | None = None
        """What happens when the first Job is made, before that is answered."""
        self.calls: list[str] = []
        self.objects: dict[tuple[str, str], Shown] = {}
        """(kind, name) -> object."""
        self.events: list[Shown] = []
        self.guard = threading.RLock()
        self._version = 0

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def write_kubeconfig(self, url: str, token: str = TOKEN) -> None:
        """Write the file with which a client comes here."""
        named = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(named))

    def all(self, kind: str) -> list[Shown]:
        with self.guard:
            return [one for (of, _), one in sorted(self.objects.items()) if of == kind]

    def cpus_held(self, node: str = "") -> int:
        """Return the processors that pods have been asked for and have not given back, of one node or of all."""
        living = [pod for pod in self.all("pods") if pod["status"]["phase"] in {"Pending", "Running"}]
        return sum(cpus_of(pod) for pod in living if not node or pod["spec"].get("nodeName") == node)

    def changed(self, one: Shown) -> Shown:
        """Give an object that was changed another version."""
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        return one

    def answer(self, verb: str, path: str, token: str, body: Shown | None) -> tuple[int, Shown]:
        """Answer a request of HTTP."""
        asked = urlsplit(path)
        given = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        found = _PATH.fullmatch(asked.path)
        with self.guard:
            self.calls.append(f"{verb} {path}")
            try:
                if self.fails is not None:
                    raise self.fails
                if token != f"Bearer {TOKEN}":
                    raise Refusal(401, "Unauthorized", "Unauthorized")
                if found is None:
                    raise Refusal(404, "NotFound", "the server could not find the requested resource")
                return self._answer(verb, *found.groups(default=""), given, body)
            except Refusal as refusal:
                return refusal.status["code"], refusal.status

    def _answer(
        self, verb: str, group: str, namespace: str, kind: str, name: str, given: dict[str, str], body: Shown | None
    ) -> tuple[int, Shown]:
        act = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete"}[verb]
        full = f"{kind}.{group}" if group else kind
        if (act, kind) in self.denied:
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            what = f'cannot {act} resource "{kind}" in API group "{group}"{where}'
            raise Refusal(403, "Forbidden", f'{full} is forbidden: User "{ACCOUNT}" {what}')
        if act == "list":
            items = [one for one in self._listed(kind) if namespace in ("", NAMESPACE) and _selected(one, given)]
            return 200, {"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items}
        if act == "create":
            assert body is not None
            return 201, self._create(kind, namespace, body, dry=given.get("dryRun") == "All")
        job = self.objects.get((kind, name))
        if job is None:
            raise Refusal(404, "NotFound", f'{full} "{name}" not found')
        if act == "delete":
            assert given["propagationPolicy"] == "Foreground"
            job["metadata"].setdefault("deletionTimestamp", now())
            self.changed(job)
        return 200, job

    def _listed(self, kind: str) -> list[Shown]:
        if kind == "events":
            return self.events
        if kind == "nodes":
            ready = [{"type": "Ready", "status": "True"}]
            return [
                {"metadata": {"name": name}, "status": {"allocatable": {"cpu": str(cpus)}, "conditions": ready}}
                for name, cpus in self.nodes.items()
            ]
        if kind == "resourcequotas":
            if self.quota_cpus is None:
                return []
            status = {"hard": {"cpu": str(self.quota_cpus)}, "used": {"cpu": str(self.cpus_held())}}
            return [{"metadata": {"name": "compute"}, "status": status}]
        return self.all(kind)

    def _create(self, kind: str, namespace: str, given: Shown, *, dry: bool) -> Shown:
        if namespace != NAMESPACE:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        try:
            kubernetes_validate.validate(given, "1.37", strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refusal(400, "BadRequest", f"strict decoding error: {error.message}") from error
        name = given["metadata"]["name"]
        if (kind, name) in self.objects:
            full = "jobs.batch" if kind == "jobs" else kind
            raise Refusal(409, "AlreadyExists", f'{full} "{name}" already exists')
        made = {
            **given,
            "metadata": {**given["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": now()},
            "status": {},
        }
        if not dry:
            self.objects[kind, name] = self.changed(made)
            happens, self.once_made = self.once_made, None
            if happens is not None:
                happens()
        return made


@contextmanager
def served(api: ApiServer) -> Iterator[None]:
    """Serve it, and write the file with which a client comes here."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_verb(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, shown = api.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            with api.guard:
                text = json.dumps(shown).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = handle_verb

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # clients are killed
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    api.write_kubeconfig(f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


def _selected(one: Shown, given: dict[str, str]) -> bool:
    labels = one["metadata"].get("labels", {}) if "metadata" in one else {}
    for term in filter(None, given.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if labels.get(name) != value:
            return False
    for term in filter(None, given.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = one
        for member in path.split("."):
            found = found[member]
        if found != value:
            return False
    return True


def cpus_of(shown: Shown) -> int:
    """Return the processors that a pod asks for."""
    return int(shown["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def now() -> str:
    """Return this moment as Kubernetes writes it."""
    return stamp(datetime.now(UTC))


def stamp(at: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
