"""What others read of telemetry; pages import from here alone."""

from flexmarl.controlplane.telemetry.advisor.advice import advisories, verdict, verdicts
from flexmarl.controlplane.telemetry.charts.definitions import define
from flexmarl.controlplane.telemetry.charts.series import MAX_RUNS, catalogue, data, describe, matching
from flexmarl.controlplane.telemetry.checks.checks import consistency
from flexmarl.controlplane.telemetry.flow.cohorts import UNDER_WAY, cohorts
from flexmarl.controlplane.telemetry.flow.decisions import KINDS as DECISION_KINDS
from flexmarl.controlplane.telemetry.flow.decisions import decisions
from flexmarl.controlplane.telemetry.flow.lag import lag
from flexmarl.controlplane.telemetry.flow.pipeline import pipeline_of as pipeline
from flexmarl.controlplane.telemetry.flow.places import store_state
from flexmarl.controlplane.telemetry.flow.planned import planned
from flexmarl.controlplane.telemetry.flow.sharing import sharing
from flexmarl.controlplane.telemetry.flow.transitions import transitions
from flexmarl.controlplane.telemetry.hardware.agents import agent, agents
from flexmarl.controlplane.telemetry.hardware.cluster import devices
from flexmarl.controlplane.telemetry.hardware.engines import MOVE_KINDS as ENGINE_MOVE_KINDS
from flexmarl.controlplane.telemetry.hardware.engines import engines
from flexmarl.controlplane.telemetry.hardware.engines import moves as engine_moves
from flexmarl.controlplane.telemetry.hardware.load import load, speaking
from flexmarl.controlplane.telemetry.hardware.pools import busy_devices, busy_week
from flexmarl.controlplane.telemetry.live.feed import events, notes
from flexmarl.controlplane.telemetry.live.logbook import COMPONENTS as LOG_COMPONENTS
from flexmarl.controlplane.telemetry.live.logbook import feed as log_feed
from flexmarl.controlplane.telemetry.live.logbook import log_lines
from flexmarl.controlplane.telemetry.live.logbook import origins as log_origins
from flexmarl.controlplane.telemetry.timeline.bubble import bubble
from flexmarl.controlplane.telemetry.timeline.cluster_timeline import cluster_timeline
from flexmarl.controlplane.telemetry.timeline.costs import cost_of
from flexmarl.controlplane.telemetry.timeline.device_time import engines_over_time, held, leases, marks
from flexmarl.controlplane.telemetry.timeline.swaps import swaps
from flexmarl.controlplane.telemetry.timeline.timeline import timeline, utilisation
from flexmarl.controlplane.telemetry.trajectories.episode_groups import compare as trajectory_compare
from flexmarl.controlplane.telemetry.trajectories.episode_groups import group as episode_group
from flexmarl.controlplane.telemetry.trajectories.filters import BREAKS as CHAIN_BREAKS
from flexmarl.controlplane.telemetry.trajectories.filters import ORDERINGS as TRAJECTORY_ORDERINGS
from flexmarl.controlplane.telemetry.trajectories.filters import ordering as trajectory_ordering
from flexmarl.controlplane.telemetry.trajectories.filters import wanted as trajectory_filter
from flexmarl.controlplane.telemetry.trajectories.trajectories import cohort_of, labelled, parse_id
from flexmarl.controlplane.telemetry.trajectories.trajectories import detail as trajectory
from flexmarl.controlplane.telemetry.trajectories.trajectories import facets as trajectory_facets
from flexmarl.controlplane.telemetry.trajectories.trajectories import page as trajectory_page
from flexmarl.controlplane.telemetry.trajectories.trajectories import tokens as trajectory_tokens
from flexmarl.store.reads.decision_log import DecisionFilter
from flexmarl.store.reads.episodes import EpisodeFilter, Ordering
from flexmarl.store.reads.transitions import TransitionFilter
from flexmarl.store.telemetry.logs import LogFilter

__all__ = [
    "CHAIN_BREAKS",
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
    "cost_of",
    "data",
    "decisions",
    "define",
    "describe",
    "devices",
    "engine_moves",
    "engines",
    "engines_over_time",
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
    "sharing",
    "speaking",
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
