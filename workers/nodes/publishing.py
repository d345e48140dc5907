"""What others need of what trainers make here is sent to the control plane before it is told, on a node that nobody
reaches.

Invariants: a version is told once its weights lie where engines elsewhere read them, if the run has any, and where this
home is a temporary one, once they and its training state lie on a node that stays; a checkpoint,
once its weights, training states and folder lie on the node that keeps them, which its row then names. A control plane
that is away is waited for, with what has been sent kept; no room there is the trainer's own lack of room, so that the
run says that it waits. What is kept elsewhere leaves this disk. Other nodes publish nothing: they are read.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
import structlog

from flexmarl.contracts.commands import WriteCheckpoint
from flexmarl.store.control import checkpoint_rows, runs
from flexmarl.store.control.commands import Taken
from workers.door.client import DoorAway
from workers.door.sending import KeeperGone, Parcel, Sending, SendingRefused
from workers.errors import ChildRefused
from workers.nodes.bringing import MOST
from workers.nodes.folder_contents import encoded_folder
from workers.settings import Settings
from workers.training.folders import read_manifest, remove
from workers.training.version_store import BASE, holder_of, owner_of
from workers.training.wire import BindReply, CheckpointReply, StepReply
from workers.transfer import LocalTier, StateError
from workers.transfer.deltas import LEAST_BYTES, Deltas

log = structlog.get_logger(__name__)
T = TypeVar("T")
Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]

TEND_S = 10.0
AGAIN_S, AGAIN_AT_MOST_S = 0.2, 2.0
"""Pauses while the control plane is away; each is twice the one before."""
STALLED_S, STALLED_ATTEMPTS = 60.0, 5
"""After so long, and so many attempts in a row that the control plane answers and no node stores, the run says so."""
OWNER = "publishing"
_FOLDER = re.compile(r"run-(\d+)/step-(\d+)")


class _Stall:
    """Attempts in a row that the control plane answers and no node stores."""

    def __init__(self) -> None:
        self._count, self._since = 0, 0.0

    def lasts(self, away: DoorAway) -> bool:
        """Note a failed attempt; tell whether there were enough. A control plane that does not answer starts the count
        anew: it could not be told."""
        if not isinstance(away, KeeperGone):
            self._count = 0
            return False
        self._count += 1
        if self._count == 1:
            self._since = time.monotonic()
        return self._count >= STALLED_ATTEMPTS and time.monotonic() - self._since >= STALLED_S


class Publishing:
    """What a node lets others read by sending it."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._node, self._home = settings.node, settings.home
        self._temporary = settings.share.home_is_temporary
        self._store = store
        self._tier = LocalTier(settings.home, OWNER)
        self._sending = Sending(settings.door) if settings.door is not None else None
        self._newest: dict[tuple[int, str], str] = {}
        """Run and policy -> the weights that were sent last."""
        self._deltas = Deltas(LocalTier(settings.home, "deltas-sent"))
        self._making = threading.Lock()
        self._folders = asyncio.Lock()
        """Held while a checkpoint's folder is sent or removed."""

    async def __call__(self, taken: Taken, reply: msgspec.Struct) -> msgspec.Struct:
        """Send what others need of a reply; return the reply that is then true. Raises ChildRefused."""
        if self._sending is None:
            return reply
        match taken.command, reply:
            case command, BindReply() | StepReply() as made:
                policy = str(getattr(command, "policy", ""))
                if content := await self._content_wanted(taken.run_id):
                    send = partial(self._version, self._sending, taken.run_id, policy, MOST[content])
                    await self._persist(partial(send, made.digest, self._states_of(made)))
            case WriteCheckpoint() as order, CheckpointReply() as written:
                async with self._folders:
                    work = partial(self._checkpoint, self._sending, taken.run_id, order, written)
                    return await self._persist(work)
        return reply

    async def tend(self) -> None:
        """Remove folders here of checkpoints that another node keeps."""
        here = await asyncio.to_thread(self._present)
        if not here:
            return
        async with self._folders:
            elsewhere = await self._store(lambda conn: checkpoint_rows.kept_elsewhere(conn, self._node, here))
            for run_id, step in elsewhere:
                try:
                    await asyncio.to_thread(self._forget, run_id, step)
                except OSError as error:  # it stays until the next look
                    log.warning("not removed", run_id=run_id, step=step, error=str(error))

    async def _content_wanted(self, run_id: int) -> str:
        """Return how others are sent versions of a run; empty where nobody needs them from elsewhere."""
        asked = runs.publication_content if self._temporary else runs.content_elsewhere
        return str(await self._persist_call(lambda: self._store(lambda conn: asked(conn, run_id))))

    def _states_of(self, made: BindReply | StepReply) -> list[str]:
        """Return the training states that are told with a version and would end with this home."""
        behind = made.durable.values() if isinstance(made, StepReply) else ()
        return [state for state in (*behind, made.state) if state] if self._temporary else []

    async def _persist(self, work: Callable[[], T]) -> T:
        """Work in a thread, again and again while the control plane is away. Raises ChildRefused."""
        try:
            return await self._persist_call(lambda: asyncio.to_thread(work))
        except (SendingRefused, StateError) as refused:
            raise ChildRefused(refused.code, f"not published: {refused}") from refused
        except OSError as error:
            raise ChildRefused("checkpoint_leaving", f"the folder changed while it was sent: {error}") from error

    async def _persist_call(self, call: Callable[[], Awaitable[T]]) -> T:
        pause_s, stall = 0.0, _Stall()
        while True:
            try:
                return await call()
            except DoorAway as away:
                if not pause_s:  # once per outage
                    log.warning("publication waits", error=str(away))
                if stall.lasts(away):
                    raise ChildRefused("upload_unavailable", f"not published: {away}") from away
                pause_s = min(max(2 * pause_s, AGAIN_S), AGAIN_AT_MOST_S)
                await asyncio.sleep(pause_s)

    def _version(
        self, sending: Sending, run_id: int, policy: str, most: float, digest: str, states: Sequence[str]
    ) -> None:
        """Send a version's weights, as a delta over the version before where that is shorter, then training states."""
        former = self._newest.get((run_id, policy), "")
        shortcut = partial(self._delta, former, digest, most) if former and most > 0 else None
        self._sent(sending, run_id, digest, {"policy": policy, "keep": "version"}, shortcut=shortcut)
        self._newest[run_id, policy] = digest
        for state in states:
            self._sent(sending, run_id, state, {"policy": policy, "keep": "state"})

    def _delta(self, former: str, digest: str, most: float, missing: int) -> Parcel | None:
        """Make a delta that is to be sent in the place of so many bytes, unless the whole is shorter or small."""
        if missing < LEAST_BYTES:
            return None
        with self._making, contextlib.suppress(StateError, OSError):
            delta = self._deltas.get(digest, [former], most)
            if delta is not None and self._tier.description(delta).bytes < missing:
                return self._parcel(delta, {"keep": "delta"})
        return None

    def _checkpoint(
        self, sending: Sending, run_id: int, order: WriteCheckpoint, written: CheckpointReply
    ) -> CheckpointReply:
        """Send all of a checkpoint to one node."""
        keeper, label = "", f"step-{order.step}"
        for policy, pin in order.pins.items():
            for digest in filter(None, (pin.digest, written.states.get(policy, ""))):
                keeper = self._sent(sending, run_id, digest, {"policy": policy, "keep": label}, keeper)
        encoded = encoded_folder(Path(written.path))
        folder = Parcel(
            encoded.digest, encoded.manifest, encoded.description,
            lambda number: b"".join(encoded.pieces[number]), {"keep": "folder"},
        )  # fmt: skip
        keeper, sent = sending.send(run_id, folder, keeper)
        path, size = sending.lay_down(run_id, encoded.digest, order.step, keeper)
        log.info("checkpoint published", run_id=run_id, step=order.step, keeper=keeper, bytes=sent)
        return msgspec.structs.replace(written, path=path, bytes=size, kept_on=keeper)

    def _sent(
        self, sending: Sending, run_id: int, digest: str, keep: Mapping[str, str], keeper: str = "",
        shortcut: Callable[[int], Parcel | None] | None = None,
    ) -> str:  # fmt: skip
        """Send a content of the state plane, behind what it is laid over; return who keeps it."""
        began = time.monotonic()
        parcel = self._parcel(digest, keep, shortcut)
        if base := str(parcel.description.described.get("base", "")):
            keeper = self._sent(sending, run_id, base, {**keep, "keep": BASE}, keeper)
        keeper, sent = sending.send(run_id, parcel, keeper)
        seconds = round(time.monotonic() - began, 3)
        log.info("published", digest=digest, run_id=run_id, keeper=keeper, bytes=sent, seconds=seconds)
        return keeper

    def _parcel(
        self, digest: str, keep: Mapping[str, str], shortcut: Callable[[int], Parcel | None] | None = None
    ) -> Parcel:
        """Make ready a content that lies here. Raises StateMissing or CorruptState."""
        description = self._tier.description(digest)

        def read(number: int) -> bytearray:
            room = bytearray(description.size(number))
            self._tier.read_chunk(digest, number, memoryview(room))
            return room

        return Parcel(digest, self._tier.manifest(digest), description, read, keep, shortcut)

    def _present(self) -> list[tuple[int, int]]:
        root = Path(self._home) / "checkpoints"
        found = (_FOLDER.fullmatch(path.relative_to(root).as_posix()) for path in root.glob("run-*/step-*"))
        return [(int(match[1]), int(match[2])) for match in found if match]

    def _forget(self, run_id: int, step: int) -> None:
        label = f"step-{step}"
        folder = Path(self._home) / "checkpoints" / f"run-{run_id}" / label
        versions = (read_manifest(folder) or {}).get("digests")
        for policy in versions if isinstance(versions, dict) else {}:
            holder = LocalTier(self._home, holder_of(owner_of(run_id, policy), label))
            for digest in holder.claims():
                holder.evict(digest)
        remove(folder)
        log.info("checkpoint is kept elsewhere", run_id=run_id, step=step)
