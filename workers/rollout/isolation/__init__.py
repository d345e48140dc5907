"""Environments in processes of their own, which a deadline may kill without touching anything else."""

from workers.rollout.isolation.environment_pool import EnvironmentPool, IsolatedEpisode
from workers.rollout.isolation.processes import EnvironmentBroke

__all__ = ["EnvironmentBroke", "EnvironmentPool", "IsolatedEpisode"]
