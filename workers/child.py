"""The contract between a device worker and the child process it hosts.

The parent writes one JSON line (`ChildConfig`) to the child's standard input and keeps it open: end of file means that
the parent is gone, and the child exits. The child binds a free loopback (or given) address and answers with one JSON
line (`ReadyLine`, or `ChildFailed`) on standard output; everything else it says goes to standard error as log lines.
All its HTTP routes ask for `Authorization: Bearer <secret>`. Both kinds of child answer `GET /health` and `POST
/intervals`.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator

import msgspec


class ChildConfig(msgspec.Struct, forbid_unknown_fields=True):
    use: str
    """`engine` or `trainer`."""
    run_id: int
    lease_id: int
    fence: int
    incarnation: str
    device: str
    """torch device: `cpu`, `cuda:0`."""
    threads: int
    host: str
    """Address to bind, usually 127.0.0.1."""
    secret: str
    home: str
    """FLEXMARL_HOME: state plane, checkpoints and logs live below it."""
    spec: dict[str, object]
    """Resolved ExperimentSpec of the run."""
    model_roots: tuple[str, ...] = ()
    """Folders below which it may read models and adapters."""
    devices: int = 1
    """Devices of an engine, the first of which is `device`: so many ranks compute its model together."""
    python: str = ""
    """Interpreter with the product's environment, for a child that runs with another one; empty: its own."""

    @property
    def ordered(self) -> bool:
        """Whether the run promises bits: then nothing may depend on the schedule, nor on the size of the device."""
        mechanisms = self.spec.get("mechanisms")
        return isinstance(mechanisms, dict) and mechanisms.get("ordered") is True

    @property
    def own_threads(self) -> int:
        """Threads to compute with: kernels share sums out among threads, so an ordered run has one everywhere."""
        return 1 if self.ordered else self.threads


class ReadyLine(msgspec.Struct):
    port: int
    incarnation: str
    rendezvous: int = 0
    """Port where the ranks of gangs meet that this child leads; 0: it leads none."""


class ChildFailed(msgspec.Struct):
    """Instead of the ready line: this child cannot work, and no other life of it could. Its process ends at once."""

    code: str
    detail: str
    hint: str
    """What to do about it."""


class ChildHealth(msgspec.Struct):
    """Answer of `GET /health`: by it the host tells a long piece of work from one that hangs."""

    use: str
    incarnation: str
    lease_id: int
    working: bool
    """Something was asked for that is not done yet."""
    beats: int
    """Another number after each piece of work: a decode step, a forward and backward pass, a version brought in."""


class WorkProgress:
    """Work that is open and pieces of it that were done, told by any thread."""

    def __init__(self) -> None:
        self.beats = 0
        self._open = 0
        self._count = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def working(self) -> bool:
        return self._open > 0

    def beat(self) -> None:
        """Say that a piece of work is done."""
        self.beats = next(self._count)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Count what was asked for as open, until the block ends."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


class ChildInterval(msgspec.Struct):
    """A closed busy interval of the child's device. `ord` is gapless per incarnation."""

    ord: int
    phase: str
    """`rollout`, `load`, `sleep`, `wake` for engines; `bind`, `train`, `step`, `suspend`, `resume`, `checkpoint` for
    trainers."""
    policy: str
    t0: float
    t1: float
    tokens: int = 0
    bytes: int = 0
    """What was moved: the length of a suspended state, or what an engine let go to sleep."""
    steps: int = 0
    """Decode steps of an engine: how fast it is depends on tokens per step."""
    prompts: int = 0
    """Prompt tokens that an engine was handed before one of these steps."""
    cpu: float = 0.0
    """Processor seconds of the child in it, where it worked by itself all the while; 0: not told."""


class IntervalsRequest(msgspec.Struct, forbid_unknown_fields=True):
    acknowledged: int = -1
    """Highest `ord` the node has stored; the child forgets up to it."""
    last: bool = False
    """The child is about to be stopped: the newest interval comes too, though it might have grown."""


class IntervalLog:
    """Closed intervals that the node has not stored yet. Bounded: the oldest are dropped when nobody asks for hours.

    Short neighbours of the same phase and policy are merged, so that a busy child makes a few rows a second.
    """

    LIMIT = 100_000
    MERGE_GAP_S = 0.002
    MERGE_UP_TO_S = 0.25
    """Merging stops here: a longer interval is closed and shown."""

    def __init__(self) -> None:
        self.progress = WorkProgress()
        self._next = 0
        self._closed: list[ChildInterval] = []
        self._lock = threading.Lock()

    def add(
        self, phase: str, policy: str, t0: float, t1: float, tokens: int = 0, bytes: int = 0, steps: int = 0,
        prompts: int = 0, cpu: float = 0.0,
    ) -> None:  # fmt: skip
        """Record one busy stretch, `t0 <= t1` in seconds since the epoch."""
        self.progress.beat()
        with self._lock:
            last = self._closed[-1] if self._closed else None
            if (
                last is not None
                and last.ord == self._next - 1
                and (last.phase, last.policy) == (phase, policy)
                and t0 - last.t1 <= self.MERGE_GAP_S
                and last.t1 - last.t0 < self.MERGE_UP_TO_S
            ):
                last.t1, last.tokens, last.bytes = t1, last.tokens + tokens, last.bytes + bytes
                last.steps, last.prompts, last.cpu = last.steps + steps, last.prompts + prompts, last.cpu + cpu
                return
            self._closed.append(ChildInterval(self._next, phase, policy, t0, t1, tokens, bytes, steps, prompts, cpu))
            self._next += 1
            del self._closed[: -self.LIMIT]

    def drain(self, acknowledged: int, now: float) -> list[ChildInterval]:
        """Forget what the node has stored and return the rest, without the newest while it may still grow."""
        with self._lock:
            self._closed = [interval for interval in self._closed if interval.ord > acknowledged]
            if self._closed and now - self._closed[-1].t1 <= self.MERGE_GAP_S:
                return self._closed[:-1]
            return list(self._closed)

    def flush(self) -> list[ChildInterval]:
        """Return everything, the newest included; for a child about to exit."""
        return list(self._closed)
