"""People, their tokens, projects and who is what in them."""

from flexmarl.controlplane.accounts.models.project import DEFAULT_PROJECT, Membership, Project
from flexmarl.controlplane.accounts.models.ticket import SocketTicket
from flexmarl.controlplane.accounts.models.token import ApiToken
from flexmarl.controlplane.accounts.models.user import User

__all__ = ["DEFAULT_PROJECT", "ApiToken", "Membership", "Project", "SocketTicket", "User"]
