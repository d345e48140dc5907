"""Log lines of a run over REST: pages by cursor, NDJSON of everything, and a stream that follows."""

from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.callers import caller_of
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry.live import logbook
from flexmarl.controlplane.telemetry.live.stream import LiveStream
from flexmarl.store.telemetry.logs import LogFilter

NDJSON = "application/x-ndjson"
LONGEST_TEXT = 200
FILTERS = (
    Parameter("level", "Level; may be repeated.", choices=logbook.LEVELS, many=True),
    Parameter("component", "Kind of process; may be repeated.", choices=logbook.COMPONENTS[1:], many=True),
    Parameter("agent", "Policy that the line speaks of."),
    Parameter("node", "Node that wrote it."),
    Parameter("q", "Words of the line or its fields."),
    Parameter("pattern", "POSIX regular expression on the line's text; case is ignored."),
    Parameter("since", "At or after this time.", "date-time"),
    Parameter("until", "At or before this time.", "date-time"),
)


class LogLineSerializer(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    at = serializers.DateTimeField()
    level = serializers.ChoiceField(logbook.LEVELS)
    component = serializers.CharField()
    agent = serializers.CharField(allow_blank=True)
    node = serializers.CharField(allow_blank=True)
    text = serializers.CharField(allow_blank=True)
    fields_ = serializers.DictField(source="fields")

    def get_fields(self) -> dict[str, Any]:
        """Name the member `fields`, which a serializer may not have as an attribute."""
        found = dict(super().get_fields())
        found["fields"] = serializers.DictField()
        found.pop("fields_")
        return found


class LogPageSerializer(serializers.Serializer[Any]):
    results = LogLineSerializer(many=True)
    next_after = serializers.IntegerField(help_text="`after` of the next request.")


def filter_of(values: dict[str, Any]) -> LogFilter:
    """Build a filter from parameters. Refuses texts that are too long."""
    for name in ("q", "pattern"):
        if len(values.get(name, "")) > LONGEST_TEXT:
            detail = f"{name} is longer than {LONGEST_TEXT} characters."
            raise ValidationProblem(detail, errors=[FieldError(name, "out_of_range", detail, "", "query")])
    since, until = values.get("since"), values.get("until")
    return LogFilter(
        levels=values.get("level"),
        components=values.get("component"),
        agent=values.get("agent"),
        node=values.get("node"),
        text=values.get("q"),
        pattern=values.get("pattern"),
        since=since.timestamp() if since else None,
        until=until.timestamp() if until else None,
    )


class LogsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        *FILTERS,
        Parameter("after", "Sequence number to continue after; without it, the newest lines.", "integer"),
        Parameter("before", "Sequence to end before.", "integer"),
        Parameter("limit", f"Lines per answer, 1 to {logbook.MAX_LIMIT}.", "integer"),
        Parameter("follow", "Stream new lines as NDJSON for at most ten minutes.", "boolean"),
    )

    @extend_schema(
        operation_id="runs_logs",
        responses={
            200: LogPageSerializer,
            (200, NDJSON): OpenApiResponse(OpenApiTypes.STR, "With follow=true: a line per log line."),
        },
    )
    def get(self, request: Request, run_id: str) -> Response | StreamingHttpResponse:
        """Read a run's log lines in their order, by cursor. `seq` grows as lines become visible: none is missed."""
        values = self.values
        limit = values.get("limit", logbook.DEFAULT_LIMIT)
        if not 1 <= limit <= logbook.MAX_LIMIT:
            detail = f"limit={limit} is not between 1 and {logbook.MAX_LIMIT}."
            raise ValidationProblem(detail, errors=[FieldError("limit", "out_of_range", detail, "", "query")])
        wanted, after = filter_of(values), values.get("after")
        actor = actor_of(request)
        run = find_run(actor, run_id)
        rows = logbook.log_lines(run, wanted, after=after, before=values.get("before"), limit=limit)
        if not values.get("follow"):
            return Response({"results": rows, "next_after": rows[-1]["seq"] if rows else after or 0})
        start = after if after is not None else (rows[0]["seq"] - 1 if rows else 0)
        answer = StreamingHttpResponse(
            LiveStream(str(actor.user_id), logbook.follow(caller_of(request), str(run.id), wanted, start)),
            content_type=NDJSON,
        )
        answer.headers["Cache-Control"] = "no-store"
        answer.headers["X-Accel-Buffering"] = "no"
        return answer


class LogExportView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = FILTERS

    @extend_schema(
        operation_id="runs_logs_export",
        responses={(200, NDJSON): OpenApiResponse(OpenApiTypes.STR, "A line per log line, oldest first.")},
    )
    def get(self, request: Request, run_id: str) -> StreamingHttpResponse:
        """Download all matching log lines as NDJSON."""
        run = find_run(actor_of(request), run_id)
        wanted = filter_of(self.values)
        logbook.log_lines(run, wanted, limit=1)  # a wrong pattern is refused before the download begins
        answer = StreamingHttpResponse(logbook.export(run, wanted), content_type=NDJSON)
        answer.headers["Content-Disposition"] = f'attachment; filename="{run.key}-logs.ndjson"'
        return answer
