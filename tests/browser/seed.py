"""Runs in every state with curves, conversations and busy devices, for looking at pages without training anything.

Rows go through the store's own functions where one fits; what only a living child would write (its lease, its
tokenizer) is inserted as its child would leave it. Ended runs lie in the past, the others end now.
"""

import json
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.commands import CutMicroBatch, GroupOrder, PlayGroups
from flexmarl.contracts.events import GroupSettled, RunVerb, Verb
from flexmarl.contracts.live import AgentProgress, MicroBatchProgress, Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import (
    CutSample,
    EpisodeOutcome,
    EpisodeStatus,
    MicroBatchRef,
    Origin,
    PolicyPin,
    SampleRef,
)
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.plans import Draft
from flexmarl.controlplane.runs import actions
from flexmarl.store import commands, decisions, groups, intervals, nodes, runs
from flexmarl.store.decisions import IssuedCommand, LogEntry, MetricPoint, NoteLine, StoredDecision
from flexmarl.store.groups import EpisodeRow, SampleRow, SettledGroup
from flexmarl.store.runs import RunLease

WORDS = ["<pad>", "<bos>", "<eos>", "red", "blue", "round", "square", *(f"w{i}" for i in range(16))]
HOSTILE = "<img src=x onerror=alert(1)> </script><b>bold</b>"
MEMBERS = 8


@dataclass
class Story:
    """What a seeded run shall look like."""

    name: str
    template: str
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
    Story("Reference game, eight symbols", "", GAME, RunStatus.COMPLETED, 240, 240, 0.97, reason=RunReason.TARGET_REACHED, text="eval/solved reached 0.95", ended_ago_s=5400),
    Story("Planner, solver, verifier on modulo 5", "", SUMS, RunStatus.RUNNING, 137, 400, 0.78, step_s=2.3),
    Story("Hot or cold with four guesses", "", HOT, RunStatus.RUNNING, 64, 300, 0.88),
    Story("A name as long as a name may be, sixty-four characters exactly!", "", GAME, RunStatus.PAUSED, 31, 300, 0.5, reason=RunReason.USER_REQUEST, text="Paused by ada."),
    Story("Hot or cold, learning rate too high", "", HOT, RunStatus.FAILED, 12, 300, 0.2, reason=RunReason.EPISODES_FAILED, text="41 % of episodes failed: environment: step raised ValueError", ended_ago_s=900),
    Story("Waits for its devices", "", GAME, RunStatus.QUEUED, 0, 300, 0.0, reason=RunReason.WAITING_FOR_DEVICES, text="Needs 2 devices in default: 0 of 4 free."),
)  # fmt: skip


def seed(owner: Any) -> list[Any]:
    """Make all stories for a person and return their runs, in the order of `STORIES`."""
    conn = store_connection()
    facts = {"cpus": 8, "memory_bytes": 33_500_000_000}
    found = [nodes.DeviceFacts(f"atlas.cpu{i}", "cpu", i, "CPU share", 4_000_000_000) for i in range(4)]
    nodes.register_node(conn, nodes.NodeFacts("atlas", "127.0.0.1:9710", "n1", "0.1.0", facts), found)
    return [_tell(owner, story, index) for index, story in enumerate(STORIES)]


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
        curves = _curves(story, roles, start)
        _episodes(conn, run.no, lease, story, roles, start)
        _devices(conn, run.no, story, roles, index, start, end)
        _finish(conn, lease, story, roles, curves, end)
    else:
        _finish(conn, lease, story, roles, [], end)
    return run


def _own(conn: Any, run_no: int) -> RunLease:
    row = conn.execute(
        "UPDATE store.run_state SET owner = 'seed', fence = fence + 1 WHERE run_id = %s RETURNING fence", [run_no]
    ).fetchone()
    return RunLease(run_no, "seed", row[0])


def _curves(story: Story, roles: list[str], start: float) -> list[MetricPoint]:
    points: list[MetricPoint] = []
    rng, noise = story.rng, 0.0

    def add(name: str, step: int, value: float, agent: str = "", stat: str = "mean") -> None:
        points.append(MetricPoint(name, step, float(value), start + step * story.step_s, agent, stat, step * 128))

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
            add(f"groups/{name}", step, value)
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
        add("time/wait_samples", step, seconds * 0.31)
        add("throughput/tokens", step, 1450 + 200 * rng.random())
        if step % 10 == 9:
            add("eval/team_score", step, min(1.0, team * 0.97))
            add("eval/solved", step, min(1.0, team * 0.93))
    return points


def _episodes(conn: Any, run_no: int, lease: RunLease, story: Story, roles: list[str], start: float) -> None:
    for role in roles:
        conn.execute(
            "INSERT INTO store.tokenizer (run_id, policy, body) VALUES (%s, %s, %s::jsonb)",
            [run_no, role, _tokenizer()],
        )
    steps = range(max(0, story.steps - 3), story.steps)
    issued, no, seq = [], 1, 2
    for step in steps:
        pins = {role: PolicyPin(version=step, digest="0" * 64) for role in roles}
        orders = tuple(GroupOrder(draw=step * 4 + g, task_seed=g, members=MEMBERS) for g in range(4))
        issued.append(
            (
                no,
                step,
                PlayGroups(
                    pool="default", epoch=1, origin=Origin.TRAIN, groups=orders, pins=pins, sampling_seed=1, cohort=step
                ),
            )
        )
        no += 1
    event = LogEntry(seq, start + 1, RunVerb(verb=Verb.START))
    sent = [IssuedCommand(n, seq, 1, command) for n, _, command in issued]
    progress = Progress(max_steps=story.max_steps)
    decisions.append(
        conn, lease, StoredDecision([event], RunStatus.RUNNING, RunReason.NONE, "", 1, 0, progress, None, commands=sent)
    )
    cuts: dict[str, list[tuple[int, list[CutSample]]]] = {role: [] for role in roles}
    for n, step, command in issued:
        taken = commands.take(conn, run_no, n, 30)
        assert taken is not None
        made = [
            _group(story, roles, order.draw, step, taken.no, start + step * story.step_s) for order in command.groups
        ]
        groups.put_groups(conn, taken, made)
        commands.finish(conn, taken)
        for group in made:
            mean = sum(e.team_score for e in group.episodes) / len(group.episodes)
            for role in roles:
                cuts[role].append(
                    (
                        step,
                        [
                            CutSample(
                                draw=s.draw,
                                member=s.member,
                                attempt=1,
                                role=role,
                                turn=s.turn,
                                advantage=group.episodes[s.member].team_score - mean,
                            )
                            for s in group.samples
                            if s.role == role
                        ],
                    )
                )
    cut = [
        CutMicroBatch(ref=MicroBatchRef(policy=role, no=i), cohort=step, samples=tuple(rows))
        for role in roles
        for i, (step, rows) in enumerate(cuts[role])
    ]
    conn.execute("DELETE FROM store.inbox WHERE run_id = %s", [run_no])
    event = LogEntry(3, start + 2, RunVerb(verb=Verb.START))
    sent = [IssuedCommand(no + i, 3, 1, command) for i, command in enumerate(cut)]
    decisions.append(
        conn, lease, StoredDecision([event], RunStatus.RUNNING, RunReason.NONE, "", 1, 0, progress, None, commands=sent)
    )
    conn.execute("UPDATE store.micro_batch SET status = 'applied' WHERE run_id = %s", [run_no])


def _group(story: Story, roles: list[str], draw: int, step: int, command_no: int, at: float) -> SettledGroup:
    rng = story.rng
    episodes, samples, outcomes = [], [], []
    for member in range(MEMBERS):
        score = rng.choice((0.0, 0.5, 1.0, 1.0)) if rng.random() < story.reach else rng.choice((0.0, 0.0, 0.5))
        transcript: list[object] = []
        refs = []
        for turn in range(2):
            for role in roles:
                size = 2 + rng.randrange(5)
                ids = [7 + rng.randrange(16) for _ in range(size)]
                logprobs = [-abs(rng.gauss(0, 0.6)) if rng.random() < 0.7 else -abs(rng.gauss(1.6, 0.6)) for _ in ids]
                samples.append(
                    SampleRow(
                        draw,
                        member,
                        1,
                        role,
                        turn,
                        role,
                        step,
                        [step, size],
                        [1, 3, 5, 7 + turn],
                        ids,
                        logprobs,
                        list(range(7, 23)),
                        "stop",
                        engine="e1",
                        latency_ms=8 + 9 * rng.random(),
                    )
                )
                refs.append(SampleRef(role=role, turn=turn, tokens=size))
                transcript.append([role, turn])
        title = "Name the red round object" if draw % 5 else f"Name {HOSTILE}"
        tokens = sum(ref.tokens for ref in refs)
        scores = {role: max(0.0, min(1.0, score + 0.1 * i)) for i, role in enumerate(roles)}
        task = {"title": title, "facts": {"object": "red round", "values": "4 per attribute"}}
        episodes.append(
            EpisodeRow(
                draw,
                member,
                1,
                Origin.TRAIN,
                EpisodeStatus.FINISHED,
                "",
                scores,
                score,
                score >= 1,
                len(refs),
                tokens,
                dict.fromkeys(roles, step),
                task,
                transcript,
                at,
                at + 0.1 + 0.2 * rng.random(),
                step,
            )
        )
        outcomes.append(
            EpisodeOutcome(
                member=member,
                attempt=1,
                status=EpisodeStatus.FINISHED,
                scores=scores,
                team_score=score,
                solved=score >= 1,
                samples=tuple(refs),
            )
        )
    event = GroupSettled(
        draw=draw,
        origin=Origin.TRAIN,
        epoch=1,
        command_no=command_no,
        episodes=tuple(outcomes),
        started_at=at,
        finished_at=at + 0.4,
    )
    return SettledGroup(event, episodes, samples)


def _tokenizer() -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = WhitespaceSplit()
    return made.to_str()


def _devices(conn: Any, run_no: int, story: Story, roles: list[str], index: int, start: float, end: float) -> None:
    live = story.status is RunStatus.RUNNING
    pair = (0, 1) if index % 2 else (2, 3)
    leases = []
    for device, use in zip(pair, ("engine", "trainer"), strict=True):
        row = conn.execute(
            """INSERT INTO store.lease (device_id, run_id, use, state, fence, incarnation, expires_at, granted_at, ended_at)
            VALUES (%s, %s, %s, %s, 1, 'c1', now() + interval '1 day', to_timestamp(%s), to_timestamp(%s)) RETURNING id""",
            [f"atlas.cpu{device}", run_no, use, "held" if live else "ended", start, None if live else end],
        ).fetchone()
        leases.append((row[0], f"atlas.cpu{device}", use))
    begin = max(start, end - 320)
    for lease_id, device_id, use in leases:
        rows, at, ord_ = [], begin, 0
        while at < end - 0.2:
            for phase, policy, share in _phases(use, roles):
                length = story.step_s * share * (0.9 + 0.2 * story.rng.random())
                if phase:
                    rows.append(intervals.BusyInterval(ord_, phase, policy, at, min(end, at + length), 400))
                    ord_ += 1
                at += length
        intervals.put(conn, run_no, lease_id, device_id, incarnation="c1", rows=rows)


def _phases(use: str, roles: list[str]) -> list[tuple[str, str, float]]:
    if use == "engine":
        shares = 0.66 / len(roles)
        return [("rollout", role, shares) for role in roles] + [
            ("", "", 0.2),
            ("load", roles[-1], 0.06),
            ("", "", 0.08),
        ]
    own = 0.5 / len(roles)
    steps = [part for role in roles for part in (("train", role, own), ("step", role, 0.04))]
    return [("", "", 0.22), *steps, ("", "", 0.18)]


def _finish(conn: Any, lease: RunLease, story: Story, roles: list[str], curves: list[MetricPoint], end: float) -> None:
    seq = 4 if story.steps else 2
    last = {p.agent: p.value for p in curves if p.name == "reward/agent" and p.step == story.steps - 1}
    team = [p.value for p in curves if p.name == "reward/team" and p.stat == "mean"]
    evaluated = [p for p in curves if p.name == "eval/solved"]
    running = story.status is RunStatus.RUNNING
    progress = Progress(
        step=story.steps, max_steps=story.max_steps, cohort_groups=16, cohort_groups_settled=9 if running else 0,
        episodes_proposed=story.steps * 128, episodes_finished=story.steps * 128 - 3, episodes_failed=3 if story.steps else 0,
        samples_trained=story.steps * 256, tokens_generated=story.steps * 1480, step_seconds=story.step_s if team else None,
        reward=team[-1] if team else None, reward_first=team[0] if team else None,
        eval_solved=evaluated[-1].value if evaluated else None, eval_best=max((p.value for p in evaluated), default=None),
        eval_step=evaluated[-1].step if evaluated else None,
        agents={role: AgentProgress(reward=last.get(role), version=story.steps) for role in roles},
        micro_batches=tuple(MicroBatchProgress(policy=role, cut=3 - i, accumulated=2 - i, expected=4, state="accumulating") for i, role in enumerate(roles)) if running else (),
        waiting_for="7 of 16 groups of this step are still played" if running else "",
    )  # fmt: skip
    notes = [
        NoteLine(seq, "info", f"Granted atlas.cpu0 and atlas.cpu1 to run {lease.run_id}", end - 60, "driver"),
        NoteLine(seq, "info", f"Evaluation after step {story.steps}: solved {0.91:.2f}", end - 30, "driver", "eval"),
        NoteLine(
            seq, "warning", "Engine atlas.cpu0 restarted: process ended with code 137", end - 20, "node", "atlas.cpu0"
        ),
    ]
    if story.status is RunStatus.FAILED:
        notes.append(NoteLine(seq, "error", story.text, end, "driver"))
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


def as_json(rows: list[Any]) -> str:
    """Name the runs for whoever started the seeding as a program."""
    return json.dumps([{"key": run.key, "id": str(run.id)} for run in rows])
