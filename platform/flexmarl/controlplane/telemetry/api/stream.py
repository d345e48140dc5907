"""`GET /api/v1/stream`: hints for scripts as server-sent events."""

from django.http import StreamingHttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request

from flexmarl.controlplane.accounts.callers import caller_of
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.permissions import SIGNED_IN
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, NotFound, ValidationProblem
from flexmarl.controlplane.telemetry.live import stream
from flexmarl.controlplane.telemetry.live.topics import MAX_TOPICS, by_id, sequence_of

EVENT_STREAM = "text/event-stream"


class StreamView(ApiView):
    """Checks the caller and the topics as any other view; only the answer flows."""

    scopes = {"GET": SIGNED_IN}
    parameters = (Parameter("topics", f"Comma-separated `run:<id>`, `run:<key>` and `cluster`, at most {MAX_TOPICS}."),)

    @extend_schema(
        operation_id="stream",
        responses={(200, EVENT_STREAM): OpenApiResponse(OpenApiTypes.STR, "Events `hint` with `topic` and `seq`.")},
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """Tell which topics have moved, as it happens. Last-Event-ID goes on where a stream broke off."""
        names = list(dict.fromkeys(name for name in self.values.get("topics", "").split(",") if name))
        if not 1 <= len(names) <= MAX_TOPICS:
            detail = f"topics names {len(names)} topics."
            hint = f"Name 1 to {MAX_TOPICS}, such as topics=run:<id>,cluster."
            raise ValidationProblem(detail, errors=[FieldError("topics", "out_of_range", detail, hint, "query")])
        actor = actor_of(request)
        seqs = {topic: sequence_of(actor, topic) for topic in (by_id(actor, name) for name in names)}
        for topic, seq in seqs.items():
            if seq is None:
                legal = "Topics are cluster, and run:<id> or run:<key>."
                raise NotFound(f"Topic {topic} does not exist, or you may not read it. {legal}")
        told = stream.read(request.headers.get("Last-Event-ID", ""))
        known = {topic: seq for topic, seq in seqs.items() if seq is not None}
        listener = stream.Listener(caller_of(request), known, told)
        answer = StreamingHttpResponse(
            stream.LiveStream(str(actor.user_id), listener.events()), content_type=EVENT_STREAM
        )
        answer.headers["Cache-Control"] = "no-store"
        answer.headers["X-Accel-Buffering"] = "no"
        return answer


urlpatterns = [path("stream", StreamView.as_view(), name="api-stream")]
