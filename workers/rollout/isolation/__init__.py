"""Environments in processes of their own, which a deadline may kill without touching anything else."""

from workers.rollout.isolation.processes import EnvironmentBroke
from workers.rollout.isolation.troupe import IsolatedEpisode, Troupe

__all__ = ["EnvironmentBroke", "IsolatedEpisode", "Troupe"]
