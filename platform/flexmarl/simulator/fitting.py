"""How fast a run's machines were: the models' constants, read off what the run recorded, the same for all alternatives.

What is fitted: seconds per token of a lone reply and how far a batch slows it; seconds per trained token and per
micro-batch; optimizer step, swap, load of weights; what a turn takes beside its engine. What is not: the delays of the
platform, which are declared here.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from flexmarl.simulator.recorded import RecordedEpisode, RecordedTurn
from flexmarl.simulator.scenario import Delays, EngineModel, Machine, TrainerModel

PLATFORM = Delays(report=0.02, decide=0.003, hop=0.01, pick_up=0.02, start=3.0)
"""Delays of the platform's own processes on one machine: those that predictions are checked against real runs with."""
_UNBOUND = 1e6


class BusyTime(NamedTuple):
    """A closed interval of a device."""

    device: str
    phase: str
    """rollout, train, step, load, bind, suspend, ..."""
    seconds: float
    tokens: int


class Fit(NamedTuple):
    machine: Machine
    own_wait_s: float
    """What a turn takes beside its engine's work."""
    concurrency: float
    """Replies at once on an engine, while episodes play."""
    decode_tokens_s: float
    """Reply tokens a second of one engine that generates."""


def fitted(
    episodes: Sequence[RecordedEpisode], turns: Sequence[RecordedTurn], busy: Iterable[BusyTime], alone_s: float
) -> Fit:
    """Read the constants off a record.

    Turns and intervals are of the same stretch of the run; `alone_s` is a token of the quickest replies of the whole
    run, which are taken for some that had their engine for themselves.
    """
    by_phase: dict[str, list[BusyTime]] = {}
    for one in busy:
        by_phase.setdefault(one.phase, []).append(one)
    engine, own_wait_s, concurrency, rate = _engine(episodes, turns, by_phase.get("rollout", []), alone_s)
    load = _mean(by_phase.get("load"), engine.load)
    machine = Machine(engine=engine.model_copy(update={"load": load}), trainer=_trainer(by_phase), delays=PLATFORM)
    return Fit(machine, own_wait_s, concurrency, rate)


def _engine(
    episodes: Sequence[RecordedEpisode], turns: Sequence[RecordedTurn], busy: Sequence[BusyTime], alone_s: float
) -> tuple[EngineModel, float, float, float]:
    """Fit a step of b replies, `token * (1 + (b - 1) / batch)`, to a lone reply and to the rate at the mean b."""
    seconds, made = sum(one.seconds for one in busy), sum(one.tokens for one in busy)
    engines = max(1, len({one.device for one in busy}))
    concurrency = max(1.0, sum(turn.latency_s for turn in turns) / _playing_s(episodes) / engines)
    observed = made / seconds if seconds > 0.0 else 0.0
    rate = observed or concurrency / fmean(turn.latency_s / max(1, turn.reply) for turn in turns)
    token = max(1e-6, min(alone_s, concurrency / rate))  # a lone reply cannot take longer than one among others
    step = concurrency / rate
    batch = (concurrency - 1.0) / (step / token - 1.0) if step > token * (1.0 + 1e-6) else _UNBOUND
    model = EngineModel(token=token, batch=max(1e-3, min(_UNBOUND, batch)), prefill=1e9, slots=65_536)
    mean_reply = fmean(turn.reply for turn in turns)
    own_wait_s = max(0.0, fmean(turn.latency_s for turn in turns) - mean_reply * step)
    return model, own_wait_s, concurrency, rate


def _playing_s(episodes: Sequence[RecordedEpisode]) -> float:
    """Return for how long any episode played."""
    total, until = 0.0, float("-inf")
    for one in sorted(episodes, key=lambda episode: episode.began):
        total += max(0.0, one.ended - max(one.began, until))
        until = max(until, one.ended)
    return max(1e-6, total)


def _trainer(by_phase: dict[str, list[BusyTime]]) -> TrainerModel:
    own = TrainerModel()
    token, micro_batch = _line([(one.tokens, one.seconds) for one in by_phase.get("train", [])], own)
    swaps = [*by_phase.get("suspend", []), *by_phase.get("bind", [])]
    return TrainerModel(
        token=token,
        micro_batch=micro_batch,
        step=_mean(by_phase.get("step"), own.step),
        swap=_mean(swaps, own.swap),
        create=_mean(by_phase.get("bind"), own.create),
        form=own.form,
    )


def _line(points: Sequence[tuple[int, float]], own: TrainerModel) -> tuple[float, float]:
    """Return seconds per token and per micro-batch: a straight line through what gradients took."""
    if not points:
        return own.token, own.micro_batch
    middle_x, middle_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread > 0.0 else 0.0
    slope = min(max(0.0, slope), middle_y / middle_x if middle_x > 0 else 0.0)
    if slope == 0.0 and middle_x > 0:  # micro-batches of one size say nothing of the slope: all of it is by tokens
        return middle_y / middle_x, 0.0
    return slope, max(0.0, middle_y - slope * middle_x)


def _mean(rows: Sequence[BusyTime] | None, otherwise: float) -> float:
    """Return the median seconds: what is done a few times may have met a busy machine once."""
    return median(one.seconds for one in rows) if rows else otherwise
