"""A child that keeps the contract of `workers.child` without a model: for tests of hosting and of the node.

`FAKE_CHILD_LIFE_S` ends it by itself; `FAKE_CHILD_STUBBORN` makes it ignore end of input and SIGTERM; what it is told
is appended to `FAKE_CHILD_LOG`, one JSON line each. With `FAKE_CHILD_WORK` it has work open from the beginning: `stuck`
never gets a piece of it done, `slow` does one every 0.3 s. `FAKE_CHILD_CANNOT` makes it say that it cannot work;
`FAKE_CHILD_WORDS` is written to its log. With `FAKE_CHILD_CGROUP` it joins that group once it is ready, and takes more
memory than the group may have.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import threading
import time

import msgspec
from aiohttp import web

from workers import child_server
from workers.child import ChildFailed, IntervalLog
from workers.rollout.engines.wire import HeldVersion, LoadRequest, Stats
from workers.training import wire

TOKENIZER = b'{"version": "1.0"}'


def digest_of(*parts):
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


class FakeChild:
    def __init__(self, config):
        self.config = config
        self.intervals = IntervalLog()
        self.delay_s = float(os.environ.get("FAKE_CHILD_DELAY_S", "0"))

    def routes(self):
        verbs = {
            "bind": (wire.BindRequest, self.bind),
            "accumulate": (wire.AccumulateRequest, self.accumulate),
            "step": (wire.StepRequest, self.step),
            "checkpoint": (wire.CheckpointRequest, self.checkpoint),
        }
        own = [web.post("/load", self.load), web.get("/stats", self.stats)]
        return [*own, *(web.post(f"/{v}", self.verb(v, *how)) for v, how in verbs.items())]

    async def stats(self, _):
        return child_server.json_response(Stats(self.config.incarnation, 3, 2, 8, 90, 40, {}))

    def verb(self, name, kind, handle):
        async def answer(request):
            asked = msgspec.msgpack.decode(await request.read(), type=kind)
            reply = await self.timed(name, asked, lambda: handle(asked))
            return web.Response(body=msgspec.msgpack.encode(reply), status=409 if reply_refuses(reply) else 200)

        return answer

    async def timed(self, name, asked, handle):
        started = time.time()
        self.note(name, asked, started)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        reply = handle()
        self.intervals.add("train", getattr(asked, "policy", ""), started, time.time())
        return reply

    def note(self, name, asked, at):
        if path := os.environ.get("FAKE_CHILD_LOG"):
            fields = {k: v for k, v in msgspec.to_builtins(asked).items() if k != "rows"}
            line = {"verb": name, "at": at, "incarnation": self.config.incarnation, **fields}
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")

    async def load(self, request):
        asked = msgspec.json.decode(await request.read(), type=LoadRequest)
        held = await self.timed("load", asked, lambda: HeldVersion(asked.version, asked.digest))
        return child_server.json_response(held)

    def bind(self, asked):
        created = asked.version < 0
        version = max(asked.version, 0)
        digest = asked.digest or digest_of(asked.policy, 0)
        return wire.BindReply(asked.policy, version, digest, digest_of("state", version), created, TOKENIZER, {})

    def accumulate(self, asked):
        if asked.entropy_coef > 9:
            return wire.AccumulateReply({"loss_sum": float("nan")})
        if asked.accumulator.partition(":")[2] != self.config.incarnation:
            return wire.Refusal("other_accumulator", "meant for another epoch", asked.accumulator)
        return wire.AccumulateReply({"rows": len(asked.rows), "z": 1.0})

    def step(self, asked):
        digest = digest_of(asked.policy, asked.next_version)
        state = digest_of("state", asked.next_version)
        return wire.StepReply(asked.next_version, digest, state, not asked.micro_batches, 0.5, 0.001)

    def checkpoint(self, asked):
        return wire.CheckpointReply(f"/checkpoints/{asked.label}", 123, dict.fromkeys(asked.digests, ""))


def reply_refuses(reply):
    return isinstance(reply, wire.Refusal)


async def serve(config):
    child = FakeChild(config)
    with contextlib.ExitStack() as work:
        if how := os.environ.get("FAKE_CHILD_WORK"):
            work.enter_context(child.intervals.progress.work())
        if group := os.environ.get("FAKE_CHILD_CGROUP"):
            asyncio.get_running_loop().call_later(0.3, take_too_much, group)
        slowly = asyncio.create_task(beat(child.intervals.progress)) if how == "slow" else None
        await child_server.serve(config, child.routes(), child.intervals)
        if slowly is not None:
            slowly.cancel()


def take_too_much(group):
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write("0")
    bytearray(os.urandom(2**20) * 256)


async def beat(progress):
    while True:
        await asyncio.sleep(0.3)
        progress.beat()


def main():
    config = child_server.read_config()
    if life := float(os.environ.get("FAKE_CHILD_LIFE_S", "0")):
        threading.Timer(life, os._exit, [7]).start()
    if refusal := os.environ.get("FAKE_CHILD_CANNOT"):
        child_server.say(child_server.take_standard_output(), ChildFailed("engine_failed", refusal, "free memory"))
        os._exit(1)
    if words := os.environ.get("FAKE_CHILD_WORDS"):
        os.write(2, words.encode() + b"\n")
    if os.environ.get("FAKE_CHILD_STUBBORN"):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        threading.Event().wait()
    asyncio.run(serve(config))


if __name__ == "__main__":
    main()
