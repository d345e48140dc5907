"""What others read of telemetry; pages import from here alone."""

from flexmarl.controlplane.telemetry.advice import advisories, verdict, verdicts
from flexmarl.controlplane.telemetry.agents import agent, agents
from flexmarl.controlplane.telemetry.bubble import bubble
from flexmarl.controlplane.telemetry.checks import consistency
from flexmarl.controlplane.telemetry.cluster import devices
from flexmarl.controlplane.telemetry.cluster_timeline import cluster_timeline
from flexmarl.controlplane.telemetry.cohorts import UNDER_WAY, cohorts
from flexmarl.controlplane.telemetry.decisions import KINDS as DECISION_KINDS
from flexmarl.controlplane.telemetry.decisions import decisions
from flexmarl.controlplane.telemetry.definitions import define
from flexmarl.controlplane.telemetry.engines import MOVE_KINDS as ENGINE_MOVE_KINDS
from flexmarl.controlplane.telemetry.engines import engines
from flexmarl.controlplane.telemetry.engines import moves as engine_moves
from flexmarl.controlplane.telemetry.episode_groups import compare as trajectory_compare
from flexmarl.controlplane.telemetry.episode_groups import group as episode_group
from flexmarl.controlplane.telemetry.feed import events, notes
from flexmarl.controlplane.telemetry.held import held, leases, marks
from flexmarl.controlplane.telemetry.lag import lag
from flexmarl.controlplane.telemetry.load import load
from flexmarl.controlplane.telemetry.logbook import COMPONENTS as LOG_COMPONENTS
from flexmarl.controlplane.telemetry.logbook import feed as log_feed
from flexmarl.controlplane.telemetry.logbook import log_lines
from flexmarl.controlplane.telemetry.logbook import origins as log_origins
from flexmarl.controlplane.telemetry.pipeline import pipeline_of as pipeline
from flexmarl.controlplane.telemetry.places import store_state
from flexmarl.controlplane.telemetry.planned import planned
from flexmarl.controlplane.telemetry.pools import busy_devices, busy_week
from flexmarl.controlplane.telemetry.series import MAX_RUNS, catalogue, data, describe, matching
from flexmarl.controlplane.telemetry.swaps import swaps
from flexmarl.controlplane.telemetry.timeline import timeline, utilisation
from flexmarl.controlplane.telemetry.trajectories import cohort_of, labelled, parse_id
from flexmarl.controlplane.telemetry.trajectories import detail as trajectory
from flexmarl.controlplane.telemetry.trajectories import facets as trajectory_facets
from flexmarl.controlplane.telemetry.trajectories import page as trajectory_page
from flexmarl.controlplane.telemetry.trajectories import tokens as trajectory_tokens
from flexmarl.controlplane.telemetry.transitions import transitions
from flexmarl.controlplane.telemetry.wanted import ORDERINGS as TRAJECTORY_ORDERINGS
from flexmarl.controlplane.telemetry.wanted import ordering as trajectory_ordering
from flexmarl.controlplane.telemetry.wanted import wanted as trajectory_filter
from flexmarl.store.decision_log import Wanted as DecisionFilter
from flexmarl.store.episodes import EpisodeFilter, Ordering
from flexmarl.store.logs import LogFilter
from flexmarl.store.transitions import Wanted as TransitionFilter

__all__ = [
    "DECISION_KINDS",
    "ENGINE_MOVE_KINDS",
    "LOG_COMPONENTS",
    "MAX_RUNS",
    "TRAJECTORY_ORDERINGS",
    "UNDER_WAY",
    "DecisionFilter",
    "EpisodeFilter",
    "LogFilter",
    "Ordering",
    "TransitionFilter",
    "advisories",
    "agent",
    "agents",
    "bubble",
    "busy_devices",
    "busy_week",
    "catalogue",
    "cluster_timeline",
    "cohort_of",
    "cohorts",
    "consistency",
    "data",
    "decisions",
    "define",
    "describe",
    "devices",
    "engine_moves",
    "engines",
    "episode_group",
    "events",
    "held",
    "labelled",
    "lag",
    "leases",
    "load",
    "log_feed",
    "log_lines",
    "log_origins",
    "marks",
    "matching",
    "notes",
    "parse_id",
    "pipeline",
    "planned",
    "store_state",
    "swaps",
    "timeline",
    "trajectory",
    "trajectory_compare",
    "trajectory_facets",
    "trajectory_filter",
    "trajectory_ordering",
    "trajectory_page",
    "trajectory_tokens",
    "transitions",
    "utilisation",
    "verdict",
    "verdicts",
]
