"""The size of a fleet by measured rates: it finds the size that a load needs, stays there, and follows a load that
changes."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from flexmarl.algorithms.scaling import FleetBounds, FleetRates, ScalingHistory, hold_s, resize, suffices
from flexmarl.contracts.specification.scaling import Scaling

OPTIONS = Scaling(type="dead_band", hold_s=60.0)


@dataclass
class Load:
    """What a step takes: to generate on one engine, at least for its longest reply, and to train."""

    generate_s: float
    train_s: float
    longest_s: float = 0.0
    gain: float = 1.0
    """Exponent of the number of engines by which generation is faster."""
    noise: float = 0.0
    overlaps: bool = True
    """Steps are played while the one before is trained."""

    def step(self, engines: int, rng: random.Random) -> tuple[float, float, float]:
        """Return the seconds of a step, and of waiting and of play in it."""
        generate = max(self.longest_s, self.generate_s / engines**self.gain) * rng.uniform(
            1 - self.noise, 1 + self.noise
        )
        train = self.train_s * rng.uniform(1 - self.noise, 1 + self.noise)
        seconds = max(generate, train) if self.overlaps else generate + train
        return seconds, seconds - train, generate


@dataclass
class Fleet:
    """A fleet that has any size at once, measured as the core measures it."""

    load: Load
    bounds: FleetBounds
    options: Scaling = OPTIONS
    seed: int = 0
    engines: int = 0
    now: float = 1000.0
    sizes: list[int] = field(default_factory=list)
    changed: list[tuple[int, int]] = field(default_factory=list)
    """Steps until then, and the new size."""

    def __post_init__(self) -> None:
        self.engines = self.engines or self.bounds.least
        self.rng, self.recent = random.Random(self.seed), []
        self.history = ScalingHistory(since=self.now)

    def play(self, steps: int) -> "Fleet":
        for _ in range(steps):
            step = self.load.step(self.engines, self.rng)
            self.now += step[0]
            self.recent = [*self.recent, step][-self.options.steps :]
            self.sizes.append(self.engines)
            self._decide()
        return self

    def _decide(self) -> None:
        sums = [sum(column) for column in zip(*self.recent, strict=True)]
        rates = FleetRates(self.engines, len(self.recent), *sums, groups=8 * len(self.recent))
        if not suffices(self.options, rates, self.history):
            return
        found = resize(self.options, self.bounds, rates, self.history, self.now)
        if found is None:
            return
        self.history = found.history
        if found.engines != self.engines:
            assert found.why, "a change says why"
            self.engines, self.recent = found.engines, []
            self.changed.append((len(self.sizes), found.engines))

    @property
    def reversals(self) -> int:
        sizes = [self.sizes[0], *(size for _, size in self.changed)]
        ways = [after > before for before, after in pairwise(sizes)]
        return sum(one != other for one, other in pairwise(ways))


def drawn(seed: int, noise: float) -> Fleet:
    """A load of any kind that stays what it is, and bounds."""
    rng = random.Random(seed)
    train = rng.uniform(5.0, 200.0)
    load = Load(
        generate_s=train * rng.uniform(0.2, 30.0),
        train_s=train,
        longest_s=train * rng.choice((0.0, 0.5, 1.05, 1.5)),
        gain=rng.uniform(0.6, 1.0),
        noise=noise,
        overlaps=rng.random() < 0.7,
    )
    least = rng.randint(1, 4)
    return Fleet(load, FleetBounds(least, least + rng.randint(1, 30)), seed=seed)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
def test_a_load_that_stays_what_it_is_ends_the_changes(noise: float) -> None:
    for seed in range(50):
        fleet = drawn(seed, noise).play(120)
        early = len(fleet.changed)
        fleet.play(400)
        assert early <= 8, f"seed {seed}: {fleet.changed}"
        assert len(fleet.changed) - early <= (4 if noise else 0), f"seed {seed}: {fleet.changed}"
        assert fleet.reversals <= 5, f"seed {seed}: {fleet.changed}"


def test_a_size_is_never_outside_its_bounds() -> None:
    for seed in range(100):
        fleet = drawn(seed, 0.5).play(60)
        fleet.load = drawn(seed + 1000, 0.5).load
        fleet.play(60)
        assert fleet.bounds.least <= min(fleet.sizes)
        assert max(fleet.sizes) <= fleet.bounds.most
        assert all(fleet.bounds.least <= size <= fleet.bounds.most for _, size in fleet.changed)


def test_a_fleet_has_what_its_trainers_consume_and_a_tenth_more_at_most() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        need = rng.uniform(1.0, 20.0)
        load = Load(generate_s=100.0 * need, train_s=100.0)
        for begins in (1, 32):
            fleet = Fleet(load, FleetBounds(1, 32), engines=begins).play(80)
            wait = max(0.0, 1.0 - fleet.engines / need)
            assert wait <= OPTIONS.grow_above + 1e-9, f"{need} engines are needed, {fleet.engines} are there"
            assert fleet.engines <= need * 1.1 + 1 + 1e-9, f"{need} engines are needed, {fleet.engines} are there"


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_load_that_changes_is_followed_within_the_steps_that_are_measured(factor: float) -> None:
    """A fleet that was calm follows after the steps that are measured, in either direction."""
    for seed in range(20):
        fleet = Fleet(Load(800.0, 100.0, noise=0.03), FleetBounds(1, 40), seed=seed).play(100)
        before, changes = fleet.engines, len(fleet.changed)
        fleet.load = Load(800.0 * factor, 100.0, noise=0.03)
        fleet.play(OPTIONS.steps)
        assert len(fleet.changed) > changes, f"seed {seed}"
        assert (fleet.engines > before) is (factor > 1.0)
        fleet.play(8 * OPTIONS.steps)
        assert 8 * factor * 0.85 <= fleet.engines <= 8 * factor * 1.25 + 1


def test_a_load_that_swings_is_followed_ever_more_seldom() -> None:
    """A load that asks for the one and the other at every look: each reversal waits twice as long as the one before."""
    fleet = Fleet(Load(800.0, 100.0), FleetBounds(1, 40))
    for _ in range(400):
        fleet.load = Load(100.0 if fleet.engines > 4 else 2000.0, 100.0)
        fleet.play(1)
    waits = [after - before for (before, _), (after, _) in pairwise(fleet.changed)]
    assert len(waits) >= 4, "it swings"
    assert len(waits) <= 12, fleet.changed
    assert waits[-1] >= 8 * OPTIONS.steps, fleet.changed


def test_engines_that_do_not_help_are_given_back_and_not_asked_for_again() -> None:
    """Steps that last as long as their longest reply: trainers wait whatever the fleet is."""
    fleet = Fleet(Load(400.0, 100.0, longest_s=150.0), FleetBounds(1, 32)).play(300)
    assert fleet.engines <= 5, fleet.changed
    assert len(fleet.changed) <= 6, fleet.changed
    fleet.load = Load(2000.0, 100.0, longest_s=150.0)
    fleet.play(200)
    assert fleet.engines >= 11, "what was learned holds no more for steps that last much longer"


def test_in_the_band_nothing_changes() -> None:
    rates = FleetRates(4, 5, 500.0, 37.5, 200.0, 40)
    assert resize(OPTIONS, FleetBounds(1, 8), rates, ScalingHistory(0.0), 1e6) is None


def test_the_published_rule() -> None:
    grown = resize(OPTIONS, FleetBounds(1, 64), FleetRates(6, 10, 1000.0, 269.0, 1000.0, 80), ScalingHistory(0.0), 1e6)
    assert grown is not None
    assert grown.engines == 9, "6 / (1 - 0.269), rounded up"
    shrunk = resize(OPTIONS, FleetBounds(1, 64), FleetRates(11, 10, 1000.0, 21.0, 700.0, 80), ScalingHistory(0.0), 1e6)
    assert shrunk is not None
    assert shrunk.engines == 9, "11 * 0.7 * 1.1, rounded up"
    assert "2.1%" in shrunk.why
    assert "70.0%" in shrunk.why


def test_a_change_waits_for_the_hold_and_a_reversal_for_twice_as_long() -> None:
    rates, bounds = FleetRates(4, 5, 100.0, 50.0, 100.0, 40), FleetBounds(1, 64)
    for direction, wait in ((0, 60.0), (1, 60.0), (-1, 200.0)):
        history = ScalingHistory(since=1000.0, direction=direction)
        assert hold_s(OPTIONS, rates, history, 1) == wait
        early, late = (resize(OPTIONS, bounds, rates, history, 1000.0 + wait + d) for d in (-0.1, 0.1))
        assert early is None
        assert late is not None
        assert late.engines == 8
