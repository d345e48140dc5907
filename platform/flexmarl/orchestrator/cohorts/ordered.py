"""Where the promise of an ordered run ends.

What such a run promises is kept elsewhere: cohorts, slices and the turns of micro-batches follow draw numbers
(`cutting`, `trainers`), every draw of chance has its own key, engines compute a row's bits from the row alone, and
trainers refuse a sum out of turn. One thing no order can mend: an episode that the clock ended, because no engine
answered in time or the environment took too long. Another run may not lose it, so from here on the two may differ.
People are told, with the episode that did it; the run goes on.
"""

from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import GroupSettled
from flexmarl.orchestrator.context import Context


def watch_the_clock(ctx: Context, event: GroupSettled) -> None:
    """Tell that an ordered run has lost a member to the clock."""
    lost = next((episode for episode in event.episodes if episode.by_clock), None)
    if lost is None or not ctx.plan.ordered:
        return
    ctx.note(
        f"ordered: a timeout ended member {lost.member} of group {event.draw} ({lost.reason[:200]}); from here on a "
        "repetition of this run may give different results",
        NoteLevel.WARNING,
        target=f"draw:{event.draw}",
    )
