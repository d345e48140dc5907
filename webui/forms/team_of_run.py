"""The team of a whole specification: what a new team begins with. Pure."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.specification.graphs import GraphOptions, SeatOptions
from flexmarl.contracts.specification.team_settings import TeamSettings


def team_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a team as a whole specification has them, without what is none of the team's own."""
    graph = spec["environment"].get("graph")
    settings = {"agents": spec["agents"], "policies": spec["policies"]}
    whole = TeamSettings.model_validate(settings if graph is None else {"graph": graph, **settings})
    short = _with_types(whole.model_dump(mode="json"), whole.model_dump(mode="json", exclude_defaults=True))
    return short if whole.graph is None else {**short, "graph": _with_seats(whole.graph)}


def _with_seats(graph: GraphOptions) -> dict[str, Any]:
    """Return a graph with all of its seats and what else is not as by default."""
    plain, shown = type(graph).model_fields, dict[str, Any]()
    for name, value in graph:
        if isinstance(value, SeatOptions):
            shown[name] = _seat(value)
        elif isinstance(value, tuple) and all(isinstance(one, SeatOptions) for one in value):
            shown[name] = [_seat(one) for one in value]
        elif name == "type" or value != plain[name].default:
            shown[name] = value
    return shown


def _seat(seat: SeatOptions) -> str | dict[str, Any]:
    shown = seat.model_dump(mode="json", exclude_defaults=True)
    return shown if len(shown) > 1 else seat.name


def _with_types(whole: Mapping[str, Any], short: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not as by default, with the types of which it is, which a variant has by default."""
    typed = {"type": whole["type"]} if "type" in whole else {}
    return typed | {
        name: _with_types(whole[name], value) if isinstance(value, Mapping) else value for name, value in short.items()
    }
