"""Checkpoints over REST: listed, pinned, downloaded, and forked into new runs."""

from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import StrictSerializer, VersionedNameField, listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.registry.api.serializers import LanguageModelDetailSerializer
from flexmarl.controlplane.registry.queries import model_detail
from flexmarl.controlplane.runs import archives, checkpoints, forks, promotion, queries
from flexmarl.controlplane.runs.api.serializers import CloneSerializer, RunDetailSerializer
from flexmarl.controlplane.runs.api.views import detail
from flexmarl.controlplane.runs.forks import ForkSource

NEWEST = "newest"
STATES = ["whole", "missing", "damaged", "removing", "removed"]


class CheckpointPolicySerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    digest = serializers.CharField(help_text="Of the weights.")
    training_state = serializers.BooleanField(help_text="The optimizer's state is kept with them.")


class CheckpointSourceSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(help_text="checkpoint.")
    run = serializers.CharField(help_text="Key of the run.")
    step = serializers.IntegerField()


class CheckpointSerializer(serializers.Serializer[Any]):
    label = serializers.CharField(  # type: ignore[assignment]
        help_text="Which rule wanted it first: best or last."
    )
    step = serializers.IntegerField()
    versions = serializers.DictField(child=serializers.IntegerField())
    source = CheckpointSourceSerializer(  # type: ignore[assignment]
        help_text="Names it as `policies.<name>.model` of another run."
    )
    archive_url = serializers.CharField(allow_null=True, help_text="Its download; null when it is not whole.")
    node = serializers.CharField(allow_blank=True)
    size_bytes = serializers.IntegerField()
    facts = serializers.JSONField()
    state = serializers.ChoiceField(STATES, help_text="missing and damaged: by what its node found on its disk.")
    state_text = serializers.CharField(allow_blank=True, help_text="The problem, and the next step.")
    kept_by = serializers.ListField(
        child=serializers.ChoiceField(["last", "best", "every"]), help_text="Rules of `checkpoints` that keep it."
    )
    pinned = serializers.BooleanField()
    pinned_by = serializers.CharField(allow_blank=True)
    solved = serializers.FloatField(allow_null=True, help_text="Solved share in its evaluation.")
    team_score = serializers.FloatField(allow_null=True)
    policies = serializers.DictField(child=CheckpointPolicySerializer())
    created_at = serializers.DateTimeField()


class OriginSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField(help_text="Of this run.")
    run = serializers.JSONField(allow_null=True, help_text="The other run; null when the caller may not see it.")
    other_policy = serializers.CharField()
    version = serializers.IntegerField(help_text="Of the run that the weights come from.")
    step = serializers.IntegerField()
    checkpoint = serializers.BooleanField(help_text="Of the checkpoint after that step; else of the newest vector.")
    training_state = serializers.BooleanField(help_text="The optimizer state was copied too.")
    digest = serializers.CharField()


class MadeModelSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    revision = serializers.IntegerField()
    state = serializers.CharField()
    step = serializers.IntegerField()
    policy = serializers.CharField()
    digest = serializers.CharField(allow_blank=True)
    url = serializers.CharField()


class LineageSerializer(serializers.Serializer[Any]):
    origins = OriginSerializer(many=True, help_text="Where version 0 of its policies comes from.")
    copies = OriginSerializer(many=True, help_text="Runs that started from its versions.")
    models = MadeModelSerializer(many=True, help_text="Models that its checkpoints were made into.")


@extend_schema_field({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "enum": ["newest"]}]})
class StepField(serializers.Field[Any, Any, Any, Any]):
    """A step, or `newest`."""

    def to_internal_value(self, data: object) -> int | None:
        if data == NEWEST:
            return None
        if isinstance(data, int) and not isinstance(data, bool) and data >= 0:
            return data
        raise serializers.ValidationError(f"Send the step of a checkpoint, or {NEWEST}.", code="wrong_type")

    def to_representation(self, value: object) -> object:
        return value


class ForkSerializer(CloneSerializer):
    """What the new run begins with, and what it changes."""

    checkpoint = StepField(help_text="Step of the checkpoint; newest: the newest vector of a run that does not train.")
    take = serializers.ChoiceField(
        ["weights", "training_state"], default="weights", help_text="training_state: the optimizer goes on as well."
    )


class PromoteSerializer(StrictSerializer):
    name = VersionedNameField()
    policy = serializers.CharField(
        required=False, default="", max_length=64, help_text="May be left out where the checkpoint has one policy."
    )


class CheckpointsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_checkpoints", responses=listing(CheckpointSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List a run's checkpoints, those that were let go as well."""
        rows = checkpoints.listed(queries.find_run(actor_of(request), run_id))
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class CheckpointView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="checkpoints_read", responses=CheckpointSerializer)
    def get(self, request: Request, run_id: str, step: int) -> Response:
        """Read the checkpoint after a step."""
        return Response(checkpoints.one(queries.find_run(actor_of(request), run_id), step))


class PinView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="checkpoints_pin", request=None, responses=CheckpointSerializer)
    def post(self, request: Request, run_id: str, step: int) -> Response:
        """Keep a checkpoint whatever the rules say."""
        actor = actor_of(request)
        return Response(checkpoints.pin(actor, queries.find_run(actor, run_id), step, True))


class UnpinView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="checkpoints_unpin", request=None, responses=CheckpointSerializer)
    def post(self, request: Request, run_id: str, step: int) -> Response:
        """Leave a checkpoint to the rules again; one that they do not keep is removed soon."""
        actor = actor_of(request)
        return Response(checkpoints.pin(actor, queries.find_run(actor, run_id), step, False))


class PromoteView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(
        operation_id="checkpoints_promote", request=PromoteSerializer, responses={202: LanguageModelDetailSerializer}
    )
    def post(self, request: Request, run_id: str, step: int) -> Response:
        """Make a policy of a checkpoint a model of the run's project. A node does it in the background."""
        body = PromoteSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor = actor_of(request)
        made = promotion.promote(actor, queries.find_run(actor, run_id), step, **body.validated_data)
        row = model_detail(made)
        return Response(row, status=202, headers={"Location": row["url"], "ETag": etag(row["version"])})


class ForkView(ApiView):
    scopes = {"POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_fork", request=ForkSerializer, responses={201: RunDetailSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Make a run that begins with this run's weights, with some of its specification changed."""
        body = ForkSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given, actor = body.validated_data, actor_of(request)
        source = ForkSource(given["checkpoint"], given["take"])
        run = queries.find_run(actor, run_id)
        made = forks.fork(
            actor, run, body.draft(), source, project=given["project"], marks=body.marks(), **body.options()
        )
        return detail(made, status=201)


class LineageView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_lineage", responses=LineageSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Say which versions a run began with, and which runs began with its own."""
        actor = actor_of(request)
        return Response(checkpoints.lineage_of(actor, queries.find_run(actor, run_id)))


class ArchiveView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("policy", "One policy; all of them when absent."),
        Parameter("form", "Of policies with adapters; adapter when absent.", choices=("adapter", "merged")),
    )

    @extend_schema(
        operation_id="checkpoints_archive",
        responses={(200, "application/x-tar"): OpenApiResponse(OpenApiTypes.BINARY, "Hugging Face folders, one tar.")},
    )
    def get(self, request: Request, run_id: str, step: int) -> StreamingHttpResponse:
        """Download a checkpoint as Hugging Face folders: whole models, adapters with their base, or merged models."""
        run = queries.find_run(actor_of(request), run_id)
        wanted = archives.ArchiveRequest(step, self.values.get("policy", ""), self.values.get("form", ""))
        ready = archives.prepare(run, wanted)
        answer = StreamingHttpResponse(archives.stream(run, step, ready), content_type="application/x-tar")
        answer["Content-Length"] = str(ready.bytes)
        answer["Content-Disposition"] = f'attachment; filename="{run.key}-step-{step}.tar"'
        return answer
