"""A real container engine with a store of its own, and an image of busybox that is made on the spot."""

import json
import os
import shlex
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

IMAGE = "localhost/flexmarl/agent:1"
BUSYBOX = Path("/bin/busybox")
TOOLS = ("sh", "cat", "cp", "dd", "echo", "env", "grep", "id", "ln", "ls", "mkdir", "ps", "sleep", "tr", "wget")
TASK = {"testbed/answer.txt": b"wrong\n", "testbed/deep/link.txt": b"x\n", "large/file": bytes(24 * 2**20)}
"""Files of the image, by path."""
RUNTIMES = ("", "--runtime /usr/sbin/runc")
"""Options of the engine, of which the first that works is taken: crun refuses some mixes of control groups."""


@dataclass(frozen=True)
class Engine:
    command: str
    """As the setting FLEXMARL_CONTAINER_ENGINE has it."""

    def run(self, *words: str, given: bytes = b"") -> str:
        done = subprocess.run([*shlex.split(self.command), *words], input=given, capture_output=True, check=True)
        return done.stdout.decode()


@contextmanager
def made_engine() -> Iterator[Engine]:
    """Make an engine with the image; skips the test where none can be had."""
    if (why := _missing()) is not None:
        pytest.skip(why)
    with TemporaryDirectory(prefix="fm-", dir="/tmp") as folder:  # the engine takes no long path for its records
        yield _working(Path(folder))


def _working(folder: Path) -> Engine:
    """Return an engine that starts a container here; skips the test where none does."""
    said = ""
    for options in RUNTIMES:
        engine = Engine(f"podman --root {folder}/store --runroot {folder}/run {options} --cgroup-manager=cgroupfs")
        try:
            engine.run("import", "-", IMAGE, given=_root())
            engine.run(
                "run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=64:64", IMAGE, "true"
            )
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
        else:
            return engine
    pytest.skip(f"podman starts no container here: {said[-300:]}")


def left_groups() -> list[Path]:
    """Return the control groups of rooms whose process is gone."""
    return [one for one in _groups() if not Path("/proc", one.name).exists()]


def group_names() -> set[str]:
    """Return the names of all control groups of rooms: the number of the process that waits outside of each."""
    return {one.name for one in _groups()}


def _groups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob("flexmarl/[0-9]*"), *root.glob("*/flexmarl/[0-9]*")]


@contextmanager
def registry(engine: Engine, folder: Path) -> Iterator[tuple[Engine, str]]:
    """Serve the image as a registry does; yields an engine that trusts it, without TLS, and its address."""
    engine.run("save", "--format", "oci-dir", "--output", str(folder / "saved"), IMAGE)
    [manifest] = json.loads((folder / "saved/index.json").read_text())["manifests"]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            *_, kind, what = self.path.rstrip("/").split("/")
            digest = manifest["digest"] if kind == "manifests" else what
            body = folder / "saved/blobs" / digest.replace(":", "/") if kind in ("manifests", "blobs") else None
            known = body is None or body.exists()
            self.send_response(200 if known and "nobody" not in self.path else 404)
            self.send_header("Content-Type", manifest["mediaType"] if kind == "manifests" else "application/json")
            text = body.read_bytes() if body is not None and body.exists() else b"{}"
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        conf = folder / "registries.conf"
        conf.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        yield Engine(f"{engine.command} --registries-conf {conf}"), address
        server.shutdown()


@cache
def _missing() -> str | None:
    if os.geteuid() != 0:
        return "containers are started as root"
    if shutil.which("podman") is None:
        return "podman is not installed"
    if not BUSYBOX.exists():
        return "busybox-static is not installed"
    return None


def _root() -> bytes:
    """Return a root file system of busybox alone."""
    written = BytesIO()
    with tarfile.open(fileobj=written, mode="w") as packed:
        packed.add(BUSYBOX.resolve(), "bin/busybox")
        for tool in ("true", *TOOLS):
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            packed.addfile(link)
        for path, body in TASK.items():
            file = tarfile.TarInfo(path)
            file.size, file.mode = len(body), 0o644
            packed.addfile(file, BytesIO(body))
    return written.getvalue()
