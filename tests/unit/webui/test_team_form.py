"""The form of a team, made from the schema: seats and settings of every graph, what is written, and what is wrong."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field as Setting
from pydantic import TypeAdapter

from flexmarl.contracts.resolve import load_templates
from flexmarl.contracts.specification.graphs import GRAPH, AnySeat, GraphOptions, SeatOptions
from flexmarl.contracts.specification.team import AgentSpec, PolicySpec
from webui.forms.fields import Field
from webui.forms.team_form import (
    NO_GRAPH,
    SeatForm,
    TeamForm,
    graph_nodes,
    kinds_for_page,
    slots_of,
    team_form,
    team_schema,
)
from webui.forms.team_of_run import team_of

ROOT = Path(__file__).resolve().parents[3]
TEAMS = {name: team_of(one.spec) for name, one in load_templates().items()}


def fields_of(form: TeamForm) -> dict[str, Field]:
    seats = (seat for slot in form.slots for seat in slot.seats)
    inside = (field for seat in seats for field in (*(f for part in seat.parts for f in part.fields), *seat.more))
    listed = [*form.fields, *inside]
    assert len({field.pointer for field in listed}) == len(listed), "a setting stands in one place"
    return {field.pointer: field for field in listed}


def seat_of(form: TeamForm, name: str) -> SeatForm:
    return next(seat for slot in form.slots for seat in slot.seats if seat.name == name)


@pytest.mark.parametrize("name", TEAMS)
def test_every_team_of_a_template_has_its_seats_and_no_setting_stands_twice(name: str) -> None:
    settings = TEAMS[name]
    form = team_form(settings, {})
    assert set(form.roles) == set(settings["agents"])
    found = fields_of(form)
    for role in form.roles:
        assert f"/agents/{role}/sampling/temperature" in found
        assert found[f"/agents/{role}/policy"].kind == "acts"


@pytest.mark.parametrize("kind", GRAPH.variants())
def test_every_setting_of_a_graph_its_seats_an_agent_and_a_policy_has_a_field(kind: str) -> None:
    (graph,) = (options for name, options in GRAPH.variants().items() if name == kind)
    seats = [seat.name for seat in GRAPH.options(kind).seats()]
    form = team_form({"graph": {"type": kind}, "agents": {}}, {})
    assert form.roles == seats, "those that it has without a word"
    found = fields_of(form)
    slots = {slot.slot.name for slot in form.slots}
    assert set(graph.model_fields) == slots | {"type"} | {field.name for field in form.fields}
    for slot in form.slots:
        for seat in slot.seats:
            of_graph = {field.name for field in seat.parts[0].fields}
            assert of_graph == set(slot.slot.seat["properties"])
            inside = {pointer.split("/")[3] for pointer in found if pointer.startswith(f"/agents/{seat.name}/")}
            assert inside == set(AgentSpec.model_fields) - {"external"}
            of_policy = {pointer.split("/")[3] for pointer in found if pointer.startswith(f"/policies/{seat.name}/")}
            assert of_policy == set(PolicySpec.model_fields)


def test_a_graph_of_a_plug_in_needs_no_word_here() -> None:
    class Panel(GraphOptions):
        type: Literal["panel"] = "panel"
        members: tuple[AnySeat, ...] = Setting(default=(SeatOptions(name="first"),), min_length=1, max_length=4)
        chair: AnySeat | None = None
        votes: int = Setting(default=3, ge=1)

    schema = TypeAdapter(Panel).json_schema()
    members, chair = slots_of(schema, schema)
    assert (members.name, members.many, members.least, members.most) == ("members", True, 1, 4)
    assert members.plain == ({"name": "first"},)
    assert (chair.name, chair.many, chair.least, chair.plain) == ("chair", False, 0, ())


def test_the_page_is_told_where_seats_are() -> None:
    told = kinds_for_page(team_schema())
    assert list(told) == list(GRAPH.variants()) == list(graph_nodes(team_schema()))
    debaters, judge = told["debate"]["slots"]
    assert (debaters["name"], debaters["least"], judge["name"], judge["least"]) == ("debaters", 2, "judge", 0)
    assert debaters["has"] == ["name", "sees", "reward"]
    assert set(told["debate"]["settings"]) == {"tokens", "rounds"}


def test_an_empty_field_says_what_holds_then() -> None:
    agents = {"solver": {"definition": {"name": "careful"}}, "reviser": {"sampling": {"temperature": 0.5}}}
    found = fields_of(team_form({"graph": {"type": "sequence"}, "agents": agents}, {"careful": 3}))
    rounds = found["/graph/rounds"]
    assert (rounds.value, rounds.absent, rounds.low, rounds.high) == (None, "1 (default)", 1, 8)
    assert found["/agents/solver/sampling/temperature"].absent == "as in careful"
    assert found["/agents/reviser/sampling/temperature"].value == 0.5
    version = found["/agents/solver/definition/version"]
    assert (version.options, version.absent) == (("3", "2", "1"), "newest (3)")
    named = found["/agents/solver/definition/name"]
    odd = fields_of(team_form({"agents": {"a": {"definition": {"name": "odd"}}}}, {"careful": 3}))
    assert (named.options, odd["/agents/a/definition/name"].options) == (("careful",), ()), "whether it is defined"


def test_a_policy_that_seats_share_is_set_at_one_of_them() -> None:
    agents = {
        "a": {},
        "b": {"policy": "a"},
        "c": {"policy": "common"},
        "d": {"policy": "common"},
        "e": {"external": {}},
    }
    form = team_form({"agents": agents}, {})
    titles = {name: seat_of(form, name).parts[-1].title for name in agents}
    assert titles == {
        "a": "Policy a",
        "b": "Policy a, set at a",
        "c": "Policy common",
        "d": "Policy common, set at c",
        "e": "External model",
    }
    assert "/policies/common/precision" in fields_of(form)
    assert {"/agents/e/external/url", "/agents/e/external/timeout_s"} <= set(fields_of(form))


def test_wrong_values_are_shown_as_they_were_written() -> None:
    wrong = {
        "graph": {"type": "debate", "debaters": ["a", {"name": "b", "reward": "mine"}], "rounds": "two"},
        "agents": {"a": {"trainable": "no", "sampling": 3}, "b": {}},
        "policies": {"a": {"tuning": {"type": "half"}, "devices": 2}},
    }
    found = fields_of(team_form(wrong, {}))
    for pointer in ("/graph/rounds", "/graph/debaters/1/reward", "/agents/a/trainable", "/agents/a/sampling"):
        assert found[pointer].kind == "json", pointer
    assert found["/policies/a/tuning/type"].options == ("full", "lora", "half")
    assert found["/policies/a/devices"].value == 2
    ring = team_form({"graph": {"type": "ring", "size": 3}, "agents": {"a": {}}}, {})
    assert (ring.known, ring.fields[0].value) == (False, {"type": "ring", "size": 3})
    assert team_form({"agents": {"a": {}}}, {}).kind == NO_GRAPH
    team_form({"graph": 3, "agents": [], "policies": 1}, {})


WHOLE = {
    "graph": {"type": "debate", "debaters": ["a", {"name": "b", "sees": ["a"]}], "judge": {"name": "j"}, "rounds": 2},
    "agents": {"a": {"definition": {"name": "x", "version": 1}, "sampling": {"stop": ["."]}}, "b": {"policy": "a"},
               "j": {"external": {"url": "u"}}},
    "policies": {"a": {"model": {"type": "factory"}, "tuning": {"type": "lora"}, "devices": {"least": 1}}},
}  # fmt: skip


def spoiled(node: object, wrong: object) -> Iterator[object]:
    """Return copies of a value, each with one part of it replaced."""
    yield wrong
    if isinstance(node, dict):
        for key, one in node.items():
            yield from ({**node, key: other} for other in spoiled(one, wrong))
    elif isinstance(node, list):
        for index, one in enumerate(node):
            yield from ([*node[:index], other, *node[index + 1 :]] for other in spoiled(one, wrong))


@pytest.mark.parametrize("wrong", [None, 3, "odd", [1], {"type": ["a"]}, {"name": {}}], ids=repr)
def test_whatever_was_written_there_is_a_form(wrong: object) -> None:
    forms = [team_form(one, {"x": 2}) for one in spoiled(WHOLE, wrong) if isinstance(one, dict)]
    assert len(forms) > 20


def test_the_page_about_teams_names_what_the_form_has() -> None:
    text = (ROOT / "docs/teams.md").read_text(encoding="utf-8")
    steps = text.partition("## Describe a team in a form")[2].partition("\n## ")[0]
    team = {"graph": {"type": "debate"}, "agents": {"debater_1": {"definition": {"name": "careful"}}}}
    form = team_form(team, {"careful": 1})
    has = {field.label for field in fields_of(form).values()} | {title for _, title in form.kinds}
    has |= {f"Add {slot.one}" for slot in form.slots}
    templates = (ROOT / "webui/templates/webui").rglob("*.html")
    shown = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in templates)
    named = {" ".join(name.split()) for name in re.findall(r"\*([A-Z][^*]+)\*", steps)}
    assert len(named) > 20
    assert {name for name in named if name not in has and name not in shown} - {"Undo"} == set()
