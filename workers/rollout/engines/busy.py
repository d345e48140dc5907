"""Busy time of an engine that decodes several policies in turns, as few closed intervals.

A decode step takes a millisecond and policies alternate, so the steps of one stretch are drawn per policy, side by
side: each policy's interval is exactly as long as its steps took, and none leaves the stretch.
"""

from dataclasses import dataclass

from workers.child import IntervalLog

STRETCH_S = 0.25
"""A stretch is closed after this long, so that a busy engine is seen working."""


@dataclass(slots=True)
class _Share:
    seconds: float = 0.0
    cpu: float = 0.0
    tokens: int = 0
    steps: int = 0
    prompts: int = 0


class BusyTime:
    """Collects steps and writes stretches to an interval log."""

    def __init__(self, log: IntervalLog, devices: int = 1) -> None:
        """`devices`: of the engine; several have processes of their own, of whose time none is known here."""
        self._log, self._devices = log, devices
        self._start = 0.0
        self._end = 0.0
        self._prompts = 0
        self._shares: dict[str, _Share] = {}

    def add(self, policy: str, t0: float, t1: float, tokens: int, prompts: int = 0, cpu: float = 0.0) -> None:
        """Count one decode step, `t0 <= t1` in seconds since the epoch.

        `prompts` are the prompt tokens handed in so far; those since the step before count for this one. `cpu` is what
        the step took of the processor, in seconds.
        """
        self._log.progress.beat()
        if self._shares and (t0 - self._end > IntervalLog.MERGE_GAP_S or t1 - self._start > STRETCH_S):
            self.close()
        if not self._shares:
            self._start = t0
        share = self._shares.setdefault(policy, _Share())
        share.seconds += t1 - t0
        share.cpu += cpu if self._devices == 1 else 0.0
        share.tokens += tokens
        share.steps += 1
        share.prompts += prompts - self._prompts
        self._prompts = prompts
        self._end = t1

    def close(self) -> None:
        """Write the open stretch; the engine is idle or does something else."""
        start = self._start
        for policy, share in self._shares.items():
            self._log.add(
                "rollout", policy, start, start + share.seconds, share.tokens, steps=share.steps,
                prompts=share.prompts, cpu=share.cpu,
            )  # fmt: skip
            start += share.seconds
        self._shares.clear()
