"""Findings that last: a figure near its threshold would otherwise change a verdict from one step to the next. Pure.

Invariant: a rule of curves is asked as of each of the newest steps. What it finds appears at once and goes when it was
found in none of them. With no more steps than a rule needs for one look, that look is the answer.
"""

from collections.abc import Iterator
from dataclasses import replace

from flexmarl.controlplane.telemetry.advisor.rules import RULES, Advisory, Facts, Severity, advise

CURVE_RULES = ("mismatch", "failed_episodes", "entropy_collapse", "dead_groups")
"""Rules that look at values of steps and at nothing else."""
WINDOW = 20
"""Newest values that one look of a rule takes into account."""
LOOKS = 10
"""Steps that are looked back: a finding goes when it was absent in so many."""
NEWEST = WINDOW + LOOKS
"""Newest values of a series that all looks together need."""
_PACE = "reward/team"
"""A series with a value for every step."""
_ORDER = (Severity.ALARM, Severity.WATCH, Severity.TIP)
_RULE_ORDER = [rule.__name__ for rule in RULES]
_Key = tuple[str, str]


def settled(facts: Facts) -> list[Advisory]:
    """Return a run's advisories, worst first, with those that only paused. Alarms silence tips."""
    found = {_key(one): one for one in advise(as_of(facts, 0))}
    for back in range(1, _looks(facts) + 1):
        for one in _curves(as_of(facts, back)):
            ago = f"{back} step{'' if back == 1 else 's'} ago"
            found.setdefault(_key(one), replace(one, basis=f"{one.basis}, {ago}"))
    return _ranked(list(found.values()))


def as_of(facts: Facts, back: int) -> Facts:
    """What was known some steps ago."""
    series = {
        key: replace(ends, newest=ends.newest[back : back + WINDOW], points=ends.points - back)
        for key, ends in facts.series.items()
    }
    return replace(facts, series=series)


def _looks(facts: Facts) -> int:
    """How many steps can be looked back with whole windows."""
    pace = facts.series.get((_PACE, "", "mean"))
    return min(LOOKS, max(0, len(pace.newest) - WINDOW)) if pace else 0


def _curves(facts: Facts) -> Iterator[Advisory]:
    return (one for rule in RULES if rule.__name__ in CURVE_RULES for one in rule(facts))


def _ranked(found: list[Advisory]) -> list[Advisory]:
    if any(one.severity is Severity.ALARM for one in found):
        found = [one for one in found if one.severity is not Severity.TIP]
    return sorted(found, key=lambda one: (_ORDER.index(one.severity), _RULE_ORDER.index(one.rule), one.agent))


def _key(one: Advisory) -> _Key:
    return one.rule, one.agent
