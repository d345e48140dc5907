"""People and their tokens."""

from flexmarl.controlplane.accounts.models.token import ApiToken
from flexmarl.controlplane.accounts.models.user import User

__all__ = ["ApiToken", "User"]
