"""A policy whose ranks are on two hosts: TCP between network namespaces, a state plane and a home folder on each.

The leader's host is lost; what its successor on the other host needs is brought there as nodes do it.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from aiohttp import web

from flexmarl.contracts.specification.experiment import ExperimentSpec
from tests.support.trainer_child import Refused, TrainerChild, bind, start_trainer
from tests.support.training_rows import rows_of
from tests.support.two_hosts import Host, missing, two_hosts
from workers.training.wire import AccumulateReply, AccumulateRequest, BindReply, StepReply, StepRequest
from workers.transfer import LocalTier
from workers.transfer.peer import Peer, StateRoutes
from workers.transfer.plane import Plane

WHY_NOT = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "two hosts can be made"),
]

SPEC = ExperimentSpec.model_validate(
    {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "policies": {"speaker": {"precision": "fp64"}},
    }
).model_dump(mode="json")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    with two_hosts(tmp_path) as found:
        yield found


def start(host: Host, lease: int) -> TrainerChild:
    child = start_trainer(host.home, lease, SPEC, host.address, host.inside)
    child.through = host.thread()
    return child


def trained(leader: TrainerChild, version: int) -> StepReply:
    """Take a step on two micro-batches."""
    epoch = f"{version}:{leader.incarnation}"
    for number in (1, 2):
        asked = AccumulateRequest("speaker", epoch, number, 0.05, rows_of(10 * version + number, 9))
        leader.ask("/accumulate", asked, AccumulateReply)
    return leader.ask("/step", StepRequest("speaker", epoch, [1, 2], version + 1, 1e-2), StepReply)


def contents(home: Path, reply: StepReply) -> dict[str, torch.Tensor]:
    tier = LocalTier(home, "reader")
    return {**tier.get(reply.digest), **tier.get(reply.state)}


@contextmanager
def serving_states(host: Host) -> Iterator[str]:
    """Let other hosts pull what lies on this one, as its node agent does; yields the address."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), []
    stop = asyncio.Event()

    async def serve() -> None:
        state = StateRoutes(str(host.home))
        app = web.Application()
        app.add_routes([web.get("/v1/state/{digest}", state.manifest)])
        app.add_routes([web.get("/v1/state/chunks/{name}", state.chunk)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, host.address, 0).start()
        address.append(f"{host.address}:{runner.addresses[0][1]}")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    served = host.thread().submit(loop.run_until_complete, serve())
    assert ready.wait(60)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        served.result(60)


def test_ranks_on_two_hosts_train_as_one_process_and_go_on_when_the_leaders_is_gone(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    near, far = hosts
    alone = start_trainer(tmp_path / "alone", 7, SPEC)
    children = [alone, start(near, 1), start(far, 2)]
    try:
        _, leader, follower = children
        first = bind([alone], "speaker")
        expected = [trained(alone, version) for version in range(2)]

        made = bind([leader, follower], "speaker", 1)
        assert made.digest == first.digest
        reply = trained(leader, 0)
        assert apart(contents(near.home, reply), contents(tmp_path / "alone", expected[0])) < 1e-12
        assert not LocalTier(far.home, "reader").locate(reply.digest), "a follower keeps nothing on its host's disk"

        leader.kill()
        known = BindReply("", reply.version, reply.digest, reply.state, False, b"", {})
        with pytest.raises(Refused, match="state"):
            bind([follower], "speaker", 2, known, first.digest)
        with serving_states(near) as address:
            plane = Plane(LocalTier(far.home, "brought"), sources=[Peer(address, "key")])
            for digest in (reply.digest, reply.state):
                far.thread().submit(plane.bring, digest).result()

        children.append(start(near, 3))
        bind([follower, children[-1]], "speaker", 3, known, first.digest)
        reply = trained(follower, 1)
        assert apart(contents(far.home, reply), contents(tmp_path / "alone", expected[1])) < 1e-12
    finally:
        for child in children:
            child.stop()


def apart(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return how far the farthest buffers are apart, relatively."""
    assert found.keys() == expected.keys()
    pairs = [(found[name].double(), own.double()) for name, own in expected.items()]
    return max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)
