"""Real trainer children, as a device worker starts them: processes of their own that may be ranks of a gang."""

import http.client
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.support.engines import seen_by_child
from tests.support.forked import Process, started
from workers.child import ChildConfig, ReadyLine
from workers.programs import QUIET, confined
from workers.training.trainer import CREATE
from workers.training.wire import BindReply, BindRequest, JoinReply, JoinRequest, Refusal, rendezvous_key

PATIENCE_S = 120
Reply = TypeVar("Reply")


class Refused(Exception):
    """What a trainer answered instead of what was asked for."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code, refusal.detail)
        self.code = refusal.code


@dataclass
class TrainerChild:
    process: Process
    host: str
    port: int
    rendezvous: int
    incarnation: str
    lease: int
    secret: str
    log: Path
    through: ThreadPoolExecutor | None = None
    """Where it is asked from, if not from here."""

    def ask(self, path: str, body: object, kind: type[Reply]) -> Reply:
        """Ask for a verb. Raises Refused."""
        given = path, msgspec.msgpack.encode(body)
        status, raw = self._post(*given) if self.through is None else self.through.submit(self._post, *given).result()
        if status == 200:
            return msgspec.msgpack.decode(raw, type=kind)
        raise Refused(msgspec.msgpack.decode(raw, type=Refusal))

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        connection.request("POST", path, body, {"Authorization": f"Bearer {self.secret}"})
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer


def start_trainer(
    home: Path,
    lease: int,
    spec: dict[str, Any],
    host: str = "127.0.0.1",
    inside: Sequence[str] = (),
    life: int = 1,
    device: str = "cpu",
    roots: tuple[str, ...] = (),
) -> TrainerChild:
    """Start a trainer of a lease; its state plane is under `home`, and its log beside it.

    `inside`: the command that starts it elsewhere. `roots`: below which it may read models.
    """
    own, index = seen_by_child(device)
    incarnation, secret = f"t{lease}.{life}.1", f"secret of {lease}.{life}"
    config = ChildConfig("trainer", 1, lease, 3, incarnation, own, 1, host, secret, str(home), spec, roots)
    log = home.parent / f"{home.name}-{incarnation}.log"
    with log.open("ab") as errors:
        process = started("workers.training.serve", {**confined(1, index), **QUIET}, errors.fileno(), inside)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(config) + b"\n")
    process.stdin.flush()
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    ready = msgspec.json.decode(process.stdout.readline(), type=ReadyLine)
    watchdog.cancel()
    return TrainerChild(process, host, ready.port, ready.rendezvous, ready.incarnation, lease, secret, log)


def join(leader: TrainerChild, child: TrainerChild, gang: Sequence[TrainerChild], policy: str, meeting: int) -> None:
    """Let a trainer join a gang, as its node does. Raises Refused."""
    rank = [one.lease for one in gang].index(child.lease)
    key = rendezvous_key(leader.secret, policy, meeting)
    meet = f"{leader.host}:{leader.rendezvous}"
    child.ask("/join", JoinRequest(policy, rank, len(gang), meeting, meet, key), JoinReply)


def bind(
    gang: Sequence[TrainerChild],
    policy: str,
    meeting: int = 1,
    known: BindReply | None = None,
    first: str = "",
    asked: BindRequest | None = None,
) -> BindReply:
    """Bind a policy to a gang, its first trainer leading, or to one trainer alone. Raises Refused."""
    if asked is None:
        asked = BindRequest(policy, CREATE)
        if known is not None:
            asked = BindRequest(policy, known.version, known.digest, known.state, references=[first])
    if len(gang) > 1:
        asked = msgspec.structs.replace(asked, gang=[child.lease for child in gang], meeting=meeting)
    for child in gang[1:]:
        join(gang[0], child, gang, policy, meeting)
    return gang[0].ask("/bind", asked, BindReply)
