"""Cohorts: which groups make a global batch, and when all of them are settled.

Invariants: a cohort's groups all play under the vector pinned when it opened; its barrier waits for settled groups,
never for rows; a group's filter and advantages run once, on its complete information, before anything of it is cut.
A group with too few finished members is dropped and stays counted; nothing replaces it. What a filter refuses may be
drawn again (`resampling`). Where episodes settle one by
one, each gives its rows at once and its draw stays open until all members have ended; a member counts once.
"""

from collections.abc import Sequence

from flexmarl.algorithms.advantages import Advantages
from flexmarl.algorithms.filters import Signal, signal_of
from flexmarl.algorithms.replay import Row
from flexmarl.algorithms.selection import max_variance, widest_pairs
from flexmarl.algorithms.turn_mask import masked
from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import GroupSettled
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.cohorts.admission import may_fill
from flexmarl.orchestrator.cohorts.continuations import learn_prefixes, tell_predictor
from flexmarl.orchestrator.cohorts.credit import propose, unfilled
from flexmarl.orchestrator.cohorts.cutting import cut_ready, stop_idling
from flexmarl.orchestrator.cohorts.dispatch import note_lengths
from flexmarl.orchestrator.cohorts.incomplete import scored_failures
from flexmarl.orchestrator.cohorts.ordered import watch_the_clock
from flexmarl.orchestrator.cohorts.overlapping import begin_training
from flexmarl.orchestrator.cohorts.redundancy import (
    begin_long_round,
    beyond,
    cancel,
    enough,
    groups_to_open,
    hand_on,
    pass_on,
    take_late,
)
from flexmarl.orchestrator.cohorts.resampling import draw_again, drawn_text
from flexmarl.orchestrator.cohorts.rescue import Rescued, inject, offer, rescued
from flexmarl.orchestrator.cohorts.sharing import of_others
from flexmarl.orchestrator.cohorts.staleness import abandoned_of, ages_of, count_made, give_up
from flexmarl.orchestrator.cohorts.task_choice import belief_text, forget_draws, task_text, tell_sampler
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.rollout.group_commands import drive_rollout, members_of, newly_ended, settle_draw
from flexmarl.orchestrator.state.cohort import Cohort, CohortTimes, PendingGroup, Pin, PolicyCohort
from flexmarl.orchestrator.state.group_counts import (
    add_episode,
    add_facts,
    count_fates,
    count_tokens,
    finished_of,
    said_by,
)
from flexmarl.orchestrator.state.tokens import Undelivered

NOT_KEPT = "not_kept"
"""Cause of rows whose member is not among those that are trained on."""
EMPTY_COHORTS = 2
"""A run whose cohorts in a row lose every group to failed episodes is given up after so many."""


def open_cohort(ctx: Context, pins: dict[str, Pin], filled: bool = True) -> None:
    """Propose the next tasks under a vector and send them to play; not filled: make room for surplus alone."""
    state, plan = ctx.state, ctx.plan
    deferred = begin_long_round(ctx) if filled else []
    groups = len(deferred) or (groups_to_open(ctx) if filled else 0)
    cohort = Cohort(
        no=state.numbers.cohort,
        times=CohortTimes(opened_at=ctx.now, idle_since=None if state.cohorts else ctx.now),
        first_draw=state.numbers.draw,
        pins=pins,
        open={},
        policies={name: PolicyCohort() for name in plan.trainable},
        filled=filled,
        long_round=bool(deferred),
    )
    state.cohorts.append(cohort)
    if cohort is state.cohort:
        begin_training(ctx, cohort)
    state.numbers.cohort += 1
    if state.past_cohorts.first_opened_at is None:
        state.past_cohorts.first_opened_at = ctx.now
    propose(ctx, cohort, groups, deferred)


def close_cohort(ctx: Context, cohort: Cohort) -> None:
    """End the oldest cohort: what it carries goes into the next, which is trained from now on."""
    state = ctx.state
    state.cohorts.remove(cohort)
    state.past_cohorts.last_closed_at = ctx.now
    if ctx.plan.lag.fixed:
        state.past_cohorts.base = cohort.base
    forget_draws(ctx)
    for name, own in cohort.policies.items():
        if own.carried:
            state.policies[name].carry = own
    following = state.cohort
    if following is not None:
        if following.open:
            following.times.idle_since = ctx.now
        begin_training(ctx, following)
        if following.times.settled_at is not None and beyond(ctx, following):
            pass_on(ctx, following, _next_for(ctx))
        cut_ready(ctx, following)


def on_train_group(ctx: Context, event: GroupSettled) -> None:
    """Settle a group of the open cohort: filter, advantages, and whatever can be cut now."""
    take_late(ctx, event)
    cohort = next((own for own in ctx.state.cohorts if event.draw in own.open), None)
    if cohort is None:
        return
    ended = newly_ended(ctx, cohort, event)
    if not ended:
        return
    if ctx.plan.cutting.by_episode:
        event = _first_reports(cohort, event)
    watch_the_clock(ctx, event)
    finished = finished_of(event.episodes)
    count_fates(ctx.state.totals.train_episodes, cohort.tally, event.episodes, len(finished), ended)
    cohort.groups.members_abandoned += len(abandoned_of(event.episodes))
    before, size = (cohort.tally.samples, cohort.tally.tokens), cohort.size
    for episode in finished:
        add_episode(cohort.tally, episode)
    ctx.state.totals.tokens_generated += cohort.tally.tokens - before[1]
    to_train = count_tokens(ctx.state.totals.tokens, event.episodes, ctx.plan.trained_roles)
    rows = cohort.tally.samples - before[0]
    tell_sampler(ctx, cohort, event.draw, finished)
    note_lengths(ctx, cohort, event.draw, finished)
    tell_predictor(ctx, cohort, event.draw, finished)
    kept = _keep(ctx, cohort, event, finished)
    if kept is None:
        ctx.state.totals.samples_recorded += rows
    else:
        cohort.groups.kept += not ctx.plan.cutting.by_episode
        cohort.pending.append(kept)
        in_rows = sum(row[-1] for own in kept.rows.values() for row in own)
        ctx.state.totals.samples_recorded += rows - sum(len(own) for own in kept.rows.values())
        if to_train > in_rows:
            ctx.state.totals.tokens.lose(Undelivered.FILTERED, to_train - in_rows)
            _leave_out(ctx, cohort, kept, finished)
    if not ctx.plan.cutting.by_episode or _all_ended(ctx, cohort, event):
        settle_draw(ctx, cohort, event.draw)
    if cohort.size > size and not ctx.state.lifecycle.pause.frozen:
        drive_rollout(ctx, cohort)
    _settle_cohort(ctx, cohort)
    if cohort is ctx.state.cohort:
        cut_ready(ctx, cohort)


def _first_reports(cohort: Cohort, event: GroupSettled) -> GroupSettled:
    """Note which members ended, and leave out of a fact those that were told before."""
    ended = cohort.ended.setdefault(event.draw, {})
    fresh = tuple(episode for episode in event.episodes if episode.member not in ended)
    kept = {episode.member for episode in (*finished_of(fresh), *abandoned_of(fresh))}
    ended.update({episode.member: episode.member in kept for episode in fresh})
    return event.model_copy(update={"episodes": fresh})


def _all_ended(ctx: Context, cohort: Cohort, event: GroupSettled) -> bool:
    """Tell whether every member of a draw has ended; its group is kept if any of them finished, or was too old."""
    ended = cohort.ended[event.draw]
    if len(ended) < ctx.plan.cohort.members:
        return False
    if any(ended.values()):
        cohort.groups.kept += 1
        return True
    cohort.groups.dropped += 1
    why = _first_reason(event.episodes)
    text = f"group {event.draw} dropped: none of {ctx.plan.cohort.members} episodes finished{why}"
    ctx.note(text, NoteLevel.WARNING, target=f"draw:{event.draw}")
    _rule_out(ctx, RulingKind.GROUP_DROPPED, cohort, event, (), text)
    return True


def _keep(ctx: Context, cohort: Cohort, event: GroupSettled, finished: Sequence[EpisodeOutcome]) -> PendingGroup | None:
    """Return the rows a group gives to training, None when it is dropped or refused."""
    plan = ctx.plan
    count_made(ctx, cohort, finished)
    if plan.cutting.by_episode and not finished:
        return None
    members = members_of(ctx, cohort, event.draw)
    needed = min(plan.cohort.needed_members, members) if members < plan.cohort.members else plan.cohort.needed_members
    if len(finished) < needed and (abandoned := abandoned_of(event.episodes)):
        give_up(ctx, cohort, event, finished, abandoned)
        return None
    if len(finished) < needed and plan.spec.batch.incomplete_group == "score" and finished:
        finished = [*finished, *scored_failures(ctx, members, finished)]
    elif len(finished) < needed:
        cohort.groups.dropped += 1
        text = (
            f"group {event.draw} dropped: {len(finished)} of {members} episodes finished, "
            f"{needed} are needed{_first_reason(event.episodes)}"
        )
        ctx.note(text, NoteLevel.WARNING, target=f"draw:{event.draw}")
        _rule_out(ctx, RulingKind.GROUP_DROPPED, cohort, event, finished, text)
        return None
    advantages = _advantages(ctx, finished)
    signal = signal_of(finished, advantages)
    cohort.tally.signals[signal] = cohort.tally.signals.get(signal, 0) + 1
    saved = rescued(ctx, cohort, event.draw, finished)
    if saved is not None and (with_success := _with_a_success(ctx, cohort, event, saved)) is not None:
        return with_success
    add_facts(cohort.tally, plan.settlement.shaper.figures(finished))
    why = plan.settlement.shaper.refusal(finished)
    if not plan.settlement.group_filter.keeps(Signal(signal)):
        why = f"the filter {plan.spec.sampling.group_filter.type} keeps no {signal} group"
    if why:
        cohort.groups.refused += 1
        text = f"group {event.draw} refused: {why}"
        text += task_text(ctx, cohort, event.draw) + draw_again(ctx, cohort)
        _rule_out(ctx, RulingKind.GROUP_REFUSED, cohort, event, finished, text)
        return None
    kept, advantages = _kept(ctx, finished, advantages)
    advantages = of_others(ctx, cohort, kept, masked(kept, advantages, plan.spec.sampling.turn_quantile))
    cohort.groups.members += len(finished)
    cohort.groups.members_kept += len(kept)
    group = PendingGroup(event.draw, _rows(ctx, kept, advantages), ages_of(ctx, cohort, event, kept))
    offer(ctx, cohort, group, kept)
    return group


def _with_a_success(ctx: Context, cohort: Cohort, event: GroupSettled, saved: Rescued) -> PendingGroup | None:
    """Compare the members of a group that failed with an earlier success of its task; None where it earned no more."""
    *advantages, of_success = _advantages(ctx, saved.compared)
    if not any(of_success):
        return None
    advantages = masked(saved.fresh, advantages, ctx.plan.spec.sampling.turn_quantile)
    cohort.groups.members += len(saved.compared)
    cohort.groups.members_kept += len(saved.fresh)
    group = PendingGroup(event.draw, _rows(ctx, saved.fresh, advantages), ages_of(ctx, cohort, event, saved.fresh))
    inject(ctx, cohort, group, saved, _rows(ctx, [saved.success], [of_success]))
    return group


def _kept(
    ctx: Context, finished: Sequence[EpisodeOutcome], advantages: Advantages
) -> tuple[Sequence[EpisodeOutcome], Advantages]:
    """Choose the members that are trained on, with advantages of what they earned after shaping.

    `advantages` are those of all members before shaping. Members of pairs keep what the whole group gives them, others
    are compared with each other alone.
    """
    sampling, shaped = ctx.plan.spec.sampling, ctx.plan.spec.algorithm.shaping.type != "none"
    if sampling.keep_members is not None and sampling.keep_rule == "variance":
        kept = max_variance(finished, sampling.keep_members)
        return kept, _advantages(ctx, kept, shaped=True)
    if shaped:
        advantages = _advantages(ctx, finished, shaped=True)
    if sampling.keep_members is None:
        return finished, advantages
    given = {episode.member: own for episode, own in zip(finished, advantages, strict=True)}
    kept = widest_pairs(finished, sampling.keep_members)
    return kept, [given[episode.member] for episode in kept]


def _advantages(ctx: Context, episodes: Sequence[EpisodeOutcome], shaped: bool = False) -> Advantages:
    """Compare the rows of a group: by what they earned, which filters judge by, or by what it is shaped into."""
    plan = ctx.plan
    rewards = [plan.settlement.rewards(episode) for episode in episodes]
    if shaped:
        rewards = plan.settlement.shaper.shape_group(plan.settlement.reply_limits, episodes, rewards)
    return plan.settlement.advantage.estimate(plan.settlement.group_key, episodes, rewards)


def _rule_out(
    ctx: Context,
    kind: RulingKind,
    cohort: Cohort,
    event: GroupSettled,
    finished: Sequence[EpisodeOutcome],
    text: str,
) -> None:
    """Tell that a group gives nothing to training, with the rows that stay recorded for it."""
    trained, refused = ctx.plan.trained_roles, kind is RulingKind.GROUP_REFUSED
    cause = Undelivered.FILTERED if refused else Undelivered.INCOMPLETE
    ctx.state.totals.tokens.lose(cause, sum(said_by(episode, trained) for episode in finished))
    own = (sample for episode in finished for sample in episode.samples if sample.role in trained)
    rows = sum(not sample.follows for sample in own)
    ctx.rule(kind, text, cohort=cohort.no, target=f"draw:{event.draw}", rows=rows)


def _leave_out(ctx: Context, cohort: Cohort, kept: PendingGroup, finished: Sequence[EpisodeOutcome]) -> None:
    """Tell which rows of a kept group stay recorded, since their members are not trained on."""
    counts = ctx.state.totals.rows_dropped
    for policy, rows in _rows(ctx, finished, [[0.0] * len(episode.samples) for episode in finished]).items():
        if left := len(rows) - len(kept.rows.get(policy, ())):
            counts[NOT_KEPT] = counts.get(NOT_KEPT, 0) + left
            text = f"{left} rows of {policy} in group {kept.draw} stay recorded: their members are not trained on"
            target = f"draw:{kept.draw}"
            ctx.rule(
                RulingKind.ROWS_DROPPED, text, policy=policy, cohort=cohort.no, target=target, rows=left, cause=NOT_KEPT
            )


def _first_reason(episodes: Sequence[EpisodeOutcome]) -> str:
    reason = next((episode.reason for episode in episodes if episode.reason), "")
    return f" ({reason[:200]})" if reason else ""


def _rows(ctx: Context, finished: Sequence[EpisodeOutcome], advantages: Advantages) -> dict[str, list[Row]]:
    """Split a group's chains by policy. Frozen seats and chains without a reply are recorded, not trained."""
    plan = ctx.plan
    rows: dict[str, list[Row]] = {}
    for episode, values in zip(finished, advantages, strict=True):
        for (role, turn), (own, tokens) in _chains(episode, values).items():
            if tokens and role in plan.trained_roles:
                row = (episode.member, episode.attempt, role, turn, tuple(own), 1.0, tokens)
                rows.setdefault(plan.policy_of[role], []).append(row)
    return rows


def _chains(episode: EpisodeOutcome, advantages: Sequence[float]) -> dict[tuple[str, int], tuple[list[float], int]]:
    """Join an episode's turns by role and first turn of their chain: the advantage of each turn, and the tokens."""
    found: dict[tuple[str, int], tuple[list[float], int]] = {}
    for sample, advantage in zip(episode.samples, advantages, strict=True):
        own, tokens = found.get(key := (sample.role, sample.turn - sample.follows), ([], 0))
        found[key] = ([*own, advantage], tokens + sample.tokens)
    return found


def settle_with_enough(ctx: Context) -> None:
    """Settle cohorts that have enough groups; the oldest one's others play on for the next, or are cancelled."""
    cohort = ctx.state.cohort
    if cohort is None:
        return
    for later in ctx.state.cohorts[1:]:
        if later.open and enough(ctx, later):
            cancel(ctx, later)
            _settle_cohort(ctx, later)
    if not (cohort.filled or cohort.open or cohort.times.settled_at is not None or unfilled(ctx, cohort)):
        _settle_cohort(ctx, cohort)  # the run stops or pauses: nothing will come to it any more
        cut_ready(ctx, cohort)
        return
    if not cohort.open or not enough(ctx, cohort):
        return
    if ctx.plan.cohort.surplus_continues:
        following = _next_for(ctx)
        # A cohort that is settled takes no more groups that play, and one behind it would train them too late.
        if following is not None and following.times.settled_at is None:
            hand_on(ctx, cohort, following)
    if cohort.open:
        cancel(ctx, cohort)
    _settle_cohort(ctx, cohort)
    cut_ready(ctx, cohort)


def _next_for(ctx: Context) -> Cohort | None:
    """Return the cohort behind the one that is trained, begun now if there is none; None where none follows."""
    state = ctx.state
    left = state.numbers.cohort < ctx.plan.spec.budget.train_steps
    if len(state.cohorts) == 1 and state.lifecycle.status is RunStatus.RUNNING and left:
        open_cohort(ctx, state.vector(), filled=may_fill(ctx))
    return state.cohorts[1] if len(state.cohorts) > 1 else None


def _settle_cohort(ctx: Context, cohort: Cohort) -> None:
    if cohort.open or unfilled(ctx, cohort):
        return
    if cohort is ctx.state.cohort and beyond(ctx, cohort):
        pass_on(ctx, cohort, _next_for(ctx))
    cohort.times.settled_at = ctx.now
    learn_prefixes(ctx, cohort)
    groups, past = cohort.groups, ctx.state.past_cohorts
    text = f"every group is settled: {groups.kept} kept, {groups.refused} refused, {groups.dropped} dropped"
    if groups.handed_on or groups.cancelled:
        text += f"; of the surplus, {groups.handed_on} continue in the next step and {groups.cancelled} are cancelled"
    if groups.members_abandoned:
        text += f"; {groups.members_abandoned} episodes were abandoned as too old"
    text += drawn_text(ctx, cohort) + belief_text(ctx)
    ctx.rule(RulingKind.COHORT_SETTLED, text, cohort=cohort.no)
    stop_idling(ctx, cohort)
    past.empty_in_a_row = past.empty_in_a_row + 1 if groups.kept + groups.refused == 0 else 0


def starved(ctx: Context) -> tuple[RunReason, str] | None:
    """Return why a run that keeps losing all its episodes must end, None while it may go on."""
    if ctx.state.past_cohorts.empty_in_a_row < EMPTY_COHORTS:
        return None
    failure = ctx.state.cohort.tally.last_failure if ctx.state.cohort is not None else ""
    last = f"the last episode failed with {failure}; " if failure else ""
    needed = ctx.plan.cohort.needed_members
    return (
        RunReason.EPISODES_FAILED,
        f"{last}no group of {EMPTY_COHORTS} steps in a row had {needed} finished episodes; "
        "Trajectories lists each with its cause: correct it, or lower batch.min_members where only some fail",
    )
