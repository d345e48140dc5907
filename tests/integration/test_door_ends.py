"""Processes of a node with a token end although the control plane leaves their requests unanswered.

A connection whose other end has gone without a word keeps whoever waits on it. Neither being told to stop nor a token
that holds no more may wait as long.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flexmarl.store import node_wire, schema
from tests.support.door_node import DoorNode

ENDS_S = 3.0
"""A second for what may still be answered, one for the end itself, one for a busy machine."""
REFUSED = "the node token of far-1 is revoked"


class SilentPlane(ThreadingHTTPServer):
    """Answers who a node is and some operations, and is silent to all others. News end once `revoked`."""

    daemon_threads = True

    def __init__(self, replies: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = replies
        self.kept, self.revoked, self.over = threading.Event(), threading.Event(), threading.Event()
        """Somebody waits; the token holds no more; the test is over."""


class _Handler(BaseHTTPRequestHandler):
    server: SilentPlane
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/nodes/hello":
            self._answer(200, json.dumps({"node": "far-1", "pool": "far", "schema": schema.VERSION}).encode())
        else:
            self.server.revoked.wait()
            self._answer(401, json.dumps({"detail": REFUSED}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.path.rpartition("/")[2]
        if operation in self.server.replies:
            self._answer(200, node_wire.encode(self.server.replies[operation]))
            return
        if not operation.startswith("process_heartbeats"):
            self.server.kept.set()
        self.server.over.wait()
        self.close_connection = True

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def silent_plane(replies: Mapping[str, Any]) -> Iterator[SilentPlane]:
    with SilentPlane(replies) as plane:
        threading.Thread(target=plane.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield plane
        finally:
            plane.revoked.set()
            plane.over.set()
            plane.shutdown()


@pytest.mark.parametrize(
    ("name", "replies", "revoked"),
    [
        ("node", {}, False),
        ("node", {"nodes.register_node": None, "commands.reopen_on_node": 0}, True),
        ("rollout", {}, True),
    ],
    ids=["node-told", "node-revoked", "rollout-revoked"],
)
def test_who_waits_for_an_answer_ends_within_seconds(
    tmp_path: Path, name: str, replies: Mapping[str, Any], revoked: bool
) -> None:
    with silent_plane(replies) as plane:
        node = DoorNode(tmp_path / "home", f"http://127.0.0.1:{plane.server_port}", "fmn_x")
        node.start(name)
        process = node.processes[name]
        try:
            assert plane.kept.wait(60)
            began = time.monotonic()
            if revoked:
                plane.revoked.set()
            else:
                process.send_signal(signal.SIGTERM)
            code = process.wait(30)
            taken = time.monotonic() - began
        finally:
            process.kill()
            process.wait()
    assert taken < ENDS_S
    assert (code != 0) == revoked
    assert (REFUSED in node.said(name)) == revoked
