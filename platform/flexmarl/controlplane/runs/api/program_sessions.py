"""Sessions of agent programs over REST."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.serializers import StrictSerializer, listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import program_sessions, queries
from flexmarl.controlplane.runs.models import ProgramSessionRow
from flexmarl.controlplane.runs.session_lists import FILTERS, ORDERINGS, PURPOSES, STATES, sessions

RATE = "sessions"
"""Many programs share a token, and each asks again while no session waits."""


class SessionTokensSerializer(serializers.Serializer[Any]):
    sampled = serializers.IntegerField(help_text="In the calls that were answered.")
    delivered = serializers.IntegerField(
        allow_null=True,
        help_text="In rows on which an optimizer step was taken. Null in evaluation and where `chains` is.",
    )


class SessionTrajectorySerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    status = serializers.ChoiceField([status.value for status in EpisodeStatus])
    url = serializers.CharField()
    web_url = serializers.CharField()


class ProgramSessionSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    state = serializers.ChoiceField(STATES)
    reason = serializers.CharField(allow_blank=True, help_text="Why it ended without a report that counts.")
    output = serializers.CharField(
        allow_blank=True, help_text="End of what its program wrote, where a rollout worker started it."
    )
    purpose = serializers.ChoiceField(PURPOSES)
    task = serializers.IntegerField(help_text="Number of the task; those of evaluation follow those of training.")
    seats = serializers.ListField(child=serializers.CharField(), help_text="What `model` of a call may be.")
    base_url = serializers.CharField(help_text="Base URL for a client of OpenAI's API.")
    run_timeout_s = serializers.FloatField(help_text="What the program may take between its calls, all together.")
    reward_timeout_s = serializers.FloatField(
        help_text="How long after its end the reward of a program may arrive; 0: its report must bring it."
    )
    max_calls = serializers.IntegerField(help_text="Of each seat.")
    report = serializers.DictField(help_text="What the program reported.")
    taken_by = serializers.CharField(
        allow_blank=True, help_text="Who took it; empty before, and where its worker starts its program."
    )
    reported_by = serializers.CharField(allow_blank=True, help_text="Who reported last; empty as in `taken_by`.")
    opened_at = serializers.DateTimeField()
    taken_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True, help_text="When it was finished, or ended.")
    deadline_at = serializers.DateTimeField(
        allow_null=True,
        help_text="open: when it ends unless a program takes it. taken: when it ends unless the program calls or "
        "reports; while agents answer it moves. awaiting_reward: when it ends unless the reward arrives. Null when it "
        "is over.",
    )
    reward_deadline_at = serializers.DateTimeField(
        allow_null=True, help_text="Until when the reward could arrive. Null unless it was reported to come later."
    )
    calls = serializers.IntegerField(help_text="Answered; of a session that is played, as of some seconds ago.")
    chains = serializers.IntegerField(
        allow_null=True, help_text="Rows that it became. Null before there is a trajectory, and once rows are retired."
    )
    tokens = SessionTokensSerializer()
    reward = serializers.FloatField(allow_null=True, help_text="Of the team. Null: there is none.")
    rewards = serializers.DictField(child=serializers.FloatField(), help_text="By seat; empty: there are none.")
    trajectory = SessionTrajectorySerializer(
        allow_null=True, help_text="Null until its group has settled, and of tries whose episode was played again."
    )
    url = serializers.CharField()


class FileChangeSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(help_text="In the workspace.")
    change = serializers.ChoiceField(["added", "changed", "removed"])
    size = serializers.IntegerField(allow_null=True, help_text="In bytes. Null of one that is gone.")
    before = serializers.IntegerField(allow_null=True, help_text="In bytes. Null of one that is new.")
    shown = serializers.BooleanField(help_text="`diff` has it: it is text, and there was room.")


class FileChangesSerializer(serializers.Serializer[Any]):
    files = FileChangeSerializer(many=True)
    count = serializers.IntegerField(help_text="How many changed; not more than 200 are named.")
    diff = serializers.CharField(allow_blank=True, help_text="Unified, of at most 64 KiB.")
    cut = serializers.BooleanField(help_text="`diff` is not whole.")


class WholeSessionSerializer(ProgramSessionSerializer):
    image = serializers.CharField(
        allow_blank=True,
        help_text="Image of the container that its command ran in, with its digest. Empty of other programs, and until "
        "it has ended.",
    )
    changes = FileChangesSerializer(
        allow_null=True,
        help_text="What a command made of the files that it began with. Null of other programs, and until it has "
        "ended.",
    )


class TakenSessionSerializer(ProgramSessionSerializer):
    key = serializers.CharField(allow_null=True, help_text="API key for the client. Null when the request is repeated.")


class SessionReportSerializer(StrictSerializer):
    reward = serializers.FloatField(required=False, help_text="Of the team, and of each seat that has none of its own.")
    rewards = serializers.DictField(child=serializers.FloatField(), required=False, help_text="By seat.")
    error = serializers.CharField(
        required=False, max_length=500, help_text="Why there is no reward: the episode fails and is played again."
    )
    reward_later = serializers.BooleanField(
        required=False,
        help_text="true, alone: the program has ended, and reward, rewards or error follow within `reward_timeout_s`.",
    )


class SessionsView(ListView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_ACT}
    secret_members = ("key",)
    parameters = FILTERS
    orderings = ORDERINGS

    @property
    def rate_class(self) -> str:
        """Count programs that ask for a session apart from people who read the list, which costs more."""
        return RATE if self.request.method == "POST" else "ordinary"

    def query(self, request: Request) -> QuerySet[ProgramSessionRow]:
        self.run = queries.find_run(actor_of(request), self.kwargs["run_id"])
        return sessions(self.run)

    def rows_of(self, request: Request, found: Sequence[ProgramSessionRow]) -> list[dict[str, Any]]:
        return program_sessions.rows(self.run, found)

    @extend_schema(operation_id="program_sessions_list", responses=listing(ProgramSessionSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the sessions of a run that agent programs play."""
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="program_sessions_take", request=None, responses={201: TakenSessionSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Take a session for an agent program: 409 `no_open_session` while none waits for one."""
        actor = actor_of(request)
        return Response(program_sessions.take(actor, queries.find_run(actor, run_id)), status=201)


class SessionView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="program_sessions_read", responses=WholeSessionSerializer)
    def get(self, request: Request, run_id: str, session_id: UUID) -> Response:
        """Read a session: its state, why it ended, and the files that a command changed."""
        return Response(program_sessions.read_whole(queries.find_run(actor_of(request), run_id), session_id))


class SessionFinishView(ApiView):
    rate_class = RATE
    scopes = {"POST": Scope.RUNS_ACT}

    @extend_schema(
        operation_id="program_sessions_finish", request=SessionReportSerializer, responses=ProgramSessionSerializer
    )
    def post(self, request: Request, run_id: str, session_id: UUID) -> Response:
        """End a session: say what it earned, that this is known later, or why it is not.

        The first report with a reward or an error stands.
        """
        body = SessionReportSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor = actor_of(request)
        run = queries.find_run(actor, run_id)
        return Response(program_sessions.finish(actor, run, session_id, body.validated_data))
