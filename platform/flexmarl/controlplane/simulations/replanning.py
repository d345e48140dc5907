"""Runs that go on are planned anew here: measured rates beside assumed ones, and a proposal where another setting pays.

Who looks claims the run's row first, reads and simulates without holding anything, and writes under the version that
it claimed; what somebody decided meanwhile stands. Nothing of a run is changed here: what is proposed is applied by
whoever asks for it, or by itself where the run says so (`replan_actions`). A look that failed is made again later.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from flexmarl.algorithms.replanning import (
    ComparedRate,
    Outcome,
    ReplanHistory,
    ReplanOptions,
    RunAsMeasured,
    SettingCandidate,
    TriedSetting,
    decide,
    learned,
    outside,
    seen,
    withdrawn,
)
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.experiments.choices import patch_of
from flexmarl.controlplane.experiments.predictions import kind_of
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs.models import Checkpoint, Run
from flexmarl.controlplane.simulations.choices import ReplanReason, ReplanState
from flexmarl.controlplane.simulations.models import RunReplan
from flexmarl.controlplane.simulations.replan_words import REASONS, wrong_words
from flexmarl.simulator.choosing.objectives import PoolStock
from flexmarl.simulator.choosing.rechoosing import NotRechosen, Rechosen, rechoose, setting_of, setting_with
from flexmarl.simulator.prediction.calibrating import calibrated
from flexmarl.simulator.prediction.drifting import StepWindow, compared
from flexmarl.simulator.prediction.fitting import pace_of, profile_of
from flexmarl.simulator.prediction.profile import Profile
from flexmarl.store.reads import activity, device_use, timings

log = structlog.get_logger(__name__)
OPTIONS = ReplanOptions()
AGAIN_S = 60.0
"""Between two looks at a run."""
CLAIMED_S = 300.0
"""After which somebody else looks at a run, where the process that claimed it is gone."""
LIMIT_S = 10.0
"""No further simulation is begun after so long."""
KEPT = 20
"""Former proposals that are kept."""


@dataclass(slots=True)
class _Look:
    """A run, what is kept of it, and what is written at the end."""

    run: Run
    row: RunReplan
    spec: ExperimentSpec
    history: ReplanHistory
    now: datetime
    rates: list[ComparedRate] = field(default_factory=list)
    next_s: float = AGAIN_S

    def became(self, state: ReplanState, reason: ReplanReason, text: str = "") -> None:
        """Note how things are."""
        self.row.state, self.row.reason = state, reason
        self.row.reason_text = text or REASONS[reason]

    def assumes(self, profile: Profile, measured: RunAsMeasured) -> None:
        """Take what is measured for what is assumed from now on: it has been chosen by."""
        figures = {name: figure.likely for name, figure in profile.figures.items()}
        self.row.assumed = {"figures": figures, "step_s": measured.step_s, "source": "measured"}
        self.history = replace(self.history, wrong_since=0.0)

    def stays(self, reason: ReplanReason, text: str = "") -> None:
        """Note why nothing is proposed now; what was proposed stays so."""
        if self.row.state != ReplanState.PROPOSED:
            self.became(ReplanState.WATCHING, reason, text)


def due() -> list[UUID]:
    """List the running runs with a plan that are to be looked at now."""
    watched = Q(plan__isnull=False) | Q(replan__isnull=False)
    at_work = Run.objects.filter(watched, state__status=RunStatus.RUNNING.value, archived_at=None)
    ready = at_work.filter(Q(replan=None) | Q(replan__next_look_at__lte=timezone.now()))
    return list(ready.exclude(replan__state=ReplanState.APPLIED).order_by("id").values_list("pk", flat=True))


def look(run_id: UUID) -> RunReplan | None:
    """Look at a run, and write what was found; None where another process does, or somebody decided meanwhile."""
    claimed = _claim(run_id)
    if claimed is None:
        return None
    run, row = claimed
    found = _Look(run, row, ExperimentSpec.model_validate(run.spec), history_of(row), timezone.now())
    _compare(found)
    row.history = asdict(found.history)
    row.looked_at, row.next_look_at = found.now, found.now + timedelta(seconds=found.next_s)
    return row if _write(row, run) else None


def _claim(run_id: UUID) -> tuple[Run, RunReplan] | None:
    with transaction.atomic():
        run = Run.objects.select_for_update(skip_locked=True, of=("self",)).select_related("state", "plan")
        found = run.filter(pk=run_id).first()
        if found is None:
            return None
        now = timezone.now()
        row, made = RunReplan.objects.get_or_create(
            run=found, defaults={"next_look_at": now, "assumed": _planned(found), "history": {"since": 0.0}}
        )
        if not made and row.next_look_at > now:
            return None
        row.next_look_at = now + timedelta(seconds=CLAIMED_S)
        row.save(update_fields=["next_look_at"])
        return found, row


def _planned(run: Run) -> dict[str, Any]:
    """Return what the plan of a run assumed."""
    if run.plan is None:
        return {"figures": {}, "step_s": None, "source": "measured"}
    figures = {name: figure["likely"] for name, figure in run.plan.figures.items()}
    return {"figures": figures, "step_s": run.plan.prediction["step_s"]["likely"], "source": "plan"}


def _write(row: RunReplan, run: Run) -> bool:
    """Write a look, unless somebody decided since it began."""
    with transaction.atomic():
        kept = RunReplan.objects.select_for_update().filter(pk=row.pk, version=row.version).first()
        if kept is None:
            return False
        shown = ("state", "reason", "reason_text", "proposal")
        row.version += any(getattr(kept, name) != getattr(row, name) for name in shown)
        row.save()
        if row.version != kept.version:
            live.announce_on_commit(live.run_topic(run.id), run.state.seq)
    return True


def _tried(kept: dict[str, Any]) -> TriedSetting:
    return TriedSetting(**kept)


def history_of(row: RunReplan) -> ReplanHistory:
    """Return what was changed before, from how it is stored."""
    from_row = dict(row.history)
    before, tried = from_row.pop("before", None), from_row.pop("tried", ())
    return ReplanHistory(
        **from_row, before=_tried(before) if before else None, tried=tuple(_tried(one) for one in tried)
    )


def _compare(look: _Look) -> None:
    """Compare what is measured with what was assumed, and go on where the plan was wrong."""
    run, row, spec = look.run, look.row, look.spec
    if spec.resources.elastic:
        look.next_s = 10.0 * AGAIN_S
        return look.became(ReplanState.OFF, ReplanReason.FLEET)
    if run.state.pending_verb or run.state.progress.get("frozen"):
        return look.stays(ReplanReason.UNDER_WAY)
    conn = store_connection()
    newest = activity.newest_steps(conn, run.no, OPTIONS.steps)
    if newest is None or newest[2] < OPTIONS.steps or newest[0] < look.history.since:
        return look.stays(ReplanReason.TOO_FEW)
    since, until, steps = newest
    rows, window = timings.read(conn, run.no, since), StepWindow(steps, until - since)
    look.rates = compared(spec, row.assumed["figures"], row.assumed["step_s"], rows, window)
    row.rates = [_rate_row(one) for one in look.rates]
    left = max(0, spec.budget.train_steps - run.state.step)
    measured = RunAsMeasured(setting_of(spec), steps, window.step_s, left)
    look.history = learned(OPTIONS, look.history, measured)
    wrong = bool(outside(OPTIONS, look.rates))
    look.history, chooses = seen(look.history, wrong, since, look.now.timestamp())
    if not chooses:
        return look.stays(ReplanReason.SEEN if wrong else ReplanReason.WITHIN)
    pace = calibrated(spec, pace_of(spec, rows, timings.device_kinds(conn, run.no)), rows)
    return _choose(look, measured, profile_of(spec, pace))


def _choose(look: _Look, measured: RunAsMeasured, profile: Profile) -> None:
    """Choose the devices anew by the measured rates, and propose them where they are worth it."""
    found = rechoose(look.spec, profile, _held(look), measured.step_s, _until(LIMIT_S))
    if isinstance(found, NotRechosen):
        look.assumes(profile, measured)
        return look.stays(ReplanReason.NOT_CHOSEN, found.why)
    kept = newest_checkpoint(look.run)
    lost = max(0, look.run.state.step - (kept.step if kept else 0))
    candidate = _candidate(look.spec, found, found.starts_s + lost * measured.step_s)
    now = look.now.timestamp()
    made = decide(OPTIONS, look.history, measured, candidate, now)
    own = look.row.proposal or {}
    same = look.row.state == ReplanState.PROPOSED and candidate is not None and own.get("setting") == candidate.setting
    if made.outcome in ("proposed", "hold") and candidate is not None:
        if same or (made.outcome == "proposed" and kept is not None):
            look.became(ReplanState.PROPOSED, ReplanReason.PROPOSED, _because(look))
            look.row.proposal = _proposal(look, found, candidate, measured, kept)
            look.row.proposal["refused"] = own.get("refused", "") if same else ""
            look.history = look.history if same else made.history
            return look.assumes(profile, measured)
        if made.outcome == "proposed":
            return look.stays(ReplanReason.NO_CHECKPOINT)
    return _nothing(look, made.outcome, measured, profile, made.until)


def _nothing(look: _Look, outcome: Outcome, measured: RunAsMeasured, profile: Profile, until: float) -> None:
    """Note why no setting is proposed; one that was proposed before is withdrawn."""
    if look.row.state == ReplanState.PROPOSED:
        past(look.row, "withdrawn", look.now)
        look.history = withdrawn(look.history, look.now.timestamp())
        look.became(ReplanState.WATCHING, ReplanReason.WITHDRAWN)
    else:
        look.became(ReplanState.WATCHING, ReplanReason(outcome))
    if outcome == "hold":
        look.next_s = max(AGAIN_S, until - look.now.timestamp())
    else:
        look.assumes(profile, measured)


def _held(look: _Look) -> tuple[PoolStock, ...]:
    """Return the devices that the run holds. A pool that it trains in already is one that it may train in."""
    there = inventory.devices()
    held = device_use.held_devices(store_connection(), look.run.no)
    return tuple(
        PoolStock(name=pool, kind=kind_of(there, pool), hosts=tuple(hosts), devices=sum(hosts))
        for pool, hosts in held.items()
    )


def _candidate(spec: ExperimentSpec, found: Rechosen, cost_s: float) -> SettingCandidate | None:
    if not found.changes:
        return None
    return SettingCandidate(
        setting=setting_with(spec, patch_of(found.changes)),
        direction=found.direction,
        gain=found.gain,
        gain_least=found.gain_least,
        cost_s=cost_s,
    )


def _proposal(
    look: _Look, found: Rechosen, candidate: SettingCandidate, measured: RunAsMeasured, kept: Checkpoint | None
) -> dict[str, Any]:
    step_s = measured.step_s
    return {
        "setting": candidate.setting,
        "instead_of": measured.setting,
        "changes": [one.model_dump(mode="json") for one in found.changes],
        "patch": patch_of(found.changes),
        "now_step_s": round(step_s, 6),
        "then_step_s": round(step_s * (1.0 - candidate.gain), 6),
        "then_step_s_most": round(step_s * (1.0 - candidate.gain_least), 6),
        "gain": round(candidate.gain, 4),
        "gain_least": round(candidate.gain_least, 4),
        "cost_s": round(candidate.cost_s, 3),
        "saves_s": round(candidate.gain_least * step_s * measured.left, 3),
        "steps_left": measured.left,
        "checkpoint": kept.step if kept else None,
        "because": [asdict(one) for one in outside(OPTIONS, look.rates)]
        or (look.row.proposal or {}).get("because", []),
        "why": list(found.why),
        "looked_at": found.looked_at,
        "simulated": found.simulated,
        "stopped": found.stopped,
        "measured_steps": measured.steps,
        "replay_step_s": round(found.own_step_s, 6),
        "at": rfc3339(look.now),
    }


def past(row: RunReplan, became: str, now: datetime) -> None:
    """Put a proposal among the former ones, with what became of it."""
    row.past = [{**(row.proposal or {}), "became": became, "until": rfc3339(now)}, *row.past][:KEPT]
    row.proposal = None


def newest_checkpoint(run: Run) -> Checkpoint | None:
    """Return the newest checkpoint that another run can go on from."""
    rows = Checkpoint.objects.filter(run_id=run.no, state="whole").exclude(parts={})
    return rows.order_by("-step").first()


def _because(look: _Look) -> str:
    return wrong_words(outside(OPTIONS, look.rates), look.row.assumed["source"])


def _rate_row(one: ComparedRate) -> dict[str, Any]:
    ratio = round(one.measured / one.assumed, 4) if one.assumed else None
    return {**asdict(one), "ratio": ratio, "outside": one.outside(OPTIONS)}


def _until(limit_s: float) -> Callable[[], bool]:
    end = time.monotonic() + limit_s
    return lambda: time.monotonic() < end
