"""What a waiting run lacks, in one sentence for people. Pure."""

from collections.abc import Callable

from flexmarl.orchestrator.pool.arbiter import PrecedenceReason, Requirement, Unmet

_AHEAD = {
    PrecedenceReason.MINIMUM: "cannot do without and waits",
    PrecedenceReason.PART: "holds a part of its devices and waits",
    PrecedenceReason.RUNNING: "is already running and waits",
    PrecedenceReason.OVERDUE: "has waited too long",
    PrecedenceReason.PRIORITY: "has a higher priority",
    PrecedenceReason.SHARE: "belongs to a project that holds less and waits",
    PrecedenceReason.LONGER: "waits longer",
}


def devices(count: int) -> str:
    """Write a number of devices."""
    return f"{count} device" + ("" if count == 1 else "s")


def numbered(run_id: int) -> str:
    """Name a run where nobody may have read its name."""
    return f"run {run_id}"


def in_words(lack: Requirement, name_of: Callable[[int], str] = numbered) -> str:
    """Say what is not met and, where waiting alone does not help, what does."""
    verb = "is" if lack.there == 1 else "are"
    match lack.code:
        case Unmet.POOL_CLOSED:
            return (
                f"Project {lack.project} may not use {lack.pool}: bind it to the pool, or move the run to another one"
            )
        case Unmet.POOL_TOO_SMALL:
            short = f"Needs {devices(lack.wanted)} in {lack.pool}, {lack.there} {verb} healthy"
            return f"{short}: add a node, or request fewer"
        case Unmet.HOSTS_TOO_SMALL:
            engines = f"{lack.limit} engine" + ("" if lack.limit == 1 else "s")
            most = f"the largest host there has {lack.there} healthy"
            short = f"Needs {devices(lack.wanted)} of one host of {lack.pool} for each of {engines}, {most}"
            return f"{short}: add a node, or request engines of fewer devices"
        case Unmet.QUOTA_TOO_SMALL:
            return f"Needs {devices(lack.wanted)} in {lack.pool}, the quota of project {lack.project} is {lack.limit}"
        case Unmet.QUOTA_REACHED:
            return f"Project {lack.project} holds {lack.there} of its {devices(lack.limit)} in {lack.pool}"
        case Unmet.BEHIND:
            return f"Behind {name_of(lack.behind_run)}, which {_AHEAD[lack.behind_why]} for {lack.pool}"
        case Unmet.NOT_FREE:
            return f"Needs {devices(lack.wanted)} in {lack.pool}, {lack.there} of {lack.limit} {verb} free"
        case Unmet.SCATTERED:
            most = f"at most {lack.there} of one host {verb} free"
            return f"Needs {devices(lack.wanted)} of one host of {lack.pool} for an engine, {most}"
        case Unmet.MEMORY_LEASED:
            short = f"Needs {_gib(lack.wanted)} of memory on a further device of {lack.pool}"
            return f"{short}, and at most {_gib(lack.there)} of a free one are not leased"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
