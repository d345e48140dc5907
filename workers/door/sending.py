"""Contents sent to the control plane, which has a node that it reaches keep them.

Invariants: the keeper is asked first what it lacks, and only that is sent, a few chunks at a time, each read from the
disk when its turn comes. What broke off goes on with the chunks that have not come yet. A control plane that does not
answer raises DoorAway, as for operations; whoever sends tries again.
"""

import re
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from workers.door.address import DoorAddress
from workers.door.client import Door, DoorAway, problem_of
from workers.transfer.base import StateFull
from workers.transfer.contents import Description
from workers.transfer.upload_quota import QuotaReached

CONTENTS = "/nodes/contents"
AT_ONCE = 4
"""Chunks on their way."""
ROUNDS = 4
"""The keeper is asked so often at most what it lacks, before a pause."""
_BINARY = "application/octet-stream"
_NODE = re.compile(r"[^\s/?#]{1,200}")
Read = Callable[[int], bytes | bytearray]
"""Reads a chunk by its number."""


class KeeperGone(DoorAway):
    """The control plane answers, and nobody stores what is sent: no node with the installation's secrets lives, or the
    one that does fails."""


class SendingRefused(Exception):
    """The control plane, or the keeper, takes no such content; another try changes nothing."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Parcel:
    """A content to be sent, and what it is to be kept for."""

    digest: str
    manifest: bytes
    description: Description
    read: Read
    keep: Mapping[str, str]
    shortcut: "Callable[[int], Parcel | None] | None" = None
    """Makes a delta of which the keeper makes so many bytes that it lacks; None: the whole is shorter."""


class _Said(msgspec.Struct):
    keeper: str
    missing: list[str] = []
    path: str = ""
    bytes: int = 0


class Sending(Door):
    """Sends contents. One per process; may be called from several threads."""

    def __init__(self, address: DoorAddress) -> None:
        super().__init__(address)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sending")

    def send(self, run_id: int, parcel: Parcel, keeper: str = "") -> tuple[str, int]:
        """Have a content kept; return by which node, and the bytes that were sent for it.

        Raises DoorAway, KeeperGone, StateFull, SendingRefused, NotAdmitted, and what reading raises.
        """
        numbers = {name: number for number, name in enumerate(parcel.description.chunks)}
        path, sent = f"{CONTENTS}/{run_id}/{parcel.digest}", 0
        for again in range(ROUNDS):
            said = self._put(path, parcel.manifest, keeper, parcel.keep)
            keeper = said.keeper
            if said.missing and parcel.shortcut and not again:
                missing = sum(parcel.description.size(numbers[name]) for name in said.missing if name in numbers)
                if (delta := parcel.shortcut(missing)) is not None:
                    sent += self.send(run_id, delta, keeper)[1]
                    said = self._put(path, parcel.manifest, keeper, {**parcel.keep, "delta": delta.digest})
            if not said.missing:
                return keeper, sent
            if not numbers.keys() >= set(said.missing):
                raise SendingRefused("wrong_answer", "the keeper asks for chunks that the content does not have")
            futures = [
                self._threads.submit(self._chunk, f"{path}/chunks/{name}", parcel.read, numbers[name], keeper)
                for name in said.missing
            ]
            try:
                sent += sum(future.result() for future in futures)
            finally:
                for future in futures:
                    future.cancel()
        raise KeeperGone(f"{keeper} still lacks chunks of {parcel.digest[:12]} that were sent to it")

    def lay_down(self, run_id: int, digest: str, step: int, keeper: str) -> tuple[str, int]:
        """Have a folder made of a content; return its place there and its bytes. Raises like `send`."""
        said = self._put(f"{CONTENTS}/{run_id}/{digest}/folder", b"", keeper, {"step": str(step)})
        return said.path, said.bytes

    def _chunk(self, path: str, read: Read, number: int, keeper: str) -> int:
        body = read(number)
        self._put(path, body, keeper, {})
        return len(body)

    def _put(self, path: str, body: bytes | bytearray, keeper: str, asked: Mapping[str, str]) -> _Said:
        query = urllib.parse.urlencode({**asked, **({"keeper": keeper} if keeper else {})})
        status, answer = self._asked(f"{path}?{query}", body, method="PUT", kind=_BINARY)
        if status == 200:
            try:
                said = msgspec.json.decode(answer, type=_Said)
            except msgspec.MsgspecError as error:
                raise DoorAway(f"the answer cannot be read: {error}") from error
            if not _NODE.fullmatch(said.keeper):
                raise DoorAway("the answer names no keeper")
            return said
        told = problem_of(answer)
        detail = told.detail or f"the control plane answers {status}"
        match status, told.code:
            case 401, _:
                raise self._not_admitted(told.detail)
            case 507, QuotaReached.code:
                raise QuotaReached("", detail)
            case 507, _:
                raise StateFull("", detail)
            case ((403 | 404 | 409 | 413 | 422), _) if told.code not in {"broken_off", "not_expected"}:
                raise SendingRefused(told.code or "refused", detail)
            case (_, "" | "database_away") if status != 500:  # said by the service, or by something before it
                raise DoorAway(detail)
        raise KeeperGone(detail)
