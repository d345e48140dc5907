"""Helm itself, and what stands for the API server that it installs a chart in.

The server keeps what it is sent. It knows which kinds there are, and says of every Job that it has completed, since
Helm waits for its hooks. Helm is a library of Go in a process of its own: tests/support/helm_calls.py.
"""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

MISSING = "" if importlib.util.find_spec("helm_sdkpy") else "Helm is not installed: requirements/helm.txt"
CALLS = Path(__file__).with_name("helm_calls.py")
NAMESPACE = "training"
KINDS = {
    "v1": {"secrets": "Secret", "services": "Service", "serviceaccounts": "ServiceAccount", "pods": "Pod",
           "persistentvolumeclaims": "PersistentVolumeClaim", "configmaps": "ConfigMap"},
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "batch/v1": {"jobs": "Job"},
    "networking.k8s.io/v1": {"ingresses": "Ingress"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
}  # fmt: skip
"""Group and version -> resource -> kind."""
HELMS_OWN = "helm.sh/release.v1"
Shown = dict[str, Any]


class HelmCluster:
    """The objects of a cluster."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Shown] = {}
        """(namespace, resource, name) -> object."""
        self.made: list[Shown] = []
        """All that was made, in the order in which it came."""
        self._guard = threading.RLock()
        self._version = 0

    def kept(self) -> list[Shown]:
        """Return what a chart made: all but the records of Helm."""
        with self._guard:
            return [one for one in self.objects.values() if one.get("type") != HELMS_OWN]

    def one(self, kind: str, name: str) -> Shown:
        """Return an object that must be there."""
        (found,) = [one for one in self.kept() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found

    def answer(self, verb: str, path: str, body: Shown | None) -> tuple[int, Any]:
        """Answer a request; a list of events answers a watch."""
        asked = urlsplit(path)
        given = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        words = asked.path.strip("/").split("/")
        with self._guard:
            return self._discovered(words) or self._kept(verb, words, given, body)

    def _discovered(self, words: list[str]) -> tuple[int, Shown] | None:
        if words == ["version"]:
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        if words == ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if words == ["apis"]:
            groups = [_group(one) for one in KINDS if "/" in one]
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if words == ["openapi", "v3"]:
            places = {_root(one): {"serverRelativeURL": f"/openapi/v3/{_root(one)}"} for one in KINDS}
            return 200, {"paths": places}
        if words[:2] == ["openapi", "v3"]:
            return 200, _checks("/".join(words[3:]))
        version = "/".join(words[1:])
        if words[0] in {"api", "apis"} and version in KINDS:
            verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
            resources = [
                {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}
                for name, kind in KINDS[version].items()
            ]
            return 200, {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        return None

    def _kept(self, verb: str, words: list[str], given: dict[str, str], body: Shown | None) -> tuple[int, Any]:
        version, rest = ("v1", words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
        namespace, rest = (rest[1], rest[2:]) if rest[:1] == ["namespaces"] else ("", rest)
        resource, name = (*rest, "", "")[:2]
        kind = KINDS.get(version, {}).get(resource, "")
        if not kind:
            return _refusal(404, "NotFound", f"no resource {'/'.join(words)}")
        key = (namespace, resource, name)
        if verb == "POST":
            assert body is not None
            return self._make((namespace, resource, body["metadata"]["name"]), kind, version, body)
        if not name:
            return self._listed(namespace, resource, kind, version, given)
        if key not in self.objects:
            return _refusal(404, "NotFound", f'{resource} "{name}" not found')
        if verb == "DELETE":
            del self.objects[key]
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if verb in {"PATCH", "PUT"}:
            assert body is not None
            merged = body if verb == "PUT" else _merged(self.objects[key], body)
            self.objects[key] = self._changed(merged)
        return 200, self.objects[key]

    def _make(self, key: tuple[str, str, str], kind: str, version: str, body: Shown) -> tuple[int, Shown]:
        if key in self.objects:
            return _refusal(409, "AlreadyExists", f'{key[1]} "{key[2]}" already exists')
        one = {"apiVersion": version, "kind": kind, **body}
        one["metadata"] = {**body["metadata"], "namespace": key[0], "uid": f"uid-{len(self.made)}", "generation": 1}
        if kind == "Job":
            done = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            one["status"] = {"succeeded": 1, "conditions": [done]}
        self.objects[key] = self._changed(one)
        self.made.append(one)
        return 201, one

    def _listed(self, namespace: str, resource: str, kind: str, version: str, given: dict[str, str]) -> tuple[int, Any]:
        found = [one for (where, of, _), one in self.objects.items() if of == resource and namespace in ("", where)]
        labels = dict(word.split("=") for word in given.get("labelSelector", "").split(",") if word)
        items = [one for one in found if labels.items() <= one["metadata"].get("labels", {}).items()]
        name = given.get("fieldSelector", "").removeprefix("metadata.name=")
        items = [one for one in items if name in ("", one["metadata"]["name"])]
        if given.get("watch") in {"true", "1"}:
            seen = {"resourceVersion": str(self._version), "annotations": {"k8s.io/initial-events-end": "true"}}
            end = {"kind": kind, "apiVersion": version, "metadata": seen}
            return 200, [*({"type": "ADDED", "object": one} for one in items), {"type": "BOOKMARK", "object": end}]
        about = {"resourceVersion": str(self._version)}
        return 200, {"kind": f"{kind}List", "apiVersion": version, "metadata": about, "items": items}

    def _changed(self, one: Shown) -> Shown:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        return one


def _group(version: str) -> Shown:
    known = {"groupVersion": version, "version": version.split("/")[1]}
    return {"name": version.split("/", maxsplit=1)[0], "versions": [known], "preferredVersion": known}


def _root(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"


def _checks(version: str) -> Shown:
    """Say that the server checks fields itself, so that Helm does not: tests hold them against the schemas."""
    group, _, number = version.rpartition("/")
    patch = {"parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]}
    paths = {
        f"/{_root(version)}/namespaces/{{namespace}}/{name}/{{name}}": {
            "patch": {**patch, "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": kind}}
        }
        for name, kind in KINDS[version].items()
    }
    return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": paths}


def _refusal(code: int, reason: str, message: str) -> tuple[int, Shown]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return code, {**status, "message": message}


def _merged(into: Shown, change: Shown) -> Shown:
    """Return an object after a merge patch (RFC 7396)."""
    found = dict(into)
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            found[name] = _merged(found[name] if isinstance(found.get(name), dict) else {}, value)
        else:
            found[name] = value
    return found


@contextmanager
def helm_cluster(folder: Path) -> Iterator[HelmCluster]:
    """Serve a cluster whose kubeconfig lies in a folder."""
    cluster, ending = HelmCluster(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, found = cluster.answer(self.command, self.path, body)
            watched = isinstance(found, list)
            content = b"".join(json.dumps(one).encode() + b"\n" for one in (found if watched else [found]))
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header(*(("Connection", "close") if watched else ("Content-Length", str(len(content)))))
            self.end_headers()
            self.wfile.write(content)
            if watched:  # until nobody looks any more, or the end
                self.wfile.flush()
                self.close_connection = True
                ending.wait(30.0)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    try:
        yield cluster
    finally:
        ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


def helm(folder: Path, *calls: Shown) -> list[Shown]:
    """Let Helm do something, one call after the other; each answer has `result` or `error`."""
    asked = {"kubeconfig": str(folder / "kubeconfig"), "namespace": NAMESPACE, "calls": list(calls)}
    home = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "HELM_DRIVER": "memory"}
    process = subprocess.run(
        [sys.executable, str(CALLS)], input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=False,
        env={**home, "PYTHONPATH": ":".join(path for path in sys.path if path)},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    answers: list[Shown] = json.loads(process.stdout.splitlines()[-1])
    return answers
