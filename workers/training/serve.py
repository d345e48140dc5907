"""The trainer child: `python -m workers.training.serve`, hosted by a device worker.

One thread does all the training, in the order in which requests came; the event loop answers health and intervals
meanwhile. Bodies are msgpack.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers import child_server
from workers.child import ChildConfig, IntervalLog, WorkProgress
from workers.memory import Spare, lacks_memory
from workers.training.errors import RefusalCode, TrainerRefusal, status_of
from workers.training.trainer import Trainer
from workers.training.wire import VERBS, Refusal

Request = TypeVar("Request", bound=msgspec.Struct)
Verb = Callable[[Request], msgspec.Struct]

log = structlog.get_logger(__name__)


class TrainerServer:
    """The HTTP face of a trainer."""

    def __init__(self, trainer: Trainer, thread: ThreadPoolExecutor, progress: WorkProgress) -> None:
        self._trainer = trainer
        self._thread = thread
        self._progress = progress
        self._spare = Spare()

    def routes(self) -> list[web.RouteDef]:
        """Return what the child serves besides health and intervals."""
        return [
            web.post(f"/{verb.name}", self._verb(verb.request, getattr(self._trainer, verb.name)))
            for verb in VERBS.values()
        ]

    def _verb(self, kind: type[Request], do: Verb[Request]) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            try:
                asked = msgspec.msgpack.decode(await request.read(), type=kind)
                loop = asyncio.get_running_loop()
                with self._progress.work():
                    return _packed(await loop.run_in_executor(self._thread, self._within_memory, do, asked))
            except TrainerRefusal as refused:
                log.warning("refused", verb=request.path, code=refused.code, detail=refused.detail)
                body = Refusal(refused.code, refused.detail, refused.accumulator, list(refused.micro_batches))
                return _packed(body, status_of(refused.code))
            except msgspec.DecodeError as wrong:
                return _packed(Refusal("bad_request", str(wrong)), 422)
            except Exception as error:  # the request failed in a way nobody foresaw: say so and stay up for the next
                log.exception("failed", verb=request.path)
                return _packed(Refusal("internal", f"{type(error).__name__}: {error}"), 500)

        return answer

    def _within_memory(self, do: Verb[Request], asked: Request) -> msgspec.Struct:
        """Do it; where memory does not suffice, or a rank is lost, let go of what the policy holds and refuse."""
        try:
            reply = do(asked)
        except TrainerRefusal as refused:
            if refused.code is RefusalCode.RANK_LOST:
                self._trainer.let_go(getattr(asked, "policy", ""))
            raise
        except Exception as error:  # memory runs out under many names; whatever else it is goes on
            if not lacks_memory(error):
                raise
            words = f"{type(error).__name__}: {error}"
        else:
            self._spare.return_much()
            return reply
        self._trainer.let_go(getattr(asked, "policy", ""))
        raise TrainerRefusal(RefusalCode.OUT_OF_MEMORY, words)


def _packed(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.msgpack.encode(body), content_type="application/msgpack")


def make_trainer(config: ChildConfig, intervals: IntervalLog) -> Trainer:
    """Return the trainer of a child configuration."""
    spec = ExperimentSpec.model_validate(config.spec)
    return Trainer(spec, config.run_id, config.incarnation, config.home, config.device, intervals)


def prepare_torch(threads: int) -> None:
    """One thread per process is the rule: a second one waits at barriers whenever the cores are shared."""
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)


def _prepare_thread() -> None:
    """Moments of weights that get no gradient decay into denormal numbers, which are slow. A setting per thread."""
    import torch

    torch.set_flush_denormal(True)


async def run(config: ChildConfig) -> None:
    """Serve until told to stop."""
    intervals = IntervalLog()
    thread = ThreadPoolExecutor(1, thread_name_prefix="trainer", initializer=_prepare_thread)
    trainer = make_trainer(config, intervals)
    try:
        meet = 0
        with contextlib.suppress(OSError):  # the address is not this machine's: the server says so when it binds it
            meet = trainer.gangs.listen(config.host, config.secret)
        server = TrainerServer(trainer, thread, intervals.progress)
        await child_server.serve(config, server.routes(), intervals, rendezvous=meet)
    finally:
        with contextlib.suppress(RuntimeError):
            thread.shutdown(wait=False, cancel_futures=True)
        trainer.gangs.close()


def main() -> None:
    """Read the configuration from standard input and serve."""
    config = child_server.read_config()
    prepare_torch(config.own_threads)
    child_server.run_loop(run(config))


if __name__ == "__main__":
    main()
