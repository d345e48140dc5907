"""The pipeline of a run over a window: what was generated, made ready, claimed, trained, stepped and published.

A micro-batch is *generating* from the first start of its episode groups, *ready* when the driver cut it, *claimed*
when a trainer took its command, and *gradient done* when the command was settled. Times are the database's, except
those of episodes, which rollout workers write. Nothing is estimated here; what is expected is marked so by the page.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.advisor.limits import limit_words
from flexmarl.controlplane.telemetry.timeline import bubble
from flexmarl.controlplane.telemetry.timeline.spans import cut as split_spans
from flexmarl.controlplane.telemetry.timeline.spans import length, merged
from flexmarl.controlplane.telemetry.timeline.windows import Window, window_of
from flexmarl.store.reads import activity, pipeline
from flexmarl.store.reads.activity import CommandSpan
from flexmarl.store.reads.pipeline import PlayedGroup, Slice
from flexmarl.store.telemetry.intervals import DeviceInterval

STRIP_STEPS = 120
"""Steps of the overview strip."""
LATE_S = 1.5
"""Nodes bring closed intervals at most this late."""
SHORTEST_S = 10.0
"""Shortest time of which a live run's limit is told."""
GAP_SHARE = 0.05
"""Share of the window from which on a gap between blocks is explained."""


def pipeline_of(
    run: Run, window_s: float | None = None, *, step: int | None = None, until: float | None = None
) -> dict[str, Any]:
    """Return everything the pipeline page shows, for a window of a run."""
    conn = store_connection()
    window = window_of(run, window_s, step=step, until=until)
    devices, found, commands = bubble.read(run, window)
    live = run.state.finished_at is None and step is None and until is None
    cohorts = _cohorts(commands, run.state.step)
    cut = pipeline.slices(conn, run.no, cohorts)
    played = {group.draw: group for group in pipeline.groups(conn, run.no, cohorts)}
    waiting = pipeline.open_groups(conn, run.no) if live else []
    current = cohorts[-1] if cut or waiting else None
    progress = runs.progress_of(run)
    agents = runs.RowMaker()(run)["agents"]
    order = list(dict.fromkeys(agent["policy"] for agent in agents if agent["trainable"]))
    lanes = [lane(name, [s for s in cut if s.policy == name], played, commands, window) for name in order]
    steps = activity.steps_between(conn, run.no, window.since, window.until)
    last = steps[-1][0] if steps else run.state.step
    for one in lanes:
        one["waits"] = waits(one, devices, commands, window)
        one["expected"] = _expected(one["policy"], progress, current, cut) if live else 0
        one["open_since"] = [g.since for g in waiting if g.since is not None]
    account = _settled_account(run, window) if live else bubble.account(devices, window)
    return {
        "window": [window.since, window.until],
        "window_s": round(window.seconds, 3),
        "step": step,
        "live": live,
        "current_step": None if current is None else current + 1,
        "step_seconds": progress["step_seconds"],
        "policies": lanes,
        "steps": [{"step": n, "t0": t0, "t1": t1} for n, t0, t1 in steps],
        "passed": passed(lanes, cut, commands, current, len(waiting), {a["policy"]: a["version"] for a in agents}),
        "flow": flow(order, cut, current, commands),
        "trainer_time": _trainer_time(run, last, order),
        "trainer_step": last or None,
        "staleness": _staleness(run, last),
        "lag_bound": int(run.spec["mechanisms"]["lag_policy"]["bound"]),
        "strip": [{"step": n, "seconds": s} for n, s in pipeline.step_times(conn, run.no, STRIP_STEPS)],
        "limits": limit_words(account, bubble.rates(found, devices), run.state.status),
        "bubble_share": account["bubble_share"],
        "seq": run.state.seq,
    }


def _cohorts(commands: Sequence[CommandSpan], step: int) -> list[int]:
    """List the cohorts of a window: those played in it, and the one before, whose training may reach into it."""
    played = {c.cohort for c in commands if c.kind == "play_groups" and c.origin != "eval" and c.cohort >= 0} or {step}
    return sorted(played | {max(0, min(played) - 1)})


def _settled_account(run: Run, window: Window) -> dict[str, Any]:
    """Sum a live window up without its newest moment, whose intervals are still on their way from the nodes."""
    end = window.until - LATE_S
    settled = Window(end - max(window.seconds, SHORTEST_S), end)
    return bubble.account(bubble.read(run, settled)[0], settled)


def lane(
    policy: str,
    cut: Sequence[Slice],
    played: dict[int, PlayedGroup],
    commands: Sequence[CommandSpan],
    window: Window,
) -> dict[str, Any]:
    """Describe one policy's micro-batches, optimizer steps and publications inside the window."""
    own = [c for c in commands if c.policy == policy]
    claims = {c.micro_batch: c for c in own if c.kind == "accumulate"}
    firsts: dict[int, int] = {}
    for one in cut:
        firsts[one.cohort] = min(one.no, firsts.get(one.cohort, one.no))
    blocks = [_block(one, one.no - firsts[one.cohort] + 1, played, claims.get(one.no)) for one in cut]
    served: dict[int, float] = {}
    for c in own:
        if c.kind == "load_weights" and c.t1 is not None and c.version > 0:
            served[c.version] = max(c.t1, served.get(c.version, 0.0))
    held = {c.version for c in own if c.kind == "load_weights" and c.t1 is None}
    stepped = [c for c in own if c.kind == "optimizer_step" and c.taken is not None]
    return {
        "policy": policy,
        "blocks": [b for b in blocks if b["ready"] >= window.since - window.seconds],
        "optimizer_steps": [{"t0": c.taken, "t1": c.t1, "version": c.version} for c in stepped],
        "publications": [
            {"version": v, "at": at} for v, at in sorted(served.items()) if v not in held and at >= window.since
        ],
        "stepped_held": max((c.version for c in stepped if c.t1 is not None and c.version not in served), default=None),
    }


def _block(one: Slice, number: int, played: dict[int, PlayedGroup], claim: CommandSpan | None) -> dict[str, Any]:
    made = [played[draw] for draw in range(one.first_draw, one.last_draw + 1) if draw in played]
    return {
        "micro_batch": one.no,
        "number": number,
        "cohort": one.cohort,
        "status": one.status,
        "rows": one.rows,
        "groups": len(made),
        "started": min((group.started_at for group in made), default=one.cut_at),
        "ready": one.cut_at,
        "claimed": claim.taken if claim else None,
        "done": claim.t1 if claim else one.done_at,
    }


def waits(
    own_lane: dict[str, Any],
    devices: Sequence[bubble.DeviceBubble],
    commands: Sequence[CommandSpan],
    window: Window,
) -> list[dict[str, Any]]:
    """List the gaps between a lane's blocks, each with what its trainer did or waited for most of the time."""
    worked = [(b["claimed"], b["done"] or window.until) for b in own_lane["blocks"] if b["claimed"]]
    worked += [(s["t0"], s["t1"] or window.until) for s in own_lane["optimizer_steps"]]
    leases = {c.lease_id for c in commands if c.policy == own_lane["policy"] and c.kind == "accumulate"}
    trainer = next((d for d in devices if d.lease.lease_id in leases), None)
    spans = merged(worked)
    if not spans:
        return []
    _, gaps = split_spans([(window.since, window.until)], spans)
    return [
        {"t0": low, "t1": high, **_why(low, high, trainer)}
        for low, high in gaps
        if high - low >= GAP_SHARE * window.seconds
    ]


def _why(low: float, high: float, trainer: bubble.DeviceBubble | None) -> dict[str, Any]:
    if trainer is None:
        return {"cause": "not_bound", "title": "No device bound", "seconds": high - low}
    parts: list[tuple[float, str, str]] = [
        (length(merged((max(a, low), min(b, high)) for a, b in spans)), cause.value, bubble.TITLES[cause])
        for cause, spans in trainer.causes.items()
    ]
    busy = length(merged((max(a, low), min(b, high)) for a, b in trainer.busy))
    seconds, cause, title = max([*parts, (busy, "other_policy", "Trains another policy")])
    return {"cause": cause, "title": title, "seconds": seconds}


def _expected(policy: str, progress: dict[str, Any], current: int | None, cut: Sequence[Slice]) -> int:
    """Return how many micro-batches of the running step are still to be cut."""
    for row in progress["micro_batches"]:
        if row["policy"] == policy:
            made = sum(1 for s in cut if s.policy == policy and s.cohort == current)
            return max(0, int(row["expected"]) - made)
    return 0


def passed(
    lanes: Sequence[dict[str, Any]],
    cut: Sequence[Slice],
    commands: Sequence[CommandSpan],
    current: int | None,
    waiting: int,
    served: dict[str, int],
) -> dict[str, Any]:
    """Count the newest step's micro-batches by how far they are; each is in exactly one place, or the sum tells."""
    claims = {(c.policy, c.micro_batch): c for c in commands if c.kind == "accumulate"}
    rows, places = [], Counter[str]()
    for lane in lanes:
        own = [s for s in cut if s.policy == lane["policy"] and s.cohort == current]
        at = Counter(_place(s, claims.get((s.policy, s.no))) for s in own)
        places += at
        rows.append(
            {
                "policy": lane["policy"],
                "generating": lane["expected"],
                "ready": len(own),
                "claimed": at["claimed"] + at["gradient"],
                "gradient": at["gradient"],
                "of": len(own) + lane["expected"],
                "serving": served.get(lane["policy"], 0),
            }
        )
    produced = sum(places.values())
    return {
        "step": None if current is None else current + 1,
        "rows": rows,
        "produced": produced,
        "accounted": produced - places["lost"],
        "void": places["void"],
        "groups_open": waiting,
    }


def _place(one: Slice, claim: CommandSpan | None) -> str:
    if one.status in ("accumulated", "applied"):
        return "gradient"
    if one.status == "void":
        return "void"
    if claim is None:
        return "lost"
    return "claimed" if claim.taken is not None else "ready"


def flow(
    order: Sequence[str], cut: Sequence[Slice], current: int | None, commands: Sequence[CommandSpan]
) -> list[dict[str, Any]]:
    """Return when the newest step's micro-batches became ready and when their gradients were in, per policy."""
    begun = min((c.t0 for c in commands if c.kind == "play_groups" and c.cohort == current), default=0.0)
    out = []
    for policy in order:
        own = [s for s in cut if s.policy == policy and s.cohort == current]
        done = {c.micro_batch: c.t1 for c in commands if c.kind == "accumulate" and c.policy == policy}
        ready = sorted(round(s.cut_at - begun, 3) for s in own)
        gradient = sorted(round((done.get(s.no) or s.done_at or 0) - begun, 3) for s in own if s.status != "cut")
        out.append({"policy": policy, "ready": ready, "gradient": gradient})
    return out


def _trainer_time(run: Run, step: int, order: Sequence[str]) -> list[dict[str, Any]]:
    """Split the last finished step's time of each policy: trained, waited for samples, other work, not bound."""
    span = activity.step_window(store_connection(), run.no, step) if step else None
    if span is None:
        return []
    window = Window(*span, step=step)
    return trainer_time(*bubble.read(run, window), window, order)


def trainer_time(
    devices: Sequence[bubble.DeviceBubble],
    found: Sequence[DeviceInterval],
    commands: Sequence[CommandSpan],
    window: Window,
    order: Sequence[str],
) -> list[dict[str, Any]]:
    """Split a step's time of each policy by what its trainers did."""
    rows = []
    for policy in order:
        leases = {c.lease_id for c in commands if c.policy == policy and c.kind in bubble.TRAINING}
        own = [d for d in devices if d.lease.lease_id in leases]
        train = sum(
            i.t1 - i.t0 for i in found if i.policy == policy and i.lease_id in leases and i.phase in ("train", "step")
        )
        waits = sum(length(d.causes.get(bubble.Cause.SAMPLES, [])) for d in own)
        held = sum(d.held_s for d in own)
        total = max(window.seconds, held)
        parts = {"train": train, "wait": waits, "other": max(0.0, held - train - waits), "unbound": total - held}
        rows.append({"policy": policy, **{name: round(value, 3) for name, value in parts.items()}})
    return rows


def _staleness(run: Run, step: int) -> list[dict[str, Any]]:
    """Count the last finished step's samples by policy and own lag."""
    found = pipeline.ages(store_connection(), run.no, step - 1) if step else []
    return [{"policy": policy, "lag": lag, "samples": count} for policy, lag, count in found]
