"""Tickets for web sockets: good once, for a minute, for whoever asked. Only a keyed hash is stored."""

from django.db import models

from flexmarl.controlplane.accounts.models.token import ApiToken
from flexmarl.controlplane.accounts.models.user import User


class SocketTicket(models.Model):
    secret_hash = models.CharField(primary_key=True, max_length=64)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    token = models.ForeignKey(ApiToken, null=True, on_delete=models.CASCADE, related_name="+")
    """The token it was asked for with: the socket may do no more than it."""
    session_key = models.CharField(max_length=40, blank=True)
    """The browser's session it was asked for with, when it was none of a token: the socket ends with it."""
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"ticket of {self.user_id}"
