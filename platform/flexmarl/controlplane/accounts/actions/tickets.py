"""Tickets for web sockets. Taking one locks and deletes its row: nobody uses it twice."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.accounts.callers import Caller
from flexmarl.controlplane.accounts.models import SocketTicket
from flexmarl.controlplane.common.problems import PermissionDenied

TICKET_S = 60
_DROP_AT_ONCE = 100


@transaction.atomic
def create_ticket(caller: Caller) -> tuple[str, datetime]:
    """Make a ticket for whoever asks. Returns its text and its end. Not audited: it gives nothing they do not have."""
    if caller.user_id is None:
        raise PermissionDenied("Only a person or a service account can subscribe.")
    now = timezone.now()
    old = SocketTicket.objects.filter(expires_at__lte=now).values("pk")[:_DROP_AT_ONCE]
    SocketTicket.objects.filter(pk__in=old).delete()
    text, end = tokens.new_secret(), now + timedelta(seconds=TICKET_S)
    SocketTicket.objects.create(
        secret_hash=tokens.digest(text),
        user_id=caller.user_id,
        token_id=caller.token_id,
        session_key=caller.session_key,
        expires_at=end,
    )
    return text, end


@transaction.atomic
def take_ticket(text: str, address: str) -> Caller | None:
    """Use a ticket up from an address. Returns who it was made for; None when it is no good, or not from there."""
    found = (
        SocketTicket.objects.select_for_update(of=("self",))
        .select_related("token")
        .filter(secret_hash=tokens.digest(text))
    )
    ticket = found.first()
    if ticket is None:
        return None
    ticket.delete()
    known = ticket.token is None or ticket.token.allows_address(address)
    if ticket.expires_at <= timezone.now() or not known:
        return None
    return Caller(ticket.user_id, ticket.token_id, ticket.session_key)
