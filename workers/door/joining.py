"""How a host that has only the address joins: it makes a token, shows a code of it, and waits for an administrator.

Invariants: the token is on this host's disk, readable for its user alone, before anybody is told of its hash. It is
never sent back, so nothing is lost when an answer is, and a host that starts again goes on with the same request.
"""

import http.client
import secrets
import socket
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from pydantic import ValidationError

from flexmarl.contracts.node_joining import (
    MOST_DEVICES,
    PATH,
    JoiningDevice,
    NodeJoinAnswer,
    NodeJoinRequest,
    confirmation_code,
)
from flexmarl.store.control.nodes import DeviceFacts
from workers.door import token_file
from workers.door.address import DoorAddress
from workers.door.client import DoorAway, problem_of
from workers.errors import JoinRefused

log = structlog.get_logger(__name__)
LOOK_S = 5.0
_KEY_LETTERS = string.digits + string.ascii_lowercase
_NAME_LETTERS = frozenset(_KEY_LETTERS + "._-")
_TRIES = 3
"""Keys of twelve letters meet nowhere; a second and third are for whoever doubts that."""


@dataclass(frozen=True, slots=True)
class Wished:
    """As what a host asks to be let in."""

    node: str
    pool: str


def wished(node: str = "", pool: str = "", host: str = "") -> Wished:
    """Return the names to ask for: what was told, else a name made of the host's, and a pool of the same name."""
    plain = "".join(one if one in _NAME_LETTERS else "-" for one in (host or socket.gethostname()).lower())
    node = node or plain.strip("._-")[:64].strip("._-") or "node"
    return Wished(node, pool or node)


def new_token() -> str:
    """Draw a token as the control plane would: a key of twelve letters and a secret of 256 bits."""
    return f"fmn_{''.join(secrets.choice(_KEY_LETTERS) for _ in range(12))}.{secrets.token_urlsafe(32)}"


def own_address(home: Path, url: str) -> DoorAddress:
    """Return with which token to ask there: that of a request that still waits, else a new one, which is kept."""
    kept = token_file.read_token(home, token_file.WAITING_FILE)
    if kept is not None and kept.url == url:
        return kept
    made = DoorAddress(url, new_token())
    token_file.keep_waiting(home, made)
    return made


def request_of(names: Wished, version: str, devices: Sequence[DeviceFacts]) -> NodeJoinRequest:
    """Say what this host is."""
    told = [
        JoiningDevice(kind=one.kind, name=one.name, memory_bytes=one.memory_bytes) for one in devices[:MOST_DEVICES]
    ]
    return NodeJoinRequest(
        node=names.node, pool=names.pool, host_name=socket.gethostname(), agent_version=version, devices=told
    )


def join(
    home: Path,
    url: str,
    request: NodeJoinRequest,
    shown: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
) -> NodeJoinAnswer:
    """Ask, and wait until an administrator has approved; the token is kept then. Raises JoinRefused, SettingsError.

    `shown` is told the code to compare. A control plane that is away is waited for.
    """
    address = _asked(home, own_address(home, url), request, sleep)
    shown(confirmation_code(address.token))
    while True:
        answer = _until_answered(partial(_call, address, "GET"), sleep)
        if answer.state == "approved":
            token_file.keep_token(home)
            return answer
        if answer.state == "rejected":
            token_file.drop_waiting(home)
            raise JoinRefused(f"an administrator has rejected {answer.node}; ask one, then run this again")
        sleep(LOOK_S)


def _asked(home: Path, address: DoorAddress, request: NodeJoinRequest, sleep: Callable[[float], object]) -> DoorAddress:
    """Send the request; return the address with the token that it was taken with."""
    body = request.model_dump_json().encode()
    for _ in range(_TRIES):
        try:
            _until_answered(partial(_call, address, "POST", body), sleep)
            return address
        except _KeyTaken:
            address = replace(address, token=new_token())
            token_file.keep_waiting(home, address)
    raise JoinRefused(f"{address.url} takes no token of this host; run this again")


class _KeyTaken(Exception):
    """The token's key is another's."""


def _until_answered(call: Callable[[], NodeJoinAnswer], sleep: Callable[[float], object]) -> NodeJoinAnswer:
    told = False
    while True:
        try:
            return call()
        except DoorAway as away:
            if not told:
                log.warning("waiting for the control plane", error=str(away))
            told = True
            sleep(LOOK_S)


def _call(address: DoorAddress, method: str, body: bytes | None = None) -> NodeJoinAnswer:
    """Ask once. Raises DoorAway, JoinRefused, _KeyTaken."""
    connection = address.connect()
    headers = {**address.headers, **({"Content-Type": "application/json"} if body else {})}
    try:
        connection.request(method, address.path(PATH), body, headers)
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise DoorAway(f"{address.url} does not answer: {error}") from error
    finally:
        connection.close()
    return _told(address, status, text)


def _told(address: DoorAddress, status: int, text: bytes) -> NodeJoinAnswer:
    problem = problem_of(text)
    match status, problem.code:
        case 409, "join_key_taken":
            raise _KeyTaken
        case _, "join_unknown" | "join_invalid" | "join_too_large" | "not_admitted":
            raise JoinRefused(problem.detail)
        case 429 | 503, _:
            raise DoorAway(problem.detail or f"{address.url} answers {status}")
    try:
        return NodeJoinAnswer.model_validate_json(text)
    except ValidationError:
        foreign = status == http.client.BAD_REQUEST  # Django's answer to a name that it does not know
        hint = "; the name in this address must be one of the service's FLEXMARL_ALLOWED_HOSTS" if foreign else ""
        raise DoorAway(f"{address.url} answers {status}{hint}") from None
