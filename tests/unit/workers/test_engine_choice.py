"""Which engine may answer a turn: exactly what it holds wholly, and what was certain before it was committed."""

import pytest

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.engines import EngineRoute
from workers.rollout.engine_client import EngineClient
from workers.rollout.fleet import answering, digest_of
from workers.rollout.turns import TurnRequest, WeightsTimeoutError


def pin(version, digest=None):
    return PolicyPin(version=version, digest=f"{version}" * 64 if digest is None else digest)


ROUTE = EngineRoute(1, "http://x", "s", "e1", {"solver": pin(2)}, {"solver": pin(1)})


def turn(wanted, **more):
    return TurnRequest("solver", wanted, (1,), 0, 1, 1.0, (), (), **more)


@pytest.mark.parametrize("version", [1, 2])
def test_the_last_two_versions_answer(version):
    assert answering(ROUTE, turn(pin(version))) == pin(version)


def test_a_version_that_is_to_come_is_answered_once_it_is_held_and_asked_for_by_itsdigest_of():
    assert answering(ROUTE, turn(pin(3, ""))) is None
    assert answering(ROUTE, turn(pin(2, ""))) == pin(2)
    assert digest_of(ROUTE, turn(pin(2, ""))) == "2" * 64


def test_another_digest_or_version_is_never_answered():
    assert answering(ROUTE, turn(pin(2, "f" * 64))) is None
    assert answering(ROUTE, turn(pin(0))) is None


async def test_a_turn_waits_for_weights_to_come_and_its_time_stands_still():
    looks = []

    async def routes():
        looks.append(1)
        held = 3 if len(looks) >= 3 else 2
        return [EngineRoute(1, "http://x", "s", "e1", {"solver": pin(held)})]

    client = EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded")))
    assert await client.until_held(turn(pin(3, "")), 60.0) > 0
    assert len(looks) == 3
    assert await client.until_held(turn(pin(7)), 60.0) < 0.05, "a committed version is asked for at once"


async def test_a_turn_never_waits_for_ever_for_weights_to_come():
    async def routes():
        return [ROUTE]

    client = EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded")))
    with pytest.raises(WeightsTimeoutError, match="no engine served version 9 of solver within"):
        await client.until_held(turn(pin(9, "")), 0.1)
