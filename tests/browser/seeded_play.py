"""What seeded runs played: episodes with their conversations, and what their devices did."""

from datetime import UTC, datetime
from typing import Any

import orjson

from flexmarl.contracts.commands import CutMicroBatch, GroupOrder, PlayGroups
from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.events import GroupSettled, RunVerb, Verb
from flexmarl.contracts.live import Progress
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
from flexmarl.store.control import commands, decisions
from flexmarl.store.control.command_rows import IssuedCommand
from flexmarl.store.control.decisions import LogEntry, StoredDecision
from flexmarl.store.control.runs import RunLease
from flexmarl.store.data import groups
from flexmarl.store.data.groups import EpisodeRow, SampleRow, SettledGroup
from flexmarl.store.data.spans import Span
from flexmarl.store.telemetry import intervals

WORDS = [
    "<pad>",
    "<bos>",
    "<eos>",
    "red",
    "blue",
    "round",
    "square",
    "<script>alert(1)</script>",
    *(f"w{i}" for i in range(15)),
]
HOSTILE = "<img src=x onerror=alert(1)> </script><b>bold</b>"
MEMBERS = 8


def episodes(conn: Any, run_no: int, lease: RunLease, story: Any, roles: list[str], start: float) -> None:
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
    sent = [IssuedCommand(seq, NumberedCommand(n, 1, command)) for n, _, command in issued]
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
                                advantages=(group.episodes[s.member].team_score - mean,),
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
    sent = [IssuedCommand(3, NumberedCommand(no + i, 1, command)) for i, command in enumerate(cut)]
    decisions.append(
        conn, lease, StoredDecision([event], RunStatus.RUNNING, RunReason.NONE, "", 1, 0, progress, None, commands=sent)
    )
    conn.execute("UPDATE store.micro_batch SET status = 'applied', version = cohort + 1 WHERE run_id = %s", [run_no])
    _versions(conn, run_no, roles, story.steps, start)


def _versions(conn: Any, run_no: int, roles: list[str], steps: int, start: float) -> None:
    """The last versions of every policy, and what was exported of them."""
    for role in roles:
        for version in range(max(0, steps - 3), steps + 1):
            conn.execute(
                "INSERT INTO store.policy_version (run_id, policy, version, parent, digest, state, at) "
                "VALUES (%s, %s, %s, %s, %s, %s, to_timestamp(%s))",
                [
                    run_no, role, version, version - 1 if version else None, f"{version:064x}",
                    f"{version:064x}" if version % 2 else "", start + version,
                ],
            )  # fmt: skip
    for step, kept, state, text in (
        (steps, "{last}", "whole", ""),
        (max(1, steps - 1), "{last,best}", "whole", ""),
        (max(1, steps - 2), "{}", "damaged", "solver/model.safetensors is not what was written; put it back"),
        (max(1, steps - 3), "{}", "removed", "no rule keeps it"),
    ):
        vector = orjson.dumps(dict.fromkeys(roles, step)).decode()
        part = {"version": step, "digest": f"{step:064x}", "state": f"{step:064x}"}
        conn.execute(
            "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes, at, node, kept_by, parts, "
            "state, state_text, pinned_at, pinned_by, solved, team_score) VALUES (%s, 'last', %s, %s, %s, %s, "
            "to_timestamp(%s), 'gpu-1', %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [
                run_no, step, vector, f"/var/lib/flexmarl/checkpoints/run-{run_no}/step-{step}",
                0 if state == "removed" else 1_480_000, start + step, kept,
                orjson.dumps(dict.fromkeys(roles, part)).decode(), state, text,
                datetime.now(UTC) if state == "damaged" else None, "mira" if state == "damaged" else "",
                0.75 if "best" in kept else None, 0.625 if "best" in kept else None,
            ],
        )  # fmt: skip


def _group(story: Any, roles: list[str], draw: int, step: int, command_no: int, at: float) -> SettledGroup:
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
                        [Span(4, size, "stop", 0.0, "e1", 8 + 9 * rng.random())],
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
        versions=dict.fromkeys(roles, step),
    )
    return SettledGroup(event, episodes, samples)


def _tokenizer() -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = WhitespaceSplit()
    return made.to_str()


def devices(conn: Any, run_no: int, story: Any, roles: list[str], index: int, start: float, end: float) -> None:
    live = story.status is RunStatus.RUNNING
    pair = (0, 1) if index % 2 else (2, 3)
    leases = []
    for device, use in zip(pair, ("engine", "trainer"), strict=True):
        row = conn.execute(
            """
            INSERT INTO store.lease
              (device_id, run_id, use, state, fence, incarnation, expires_at, granted_at, ended_at)
            VALUES (%s, %s, %s, %s, 1, 'c1', now() + interval '1 day', to_timestamp(%s), to_timestamp(%s))
            RETURNING id
            """,
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
