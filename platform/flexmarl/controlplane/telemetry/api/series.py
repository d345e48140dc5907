"""Series of runs over REST: catalogue, points, several runs at once, export, and what scripts add."""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson
from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import giving_back
from flexmarl.controlplane.common.times import from_epoch, rfc3339
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry.api import series_shapes as shapes
from flexmarl.controlplane.telemetry.api.ndjson import NdjsonParser
from flexmarl.controlplane.telemetry.charts import ingest, series
from flexmarl.store.telemetry.metrics import SeriesWindow

_NAMES = Parameter("names", "Comma-separated names of series.")
_AGENT = Parameter("agent", "Role or policy; empty for the team; all when absent.")
_COLUMNS = ("name", "agent", "stat", "step", "time", "samples", "value")
_MEDIA = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}


class SeriesView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_series", responses=listing(shapes.SeriesSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List the series of a run: name, agent and stat with unit, meaning, range and axes."""
        rows = series.catalogue(find_run(actor_of(request), run_id))
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class SeriesDataView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        replace(_NAMES, required=True),
        _AGENT,
        Parameter("stat", "Stat; all when absent."),
        Parameter("x", "Axis of `x`, `from` and `to`.", choices=series.AXES),
        Parameter("from", "Smallest x.", "number"),
        Parameter("to", "Largest x.", "number"),
        Parameter("max_points", f"Points or buckets per series, 4 to {series.MAX_POINTS}.", "integer"),
        Parameter("buckets", "Answer smallest, largest and last value per bucket instead of points.", "boolean"),
    )

    @extend_schema(operation_id="runs_series_data", responses=shapes.SeriesDataSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read points of series, thinned without losing an extreme."""
        names = _names(self.values)
        if not names:
            raise _refuse("names", "required", "names is missing.", "Comma-separated names from the catalogue.")
        points = self.values.get("max_points", series.DEFAULT_POINTS)
        if not 4 <= points <= series.MAX_POINTS:
            detail = f"max_points={points} is not between 4 and {series.MAX_POINTS}."
            raise _refuse("max_points", "out_of_range", detail, f"Send {series.DEFAULT_POINTS}, or omit it.")
        values = self.values
        window = SeriesWindow(
            values.get("x", "step"), values.get("from"), values.get("to"), points, values.get("buckets", False)
        )
        asked = series.SeriesQuery(names, values.get("agent"), values.get("stat"), window)
        return Response(series.answer(find_run(actor_of(request), run_id), asked))


class CompareView(ApiView):
    scopes = {"POST": Scope.RUNS_READ}
    stores_answers = False

    @extend_schema(
        operation_id="series_compare", request=shapes.CompareSerializer, responses=shapes.CompareDataSerializer
    )
    def post(self, request: Request) -> Response:
        """Read the same series of several runs."""
        body = shapes.CompareSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        runs = [find_run(actor_of(request), reference) for reference in dict.fromkeys(given["runs"])]
        window = SeriesWindow(given["x"], given["from"], given["to"], given["max_points"], given["buckets"])
        return Response(series.compare(runs, series.SeriesQuery(given["names"], given["agent"], given["stat"], window)))


class SeriesExportView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (_NAMES, _AGENT, Parameter("format", "Format of the answer.", choices=("csv", "ndjson")))

    @extend_schema(
        operation_id="runs_series_export",
        responses={(200, "text/csv"): OpenApiTypes.STR, (200, "application/x-ndjson"): OpenApiTypes.STR},
    )
    def get(self, request: Request, run_id: str) -> StreamingHttpResponse:
        """Stream every point of some series, or of all, as CSV or as one JSON object per line."""
        run = find_run(actor_of(request), run_id)
        kind = self.values.get("format", "csv")
        write = _csv if kind == "csv" else _ndjson
        chunks = series.export(run, _names(self.values), self.values.get("agent"))
        text = _written(chunks, write, head=kind == "csv")
        body = _awaited(text) if isinstance(request._request, ASGIRequest) else text
        answer = StreamingHttpResponse(body, content_type=_MEDIA[kind])
        answer["Content-Disposition"] = f'attachment; filename="{run.key}-series.{kind}"'
        return answer


class SeriesBatchView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}
    parser_classes = (NdjsonParser,)
    rate_class = "ingest"

    @extend_schema(
        operation_id="runs_series_batch",
        request={"application/x-ndjson": shapes.PointLineSerializer},
        responses=shapes.StoredBatchSerializer,
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Add points of a script's own series: one JSON object per line, gzip allowed, all lines or none."""
        actor = actor_of(request)
        lines = request.data
        return Response(ingest.add_points(actor, find_run(actor, run_id), lines if isinstance(lines, list) else []))


def _names(values: Mapping[str, Any]) -> list[str]:
    return [name for name in values.get("names", "").split(",") if name]


def _written(
    chunks: Iterator[list[Mapping[str, Any]]], write: Callable[[list[Mapping[str, Any]]], bytes], *, head: bool
) -> Iterator[bytes]:
    if head:
        yield (",".join(_COLUMNS) + "\r\n").encode()
    for rows in chunks:
        yield write([{**row, "time": rfc3339(from_epoch(row["at"]))} for row in rows])


def _csv(rows: list[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, _COLUMNS, extrasaction="ignore").writerows(rows)
    return text.getvalue().encode()


def _ndjson(rows: list[Mapping[str, Any]]) -> bytes:
    """Write rows as lines; a value that is no finite number is null."""
    return b"".join(orjson.dumps({name: row[name] for name in _COLUMNS}) + b"\n" for row in rows)


async def _awaited(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read chunk after chunk; the connection is given back in between, however slow the reader is."""

    def following() -> bytes | None:
        return next(chunks, None)

    read = giving_back(following)
    while (chunk := await read()) is not None:
        yield chunk


def _refuse(name: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(name, code, detail, hint, "query")])
