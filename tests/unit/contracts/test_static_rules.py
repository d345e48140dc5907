"""Static trainer devices: what is accepted holds everybody, and what is refused is told with something that works."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.orchestrator.allocation.allocator import spread_once
from flexmarl.orchestrator.allocation.types import AllocationSnapshot, PolicyNeeds


def spec(sizes: dict[str, int], homes: dict[str, Any], devices: int, places: int | None = None) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {
            "agents": {name: {} for name in sizes},
            "environment": {"type": "kitchen", "cooks": len(sizes), "turns": 24},
            "policies": {name: {"devices": size} for name, size in sizes.items()},
            "resources": {"training_devices": devices, "trainer_policies": places},
            "mechanisms": {"allocation": {"type": "static", "homes": homes}},
        }
    )


def broken(own: ExperimentSpec) -> list[Problem]:
    words = ("/mechanisms/allocation", "/resources/training_devices", "/policies")
    return [problem for problem in broken_rules(own) if problem.pointer.startswith(words)]


def team(*sizes: int) -> dict[str, int]:
    return {f"cook_{i + 1}": size for i, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("sizes", "homes", "devices", "places", "refused"),
    [
        (team(2, 1), {"cook_1": (0, 1)}, 2, None, "/resources/training_devices"),
        (team(2, 1), {"cook_1": (0, 1), "cook_2": (1,)}, 3, None, "/mechanisms/allocation/homes/cook_2"),
        (team(1, 2), {"cook_1": (1,), "cook_2": (0, 1)}, 3, None, "/mechanisms/allocation/homes/cook_2"),
        (team(1, 1), {"cook_1": (0,), "cook_2": (0,)}, 2, 1, "/mechanisms/allocation/homes/cook_2"),
        (team(1, 1, 1), {"cook_1": (0,), "cook_2": (1,)}, 2, 1, "/resources/training_devices"),
        (team(1, 2), {"cook_1": (1,)}, 2, None, "/resources/training_devices"),
        (team(1, 1), {"cook_1": (0, 0)}, 2, None, "/mechanisms/allocation/homes/cook_1"),
    ],
)
def test_what_cannot_be_held_is_refused(
    sizes: dict[str, int], homes: dict[str, Any], devices: int, places: int | None, refused: str
) -> None:
    assert [problem.pointer for problem in broken(spec(sizes, homes, devices, places))] == [refused]


def test_places_beside_those_who_chose_theirs_count() -> None:
    assert not broken(spec(team(1, 1, 1), {"cook_1": (0,)}, 1))
    assert not broken(spec(team(1, 1, 2), {"cook_1": (2,)}, 3, places=2))
    [problem] = broken(spec(team(1, 1, 1, 2), {"cook_1": (0,)}, 3, places=1))
    assert problem.hint.startswith("Set 5,")


def test_a_number_that_no_run_may_have_is_not_proposed() -> None:
    [problem] = broken(spec(team(40, 40), {}, 64))
    assert problem.code == "too_few_devices"
    assert not any(word.isdigit() for word in problem.hint.replace(",", " ").split())


@st.composite
def runs(draw: st.DrawFn) -> ExperimentSpec:
    sizes = team(*draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=2, max_size=5)))
    devices = draw(st.integers(max(sizes.values()), 7))
    named = draw(st.lists(st.sampled_from(list(sizes)), unique=True, max_size=3))
    choice = {name: st.permutations(range(devices)).map(lambda p, n=name: tuple(p[: sizes[n]])) for name in named}
    homes = {name: draw(chosen) for name, chosen in choice.items()}
    return spec(sizes, homes, devices, draw(st.sampled_from([None, 1, 2])))


@settings(max_examples=300, deadline=None)
@given(runs())
def test_whatever_passes_is_bound_as_a_whole_where_it_was_chosen(own: ExperimentSpec) -> None:
    found = broken(own)
    if any(problem.pointer == "/resources/training_devices" for problem in found):
        [problem] = found
        needed = int(problem.hint.split(",")[0].removeprefix("Set "))
        assert everybody_bound(own.model_copy(update=_with_devices(own, needed))), "the proposed number does not do"
        assert not everybody_bound(own), "it was refused, and could be done"
    elif not found:
        assert everybody_bound(own)


def _with_devices(own: ExperimentSpec, devices: int) -> dict[str, object]:
    return {"resources": own.resources.model_copy(update={"training_devices": devices})}


def everybody_bound(own: ExperimentSpec) -> bool:
    """Bind as the core does, and tell whether all are bound, and those that chose devices on these."""
    homes = own.mechanisms.allocation.homes
    standings = {
        name: PolicyNeeds(
            has_work=True, seconds=0.0, gang=(), still=False, least=own.policies[name].devices.least,
            waiting_since=0.0, homes=homes.get(name, ()),
        )
        for name in own.trainable_policies()
    }  # fmt: skip
    devices = tuple(range(own.resources.training_devices))
    bound = spread_once(AllocationSnapshot(0.0, standings, devices, own.resources.trainer_policies))
    gangs = {change.policy: change.gang for change in bound}
    return set(gangs) == set(standings) and all(set(gangs[name]) == set(chosen) for name, chosen in homes.items())
