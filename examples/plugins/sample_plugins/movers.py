"""A slot goes from the shortest queue to the longest one, one at a time."""

from collections.abc import Mapping

from flexmarl.algorithms.movers import Move, Mover, Snapshot
from sample_plugins.options import LongestQueueOptions


class LongestQueue(Mover[LongestQueueOptions]):
    def too_long(self, queues: Mapping[str, float], engines: Mapping[str, int]) -> set[str]:
        lengths = {name: queue / engines[name] for name, queue in queues.items() if engines.get(name)}
        shortest = min(lengths.values(), default=0.0)
        return {name for name, length in lengths.items() if length - shortest >= self.options.turns}

    def moves(self, seen: Snapshot) -> list[Move]:
        served = [name for own in seen.serves.values() for name in own]
        lengths = {name: seen.policies[name].queue / served.count(name) for name in sorted(set(served))}
        into = max(lengths, key=lengths.__getitem__)
        out = min(lengths, key=lengths.__getitem__)
        able = [e for e in sorted(seen.movable) if out in seen.serves[e] and into not in seen.serves[e]]
        if served.count(out) < 2 or not able:  # the last engine of a policy stays
            return []
        reason = f"{into} has {lengths[into]:.0f} turns per engine, {out} has {lengths[out]:.0f}"
        return [Move(able[0], out, into, "disparity", reason)]
