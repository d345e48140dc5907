"""Multi-agent protocols and their task sources."""

from workers.rollout.environments.base import Ask, Demonstration, Environment, Family, Outcome, Reply
from workers.rollout.environments.registry import family_of

__all__ = ["Ask", "Demonstration", "Environment", "Family", "Outcome", "Reply", "family_of"]
