"""Runs an engine as a child: generation and HTTP on one event loop, ended together."""

import asyncio
import contextlib

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers import child_server
from workers.child import ChildConfig, IntervalLog
from workers.rollout.engines.base import Engine
from workers.rollout.engines.server import EngineServer, Fetch
from workers.rollout.engines.tokenizers import Tokenizers


async def serve_engine(
    config: ChildConfig, engine: Engine, source: Fetch, intervals: IntervalLog, answer: int | None = None
) -> None:
    """Serve until told to stop. `answer` is where the ready line goes, when standard output was taken before."""
    tokenizers = Tokenizers(ExperimentSpec.model_validate(config.spec).policies)
    server = EngineServer(engine, source, config.incarnation, intervals, tokenizers, config.devices)
    generating = asyncio.create_task(server.generate())
    serving = asyncio.create_task(child_server.serve(config, server.routes(), intervals, answer))
    await asyncio.wait({generating, serving}, return_when=asyncio.FIRST_COMPLETED)
    for task in (generating, serving):
        if task.done():
            task.result()  # a generation that broke ends the child: its parent starts a fresh one
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
