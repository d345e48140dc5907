"""Load on a web process, from a process of its own: many sockets that listen, and a steady mix of REST reads.

`python tests/benchmarks/web_load.py` reads its orders as one JSON line and writes lines of JSON: `{"ready": n}` when
all sockets listen, then for `{"do": "cut"}` how the reconnect went, and for `{"do": "end"}` all it saw. Times are
wall-clock seconds of this machine, so that another process can compare them with its own.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Socket:
    """One open page: what it was told, and when."""

    topics: list[str]
    held: dict[str, int] = field(default_factory=dict)
    heard: list[tuple[str, int, float]] = field(default_factory=list)
    live: aiohttp.ClientWebSocketResponse | None = None


class Load:
    """All sockets and the REST mix."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.url, self.cookie, self.token = orders["url"], orders["cookie"], orders["token"]
        topics = orders["topics"]
        self.sockets = [Socket([topics[i % len(topics)], "cluster"]) for i in range(orders["sockets"])]
        self.paths, self.rate = orders["paths"], orders["rate"]
        self.distinct = orders.get("distinct", False)
        """Whether no two reads are alike, so that none can share the answer of another."""
        self.answers: list[tuple[float, int]] = []
        self.late = 0
        self.ending = False

    async def run(self) -> None:
        """Connect, then follow the orders of standard input."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            self.session = session
            await self._connect_all()
            following = [asyncio.create_task(self._follow(socket)) for socket in self.sockets]
            asking = asyncio.create_task(self._ask())
            say({"ready": len(self.sockets)})
            reader = asyncio.StreamReader()
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
            while (line := await reader.readline()) and json.loads(line)["do"] != "end":
                say({"reconnected_s": await self._cut()})
            self.ending = True
            asking.cancel()
            for task in following:
                task.cancel()
            self._report()

    async def _connect_all(self) -> None:
        gate = asyncio.Semaphore(20)

        async def one(socket: Socket) -> None:
            async with gate:
                await self._connect(socket)

        await asyncio.gather(*(one(socket) for socket in self.sockets))

    async def _connect(self, socket: Socket) -> None:
        headers = {"Cookie": self.cookie, "Origin": self.url}
        socket.live = await self.session.ws_connect(f"{self.url}/ws/v1/", headers=headers, max_msg_size=0)
        await socket.live.send_json({"subscribe": socket.topics})

    async def _follow(self, socket: Socket) -> None:
        while not self.ending:
            assert socket.live is not None
            message = await socket.live.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                await asyncio.sleep(0.05)  # cut; `_cut` puts a new one in its place
                continue
            body = json.loads(message.data)
            if "topic" in body and "error" not in body:
                socket.heard.append((body["topic"], body["seq"], time.time()))
                socket.held[body["topic"]] = body["seq"]

    async def _cut(self) -> float:
        """Break every connection without a word, wait a second, connect again."""
        for socket in self.sockets:
            assert socket.live is not None
            transport = socket.live._response.connection.transport  # type: ignore[union-attr]
            if transport is not None:
                transport.abort()
        await asyncio.sleep(1.0)
        began = time.time()
        await self._connect_all()
        return time.time() - began

    async def _ask(self) -> None:
        """Send reads at the wished rate, whatever the answers take."""
        if not self.rate:
            return
        began, sent, pending = time.monotonic(), 0, set()
        while True:
            due = began + sent / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.late += time.monotonic() - due > 0.5
            name = f"load/{sent}" if self.distinct else "load"
            task = asyncio.create_task(self._read(self.paths[sent % len(self.paths)], name))
            pending.add(task)
            task.add_done_callback(pending.discard)
            sent += 1

    async def _read(self, path: str, name: str) -> None:
        began = time.monotonic()
        headers = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip", "User-Agent": name}
        try:
            async with self.session.get(self.url + path, headers=headers) as answer:
                await answer.read()
                self.answers.append((time.monotonic() - began, answer.status))
        except aiohttp.ClientError:
            self.answers.append((time.monotonic() - began, 0))

    def _report(self) -> None:
        heard = [message for socket in self.sockets for message in socket.heard]
        say(
            {
                "heard": heard,
                "held": [socket.held for socket in self.sockets],
                "answers": self.answers,
                "late": self.late,
            }
        )


def say(body: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Load(json.loads(sys.stdin.readline())).run())
