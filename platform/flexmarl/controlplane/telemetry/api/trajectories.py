"""Trajectories over REST: lists, facets, one with its turns, its tokens, its labels, its group, and all as lines."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api import pagination
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.pagination import Cursor, Page
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import giving_back
from flexmarl.controlplane.runs import labels
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry.api import trajectory_filters as filters
from flexmarl.controlplane.telemetry.api import trajectory_shapes as shapes
from flexmarl.controlplane.telemetry.trajectories import episode_groups, exports, trajectories
from flexmarl.controlplane.telemetry.trajectories.conversations import conversations_of
from flexmarl.controlplane.telemetry.trajectories.filters import ordering, wanted


def _run(request: Request, run_id: str) -> Run:
    return find_run(actor_of(request), run_id, Scope.TRAJECTORIES_READ)


class TrajectoriesView(ApiView):
    lists = True
    scopes = {"GET": Scope.TRAJECTORIES_READ}
    parameters = (*filters.FILTERS, filters.ORDERING, pagination.LIMIT, pagination.CURSOR)

    @extend_schema(operation_id="runs_trajectories", responses=listing(shapes.TrajectorySerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List training episodes of a run, or evaluations, newest first or in another order.

        A filter by an agent's score or by what was said examines 100,000 episodes per page: a page may then hold fewer
        rows than asked for while `next` goes on.
        """
        run = _run(request, run_id)
        limit = _limit(self.values)
        name = self.values.get("ordering", "-draw")
        cursor = _decode(self.values["cursor"], name) if "cursor" in self.values else None
        rows, before, behind = trajectories.page(
            run,
            wanted(run, self.values),
            ordering(self.values),
            limit=limit,
            position=tuple(cursor.values) if cursor else None,
            back=cursor is not None and cursor.back,
        )
        links = [
            Cursor(_columns(name), back, list(at)).encode() if at else None
            for at, back in ((behind, False), (before, True))
        ]
        return Response(pagination.envelope(request, Page(rows, links[0], links[1], None), rows))


def _limit(values: dict[str, Any]) -> int:
    limit = int(values.get("limit", pagination.DEFAULT_LIMIT))
    if not 1 <= limit <= pagination.MAX_LIMIT:
        detail = f"limit={limit} is not between 1 and {pagination.MAX_LIMIT}."
        raise ValidationProblem(detail, errors=[FieldError("limit", "out_of_range", detail, "", "query")])
    return limit


def _columns(name: str) -> str:
    """The columns a cursor of this ordering holds."""
    sign = "-" if name.startswith("-") else ""
    own = [] if name.lstrip("-") == "draw" else [name]
    return ",".join([*own, f"{sign}draw", f"{sign}member", f"{sign}attempt"])


def _decode(text: str, name: str) -> Cursor:
    cursor = pagination.decode(text, _columns(name))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in cursor.values)
    if not numbers or any(not isinstance(v, int) or abs(v) >= 2**31 for v in cursor.values[-3:]):
        detail = "The cursor is invalid here."
        raise ValidationProblem(detail, errors=[FieldError("cursor", "not_a_cursor", detail, "", "query")])
    return cursor


class FacetsView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}
    parameters = filters.FILTERS

    @extend_schema(operation_id="runs_trajectory_facets", responses=shapes.FacetsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Count what a filter matches: outcomes and scores of the newest 10,000 matching episodes."""
        run = _run(request, run_id)
        return Response(trajectories.facets(run, wanted(run, self.values)))


class TrajectoryView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}

    @extend_schema(operation_id="runs_trajectory", responses=shapes.TrajectoryDetailSerializer)
    def get(self, request: Request, run_id: str, trajectory_id: str) -> Response:
        """Read a trajectory with its turns as text, its group and its labels."""
        return Response(trajectories.detail(_run(request, run_id), trajectory_id))


class TurnTokensView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}
    parameters = (
        Parameter("agent", "Only turns of this role."),
        Parameter("turn", "Only turns of this number, among a role's from 0.", "integer"),
    )

    @extend_schema(operation_id="runs_trajectory_tokens", responses=shapes.TokensSerializer)
    def get(self, request: Request, run_id: str, trajectory_id: str) -> Response:
        """Read the token arrays of a trajectory: ids, texts, log-probabilities, versions, per turn."""
        role, turn = self.values.get("agent", ""), self.values.get("turn")
        return Response(trajectories.tokens(_run(request, run_id), trajectory_id, role, turn))


class LabelsView(ApiView):
    lists = True
    scopes = {"GET": Scope.TRAJECTORIES_READ, "PUT": Scope.RUNS_WRITE, "DELETE": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_trajectory_labels", responses=listing(shapes.LabelSerializer))
    def get(self, request: Request, run_id: str, trajectory_id: str) -> Response:
        """List the labels of a trajectory."""
        rows = trajectories.detail(_run(request, run_id), trajectory_id)["labels"]
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})

    @extend_schema(
        operation_id="runs_trajectory_label", request=shapes.LabelBodySerializer, responses=shapes.LabelSerializer
    )
    def put(self, request: Request, run_id: str, trajectory_id: str) -> Response:
        """Set the caller's label of a trajectory; it replaces the one they gave before."""
        body = shapes.LabelBodySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = _run(request, run_id)
        trajectories.must_exist(run, trajectory_id)
        key = trajectories.parse_id(trajectory_id)
        return Response(labels.put(actor_of(request), run, key, **body.validated_data))

    @extend_schema(operation_id="runs_trajectory_unlabel", responses={204: None})
    def delete(self, request: Request, run_id: str, trajectory_id: str) -> Response:
        """Take the caller's label away."""
        run = _run(request, run_id)
        labels.remove(actor_of(request), run, trajectories.parse_id(trajectory_id))
        return Response(status=204)


class GroupView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}

    @extend_schema(operation_id="runs_group", responses=shapes.GroupSerializer)
    def get(self, request: Request, run_id: str, draw: int) -> Response:
        """Read an episode group: its members with their advantages, and its statistics."""
        return Response(episode_groups.group(_run(request, run_id), draw))


class ComparedEpisodesView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}
    parameters = (Parameter("ids", "Comma-separated ids of 2 to 8 trajectories of one group.", required=True),)

    @extend_schema(operation_id="runs_trajectory_compare", responses=shapes.ComparedEpisodesSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Put members of a group side by side, aligned by turn, with what differs marked."""
        ids = [text for text in self.values.get("ids", "").split(",") if text]
        return Response(episode_groups.compare(_run(request, run_id), ids))


class ExportView(ApiView):
    scopes = {"GET": Scope.TRAJECTORIES_READ}
    parameters = (
        *filters.FILTERS,
        filters.ORDERING,
        Parameter("limit", f"Trajectories at most, 1 to {exports.MOST}; all when absent.", "integer"),
        Parameter("lines", "What a line is: `trajectories` when absent.", choices=("trajectories", "conversations")),
        Parameter("role", "With `lines=conversations`: only those of this role."),
    )

    @extend_schema(
        operation_id="runs_trajectory_export",
        responses={(200, "application/x-ndjson"): OpenApiResponse(OpenApiTypes.STR, "One trajectory per line.")},
    )
    def get(self, request: Request, run_id: str) -> StreamingHttpResponse:
        """Stream the trajectories that match, one JSON document with text, ids and log-probabilities per line.

        With `lines=conversations` a line is what one role read and said, as `messages` that a dataset is made of.
        """
        run = _run(request, run_id)
        most = self.values.get("limit")
        if most is not None and not 1 <= most <= exports.MOST:
            detail = f"limit={most} is not between 1 and {exports.MOST}."
            raise ValidationProblem(detail, errors=[FieldError("limit", "out_of_range", detail, "", "query")])
        batches = exports.batches(run, wanted(run, self.values), ordering(self.values), most, _lines_of(self.values))
        answer = StreamingHttpResponse(_lines(batches), content_type="application/x-ndjson")
        answer["Content-Disposition"] = f'attachment; filename="{run.key}-trajectories.ndjson"'
        return answer


def _lines_of(values: dict[str, Any]) -> exports.LinesOf | None:
    """Return what an episode is exported as; None: whole. Raises ValidationProblem."""
    role = values.get("role", "")
    if values.get("lines") == "conversations":
        return partial(conversations_of, role=role)
    if role:
        detail = "A role is chosen among conversations; add lines=conversations."
        raise ValidationProblem(detail, errors=[FieldError("lines", "required", detail, "", "query")])
    return None


async def _lines(batches: Any) -> AsyncIterator[bytes]:
    """Read one batch after the other; the connection is given back in between, however slow the reader is."""
    read = giving_back(lambda: next(batches, None))
    while (lines := await read()) is not None:
        yield lines
