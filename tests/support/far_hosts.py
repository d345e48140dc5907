"""Several hosts in networks of their own, each with a token and a home; the first one has a long way to go."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.door_node import DoorNode
from tests.support.far_link import FarLink, address_for, host_apart
from tests.support.machine import wait_for
from tests.support.system import System

WITHIN_S = 600.0
FIRST = 1
"""Number of the host that has a long way to go."""
LONG_WAY = {"delay_s": 0.025, "loss": 0.01}
"""50 ms there and back, one lost packet in a hundred."""


@dataclass(frozen=True, slots=True)
class FarHost:
    """A host of a pool that has no other one."""

    pool: str
    link: FarLink
    node: DoorNode


def allowed_hosts(numbers: range) -> str:
    """Return the names that the web service has to answer to."""
    return ",".join(["127.0.0.1", "localhost", *map(address_for, numbers)])


def resources(rollout: FarHost, training: FarHost) -> dict[str, Any]:
    """Return what a run asks for that is played on one host and trained on another, or on the same."""
    return {"rollout_pool": rollout.pool, "training_pool": training.pool}


@contextmanager
def far_hosts(
    system: System, folder: Path, numbers: range, settings: Callable[[str], Mapping[str, str]] = lambda address: {}
) -> Iterator[list[FarHost]]:
    """Start hosts of these numbers, which no other test uses at once. `settings` are more of a host's environment, by
    our address on its network."""
    with ExitStack() as stack:
        found = [_begun(stack, system, folder, number, settings) for number in numbers]
        names = {host.pool for host in found}
        wait_for(lambda: names <= {row["name"] for row in system.api().get("/nodes")["results"]}, WITHIN_S)
        yield found


def _begun(
    stack: ExitStack, system: System, folder: Path, number: int, settings: Callable[[str], Mapping[str, str]]
) -> FarHost:
    name = f"apart-{number}"
    own = folder / name
    own.mkdir()
    made = system.api().post("/node-tokens", {"node": name, "pool": name})
    ours, begins = stack.enter_context(host_apart(f"flexmarl-{name}", number, system.home))
    way = LONG_WAY if number == FIRST else {}
    link = stack.enter_context(FarLink(own, system.url, ours, **way))
    environment = {"SSL_CERT_FILE": str(link.certificate), **settings(ours)}
    node = DoorNode(own / "home", link.url, made["secret"], begins=begins, **environment)
    return FarHost(name, link, stack.enter_context(node))
