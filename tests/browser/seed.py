"""Runs in every state with curves, conversations and busy devices, for looking at pages without training anything.

Rows go through the store's own functions where one fits; what only a living child would write (its lease, its
tokenizer) is inserted as its child would leave it. Ended runs lie in the past, the others end now.
"""

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.decisions import Metric, NoteLevel, RunNote
from flexmarl.contracts.events import RunVerb, Verb
from flexmarl.contracts.live import AgentProgress, MicroBatchProgress, Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.plans import Draft
from flexmarl.controlplane.runs import actions
from flexmarl.store import partitions
from flexmarl.store.control import decisions, nodes, runs
from flexmarl.store.control.attempts import Timed
from flexmarl.store.control.decisions import LogEntry, Logged, StoredDecision
from flexmarl.store.control.runs import RunLease
from tests.browser.seeded_agents import agents, teams
from tests.browser.seeded_datasets import datasets
from tests.browser.seeded_decisions import decisions as decided
from tests.browser.seeded_evaluations import evaluations
from tests.browser.seeded_experiments import experiments
from tests.browser.seeded_figures import of_agents, versions
from tests.browser.seeded_joins import node_join
from tests.browser.seeded_load import load
from tests.browser.seeded_models import models
from tests.browser.seeded_packages import packages
from tests.browser.seeded_pipeline import lines, pipeline
from tests.browser.seeded_play import devices, episodes
from tests.browser.seeded_programs import programs
from tests.browser.seeded_serving import serving_keys
from tests.browser.seeded_simulations import simulations


@dataclass
class Story:
    """What a seeded run shall look like."""

    name: str
    spec: dict[str, Any]
    status: RunStatus
    steps: int
    max_steps: int
    reach: float
    step_s: float = 1.1
    reason: RunReason = RunReason.NONE
    text: str = ""
    ended_ago_s: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(7))


GAME = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
HOT = {"agents": {"guesser": {}, "hinter": {}}, "environment": {"type": "hot_cold"}}
SUMS = {"agents": {"planner": {}, "solver": {}, "verifier": {}}, "environment": {"type": "arithmetic"}}

STORIES = (
    Story(
        "Reference game, eight symbols", GAME, RunStatus.COMPLETED, 240, 240, 0.97,
        reason=RunReason.TARGET_REACHED, text="eval/solved reached 0.95", ended_ago_s=5400,
    ),
    Story("Planner, solver, verifier on modulo 5", SUMS, RunStatus.RUNNING, 137, 400, 0.78, step_s=2.3),
    Story("Hot or cold with four guesses", HOT, RunStatus.RUNNING, 64, 300, 0.88),
    Story(
        "A name as long as a name may be, sixty-four characters exactly!", GAME, RunStatus.PAUSED, 31, 300, 0.5,
        reason=RunReason.USER_REQUEST, text="Paused by ada.",
    ),
    Story(
        "Hot or cold, learning rate too high", HOT, RunStatus.FAILED, 12, 300, 0.2, reason=RunReason.EPISODES_FAILED,
        text="41 % of episodes failed: environment: step raised ValueError", ended_ago_s=900,
    ),
    Story(
        "Waits for its devices", GAME, RunStatus.QUEUED, 0, 300, 0.0,
        reason=RunReason.WAITING_FOR_DEVICES, text="Needs 2 devices in default: 0 of 4 free.",
    ),
)  # fmt: skip


def seed(owner: Any) -> list[Any]:
    """Make all stories for a person and return their runs, in the order of `STORIES`, and those of programs behind."""
    conn = store_connection()
    facts = {"cpus": 8, "memory_bytes": 33_500_000_000}
    found = [nodes.DeviceFacts(f"atlas.cpu{i}", "cpu", i, "CPU share", 4_000_000_000) for i in range(4)]
    nodes.register_node(conn, nodes.NodeFacts("atlas", "127.0.0.1:9710", "n1", "0.1.0", facts), found)
    told = [_tell(owner, story, index) for index, story in enumerate(STORIES)]
    simulations(owner)
    models(owner)
    packages(owner)
    agents(owner)
    teams(owner)
    serving_keys(told[0].key)
    node_join()
    datasets(owner)
    experiments(owner, told)
    evaluations(owner)
    return [*told, *programs(owner)]


def _tell(owner: Any, story: Story, index: int) -> Any:
    spec = {
        **story.spec,
        "budget": {"train_steps": story.max_steps},
        "batch": {"tasks_per_step": 16, "micro_batch_groups": 4},
    }
    run = actions.create_run(actor_of_user(owner), Draft(name=story.name, spec=spec))
    conn = store_connection()
    lease = _own(conn, run.no)
    end = time.time() - story.ended_ago_s
    start = end - max(20.0, story.steps * story.step_s)
    roles = list(story.spec["agents"])
    verb = LogEntry(1, start, RunVerb(verb=Verb.START, actor=owner.username))
    begun = StoredDecision(
        [verb],
        RunStatus.RUNNING if story.steps else story.status,
        RunReason.NONE,
        "",
        1,
        0,
        Progress(max_steps=story.max_steps),
        None,
    )
    decisions.append(conn, lease, begun)
    if story.steps:
        partitions.ensure(conn, run.no)  # one that started has its tables
        curves = _curves(story, roles, start)
        episodes(conn, run.no, lease, story, roles, start)
        devices(conn, run.no, story, roles, index, start, end)
        pipeline(conn, run.no, story, roles, start)
        decided(conn, run.no, roles, story.steps, start)
        lines(conn, run.no, roles, end)
        curves += of_agents(story, roles, start)
        versions(conn, run.no, story, roles, start)
        if story.status in (RunStatus.RUNNING, RunStatus.FAILED):
            load(conn, run.no, story, roles, end)
        _finish(conn, lease, story, roles, curves, end)
    else:
        _finish(conn, lease, story, roles, [], end)
    if story.status is RunStatus.QUEUED:
        _ask_for_devices(conn, run.no)
    return run


def _ask_for_devices(conn: Any, run_no: int) -> None:
    """Let a queued run wait for an engine and a trainer, as its core would."""
    wish = RequestDevices(pool="default", engines=1, trainers=1)
    conn.execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body) "
        "VALUES (%s, 1, 1, 1, 'request_devices', 'driver', %s::jsonb)",
        [run_no, wish.model_dump_json()],
    )


def _own(conn: Any, run_no: int) -> RunLease:
    row = conn.execute(
        "UPDATE store.run_state SET owner = 'seed', fence = fence + 1 WHERE run_id = %s RETURNING fence", [run_no]
    ).fetchone()
    return RunLease(run_no, "seed", row[0])


def _curves(story: Story, roles: list[str], start: float) -> list[Timed[Metric]]:
    points: list[Timed[Metric]] = []
    rng, noise = story.rng, 0.0

    def add(name: str, step: int, value: float, agent: str = "", stat: str = "mean") -> None:
        points.append((start + step * story.step_s, Metric(name, step + 1, float(value), agent, stat, step * 128)))

    for step in range(story.steps):
        share = 1 - math.exp(-3.2 * step / max(60, story.max_steps * 0.5))
        noise = 0.6 * noise + rng.gauss(0, 0.012)
        team = min(1.0, max(0.0, 0.22 + (story.reach - 0.22) * share + noise))
        add("reward/team", step, team)
        add("reward/team", step, max(0.0, team - 0.5 * (1.15 - share)), stat="min")
        add("reward/team", step, min(1.0, team + 0.4 * (1.1 - share)), stat="max")
        useful = max(0.05, 0.35 + 0.5 * math.sin(math.pi * min(1.0, share + 0.1)) + rng.gauss(0, 0.03))
        easy = min(1 - useful, max(0.0, share * 0.6 + rng.gauss(0, 0.02)))
        for name, value in (("useful", useful), ("easy", easy), ("hard", max(0.0, 1 - useful - easy))):
            add(f"groups/{name}", step, value, stat="share")
        for i, role in enumerate(roles):
            own = min(1.0, max(0.0, team + 0.04 * (1 - i) + rng.gauss(0, 0.012)))
            add("reward/agent", step, own, role)
            add("length/response", step, 2 + 2 * i + share + rng.gauss(0, 0.05), role)
            add("train/entropy", step, max(0.05, 2.6 - 2.2 * share - 0.2 * i + rng.gauss(0, 0.03)), role)
            add("train/kl_engine", step, abs(rng.gauss(0.0004, 0.0002)), role)
            add("train/grad_norm", step, 0.5 + 0.6 * (1 - share) + abs(rng.gauss(0, 0.08)), role)
            add("staleness/own_max", step, 0.0, role, "max")
        seconds = story.step_s * (1 + abs(rng.gauss(0, 0.12)))
        add("time/step", step, seconds)
        add("time/rollout", step, seconds * 0.72)
        add("time/train_tail", step, seconds * 0.2)
        add("time/publish", step, seconds * 0.08)
        add("time/wait_samples", step, seconds * 0.31)
        add("throughput/tokens", step, 1450 + 200 * rng.random())
        if step % 10 == 9:
            add("eval/team_score", step, min(1.0, team * 0.97))
            add("eval/solved", step, min(1.0, team * 0.93))
    return points


def _finish(
    conn: Any, lease: RunLease, story: Story, roles: list[str], curves: list[Timed[Metric]], end: float
) -> None:
    seq = 4 if story.steps else 2
    points = [point for _, point in curves]
    last = {p.agent: p.value for p in points if p.name == "reward/agent" and p.step == story.steps}
    team = [p.value for p in points if p.name == "reward/team" and p.stat == "mean"]
    evaluated = [p for p in points if p.name == "eval/solved"]
    running = story.status is RunStatus.RUNNING
    progress = Progress(
        step=story.steps,
        max_steps=story.max_steps,
        cohort_groups=16,
        cohort_groups_settled=9 if running else 0,
        episodes_proposed=story.steps * 128,
        episodes_finished=max(0, story.steps * 128 - 3),
        episodes_failed=3 if story.steps else 0,
        samples_trained=story.steps * 256,
        tokens_generated=story.steps * 1480,
        step_seconds=story.step_s if team else None,
        reward=team[-1] if team else None,
        reward_first=team[0] if team else None,
        eval_solved=evaluated[-1].value if evaluated else None,
        eval_best=max((p.value for p in evaluated), default=None),
        eval_step=evaluated[-1].step if evaluated else None,
        agents={role: AgentProgress(reward=last.get(role), version=story.steps) for role in roles},
        micro_batches=tuple(
            MicroBatchProgress(policy=role, cut=3 - i, accumulated=2 - i, expected=4, state="accumulating")
            for i, role in enumerate(roles)
        )
        if running
        else (),
        waiting_for="7 of 16 episode groups" if running else "",
    )
    notes = [
        Logged(
            seq, end - 60, RunNote(NoteLevel.INFO, f"Granted atlas.cpu0 and atlas.cpu1 to run {lease.run_id}", "driver")
        ),
        Logged(
            seq,
            end - 30,
            RunNote(NoteLevel.INFO, f"Evaluation after step {story.steps}: solved {0.91:.2f}", "driver", "eval"),
        ),
        Logged(
            seq,
            end - 20,
            RunNote(
                NoteLevel.WARNING, "Engine atlas.cpu0 restarted: process ended with code 137", "node", "atlas.cpu0"
            ),
        ),
    ]
    if story.status is RunStatus.FAILED:
        notes.append(Logged(seq, end, RunNote(NoteLevel.ERROR, story.text, "driver")))
    entry = LogEntry(seq, end, RunVerb(verb=Verb.START))
    decisions.append(
        conn,
        lease,
        StoredDecision(
            [entry], story.status, story.reason, story.text, 1, story.steps, progress, None, metrics=curves, notes=notes
        ),
    )
    conn.execute("UPDATE store.run_state SET pending_verb = '' WHERE run_id = %s", [lease.run_id])
    runs.load_run(conn, lease.run_id)
