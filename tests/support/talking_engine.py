"""An engine and a node as the control plane's playground meets them: real HTTP, replies by rule, no model.

The engine answers each prompt with the words that follow its last one in the vocabulary, or with replies that were put
down before; every request is kept. The node answers what `say` was told to say.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class TalkingEngine:
    """What it was asked, and how it is to misbehave."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """Authorization of each request."""
    vocabulary: int = 8
    replies: list[list[int]] = field(default_factory=list)
    """Ids of the next replies, each whole or cut off at the most tokens; without any they are those of the rule."""
    refuse: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(status, body) of the next requests."""
    parts: bool = False
    """Tell each token in an event of its own."""
    pause_s: float = 0.0
    """Before each event."""
    left: list[int] = field(default_factory=list)
    """Events that were sent of each answer whose reader went away."""
    give_up: bool = False
    node: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(status, body) of what the node answers; the last one again and again."""
    node_asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def reply(self, prompt: list[int], body: dict[str, Any]) -> tuple[list[int], str]:
        """Count on from the prompt's last id, up to a stop word; or say what was put down."""
        if self.replies:
            ids = self.replies.pop(0)
            return ids[: body["max_tokens"]], "length" if len(ids) > body["max_tokens"] else "stop"
        ids = [(prompt[-1] + 1 + place) % self.vocabulary for place in range(body["max_tokens"])]
        for place, number in enumerate(ids):
            if number in body["stop_token_ids"]:
                return ids[: place + 1], "stop"
        return ids, "length"

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for index, prompt in enumerate(body["prompt"]):
            ids, finish = self.reply(prompt, body)
            if self.give_up:
                finish = "abort"
            cuts = range(1, len(ids) + 1) if self.parts else [len(ids)]
            since = 0
            for cut in cuts:
                piece, last = ids[since:cut], cut == len(ids)
                yield {
                    "index": index, "token_ids": piece, "logprobs": [-0.5 * (n + 1) for n in range(since, cut)],
                    "finish_reason": finish if last else "", "segments": [body["version"], len(piece)], "at": since,
                }  # fmt: skip
                since = cut


@contextmanager
def serving(engine: TalkingEngine) -> Iterator[TalkingEngine]:
    """Serve engine and node on one port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(engine))
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(engine: TalkingEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/playground":
                engine.node_asked.append(body)
                self._json(*(engine.node.pop(0) if len(engine.node) > 1 else engine.node[0]))
                return
            engine.asked.append(body)
            engine.tokens.append(self.headers["Authorization"])
            if engine.refuse:
                self._json(*engine.refuse.pop(0))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for sent, choice in enumerate(engine.events(body)):
                time.sleep(engine.pause_s)
                event = {"model": body["model"], "choices": [choice], "load": {"running": 0, "waiting": 0}}
                try:
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                except OSError:
                    engine.left.append(sent)
                    return
            self.wfile.write(b"data: [DONE]\n\n")

        def _json(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
