"""The new command is named everywhere, decided and answered in a simulated run, and dispatched to a real trainer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, patch
from uuid import uuid4

import django
import msgspec
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from flexmarl.contracts import events
from flexmarl.contracts.commands import COMMAND_KINDS, Route, TrimTrainer, command_adapter
from flexmarl.contracts.resolve import resolve
from flexmarl.orchestrator.orchestrator import HANDLERS
from flexmarl.simulator.cluster.driver import SimulatedDriver
from flexmarl.simulator.reporting.invariants import answered_by, asked_by
from flexmarl.simulator.runs import examine
from flexmarl.simulator.scenarios.scenario import scenario

ORDER = TrimTrainer(lease_id=3)
FACT = events.TrainerTrimmed(lease_id=3, incarnation="t1", command_no=7)
BATCH = {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2}


def named() -> None:
    """It has a route, words and a handler of its fact, and the virtual world knows how it ends."""
    assert command_adapter.validate_json(ORDER.model_dump_json()) == ORDER
    assert events.event_adapter.validate_json(FACT.model_dump_json()) == FACT
    assert COMMAND_KINDS["trim_trainer"].route is Route.NODE
    assert events.TrainerTrimmed in HANDLERS
    assert asked_by(7, ORDER) == answered_by(FACT) is not None
    django.setup()
    from flexmarl.controlplane.runs.driver.reconciling import _ends_with_its_fact
    from flexmarl.controlplane.telemetry.advisor.rules import _phase
    from webui.views.joint_words import DECISIONS

    assert _ends_with_its_fact("trim_trainer")
    assert _phase("trim_trainer") != "trim_trainer"
    assert "trim_trainer" in DECISIONS


def decided() -> None:
    """A simulated run asks for it after each checkpoint; the fact comes back, and no check finds a fault."""
    told, tell = [], SimulatedDriver.tell
    spec = {"batch": BATCH, "resources": {"rollout_devices": 2}, "checkpoints": {"every_steps": 1}}
    played = resolve(spec, template="reference_game").document
    with patch.object(SimulatedDriver, "tell", lambda self, fact: (told.append(fact), tell(self, fact))[1]):
        _, findings = examine(
            scenario({"spec": played, "workload": {"stages": [["speaker"], ["listener"]]}, "steps": 4})
        )
    assert findings == []
    answers = [fact for fact in told if isinstance(fact, events.TrainerTrimmed)]
    assert answers, "nobody trimmed"
    assert len({fact.command_no for fact in answers}) == len(answers)


def dispatched() -> None:
    """A node prepares it, asks the trainer at its address, and writes the fact with the end of the command."""
    from flexmarl.store.control.commands import Taken
    from flexmarl.store.data import steps
    from workers.nodes import carrying_out
    from workers.training.serve import TrainerServer
    from workers.training.trainer import Trainer

    taken = Taken(run_id=1, no=7, token=uuid4(), takes=1, epoch=1, command=ORDER)
    prepared = carrying_out.prepare(MagicMock(), taken)
    trainer = MagicMock()
    trainer.trim = partial(Trainer.trim, MagicMock(_making=MagicMock(device="cpu")))
    written: list[tuple[str, object]] = []

    async def performed(thread: ThreadPoolExecutor) -> object:
        served = web.Application()
        served.add_routes(TrainerServer(trainer, thread, MagicMock()).routes())
        async with TestClient(TestServer(served)) as http:

            async def train(verb: str, request: object, reply: type) -> object:
                answer = await http.post(f"/{verb}", data=msgspec.msgpack.encode(request))
                assert answer.status == 200, f"/{verb}: {answer.status}"
                return msgspec.msgpack.decode(await answer.read(), type=reply)

            client = SimpleNamespace(child=SimpleNamespace(lease_id=3, incarnation="t1"), train=train)
            return await carrying_out.perform(client, prepared)

    with ThreadPoolExecutor(1) as thread:
        commit = asyncio.run(performed(thread))
    with patch.multiple(
        steps,
        guard=MagicMock(),
        _serving=MagicMock(),
        put_event=lambda conn, run_id, key, event: written.append((key, event)),
        finish=lambda conn, taken: written.append(("finished", taken.no)),
    ):
        commit(MagicMock())
    assert written == [("trainer_trimmed:7:t1", FACT), ("finished", 7)]


assert Path("platform/flexmarl/orchestrator/training/trimming.py").exists()
named()
decided()
dispatched()
