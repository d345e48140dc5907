"""Contents of another node, pulled over HTTP: what a node serves below `/v1/state/`, under the cluster's key.

Invariants: a chunk whose transfer breaks off goes on at the byte where it stopped, by a range; a peer that gives up
again and again without sending anything is no source (StateError). Nothing received is trusted: the tier that takes it
in checks manifest and chunks by their names.
"""

import asyncio
import http.client
import re
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aiohttp import web

from workers.transfer.base import Coming, CorruptState, Source, StateError, StateMissing
from workers.transfer.deltas import BASES_AT_MOST, Deltas
from workers.transfer.local import INTENT, LocalTier

CONNECT_S = 5.0
SILENT_S = 30.0
"""A peer that sends nothing for so long is given up."""
TRIES = 3
"""Attempts in a row that bring nothing new."""
PAUSE_S = 0.2
COMING = 425
"""Status of a chunk that a node is bringing itself: Too Early."""
_NAME = re.compile(r"[0-9a-f]{64}")


class _Made(msgspec.Struct):
    delta: str


class Peer(Source):
    """A node's state folder, as a `Source`."""

    def __init__(self, address: str, key: str) -> None:
        """`address` is host:port of the node's endpoint."""
        self.name = f"peer {address}"
        self._address = urllib.parse.urlsplit(f"//{address}").netloc
        self._headers = {"Authorization": f"Bearer {key}"}

    def manifest(self, digest: str) -> bytes:
        connection, response = self._asked(digest, f"/v1/state/{digest}", 0)
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise StateError(digest, f"{self.name} broke off: {error}") from error
        finally:
            connection.close()

    def delta(self, digest: str, bases: Sequence[str], most: float) -> str | None:
        asked = urllib.parse.urlencode([*(("base", base) for base in bases), ("most", most)])
        try:
            connection, response = self._asked(digest, f"/v1/state/{digest}/delta?{asked}", 0)
        except StateMissing:
            return None
        try:
            return msgspec.json.decode(response.read(), type=_Made).delta
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise StateError(digest, f"{self.name} broke off: {error}") from error
        finally:
            connection.close()

    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        got = tries = 0
        while got < len(room):
            before, got = got, self._more(digest, chunk, room, got)
            tries = 0 if got > before else tries + 1
            if tries >= TRIES:
                raise StateError(digest, f"{self.name} broke off at byte {got} of {chunk[:12]}")
            if got < len(room):
                time.sleep(PAUSE_S)

    def _more(self, digest: str, chunk: str, room: memoryview, got: int) -> int:
        """Receive what comes of the rest of a chunk; return how much of it is there then."""
        connection, response = self._asked(digest, f"/v1/state/chunks/{chunk}?of={digest}", got)
        try:
            length = got + int(response.headers.get("Content-Length", "-1"))
            if length != len(room):
                raise CorruptState(digest, f"{self.name} has {length} bytes of {chunk[:12]}, not {len(room)}")
            while got < len(room):
                received = response.readinto(room[got:])
                if not received:
                    return got
                got += received
            return got
        except (OSError, http.client.HTTPException):
            return got
        finally:
            connection.close()

    def _asked(self, digest: str, path: str, start: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection()
        headers = {**self._headers, "Range": f"bytes={start}-"} if start else self._headers
        try:
            connection.request("GET", self._path(path), headers=headers)
            if connection.sock is not None:
                connection.sock.settimeout(SILENT_S)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise StateError(digest, f"{self.name} cannot be reached: {error}") from error
        if response.status == (206 if start else 200):
            return connection, response
        connection.close()
        if response.status == COMING:
            raise Coming(digest, f"{self.name} is bringing it")
        if response.status == 404:
            raise StateMissing(digest, f"{self.name} does not hold it")
        raise StateError(digest, f"{self.name} answers {response.status}")

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=CONNECT_S)

    def _path(self, path: str) -> str:
        return path


class StateRoutes:
    """What a node serves to its peers, from its own state folder. Who may ask is checked by whoever mounts them."""

    def __init__(self, home: str | Path) -> None:
        self._root = Path(home) / "state"
        self._tier = LocalTier(home, "served")
        self._deltas = Deltas(LocalTier(home, "deltas"))
        self._making = asyncio.Lock()
        """Held while a delta is made: others wait for it without a thread each."""

    async def manifest(self, request: web.Request) -> web.StreamResponse:
        try:
            return web.Response(body=self._tier.manifest(request.match_info["digest"]))
        except StateError as missing:
            return web.json_response({"code": missing.code, "detail": str(missing)}, status=404)

    async def delta(self, request: web.Request) -> web.StreamResponse:
        """Answer with the digest of what makes a content of one that the other has, if that is the shorter way."""
        digest, bases = request.match_info["digest"], request.query.getall("base", [])
        try:
            most = float(request.query.get("most", ""))
        except ValueError:
            return web.json_response({"code": "bad_request", "detail": "most: a share of the bytes"}, status=422)
        try:
            async with self._making:
                made = await asyncio.to_thread(self._deltas.get, digest, bases[:BASES_AT_MOST], most)
        except StateError as missing:
            return web.json_response({"code": missing.code, "detail": str(missing)}, status=404)
        if made is None:
            return web.json_response({"code": "state_missing", "detail": "the full content is smaller"}, status=404)
        return web.Response(body=msgspec.json.encode(_Made(made)), content_type="application/json")

    async def chunk(self, request: web.Request) -> web.StreamResponse:
        """Answer with a file, or the range of it that was asked for."""
        name, of = request.match_info["name"], request.query.get("of", "")
        path = self._tier.chunk(name) if _NAME.fullmatch(name) else None
        if path is None or not path.exists():
            if path is not None and self._coming(of):
                return web.json_response({"code": "state_coming", "detail": "it is on its way here"}, status=COMING)
            return web.json_response({"code": "state_missing", "detail": "no such chunk"}, status=404)
        return web.FileResponse(path)

    def _coming(self, digest: str) -> bool:
        """Tell whether somebody is bringing a content here, or was killed while doing so."""
        return bool(_NAME.fullmatch(digest)) and any(self._root.glob(f"{digest}.*{INTENT}"))
