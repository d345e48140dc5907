"""The small drawings under the lanes: produced and consumed, trainer time, staleness. Pure: rows in, pixels out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webui.formats import duration, number

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, END = 280, 172, 28, 24, 10, 30
PARTS = (
    ("train", "train", "k1"),
    ("wait", "waits for samples", "k2"),
    ("other", "other work", "q2"),
    ("unbound", "not bound", "q1"),
)


@dataclass(frozen=True, slots=True)
class FlowLine:
    policy: str
    hue: int
    kind: str
    points: str
    label: str
    label_y: float


@dataclass(frozen=True, slots=True)
class Flow:
    lines: list[FlowLine]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    words: str


def flow(rows: Sequence[Mapping[str, Any]], agents: Mapping[str, Mapping[str, Any]]) -> Flow | None:
    """Draw how many micro-batches were ready and how many had their gradient, over the seconds of the step."""
    moments = [at for row in rows for at in (*row["ready"], *row["gradient"])]
    if not moments:
        return None
    end, top = max(*moments, 1e-3), max(max(len(r["ready"]), len(r["gradient"])) for r in rows)
    lines: list[FlowLine] = []
    used: list[float] = []
    words: list[str] = []
    for row in rows:
        agent = agents.get(row["policy"], {})
        for kind in ("ready", "gradient"):
            points = _stairs(row[kind], end, top)
            y = _y(len(row[kind]), top)
            while any(abs(y - other) < 11 for other in used):
                y += 11
            label = f"{agent.get('monogram', '')} {len(row[kind])}" if kind == "gradient" else ""
            used += [y] if label else []
            lines.append(FlowLine(row["policy"], agent.get("hue", 0), kind, points, label, round(y + 4, 1)))
        words.append(f"{row['policy']}: {len(row['ready'])} ready, {len(row['gradient'])} with gradient")
    return Flow(
        lines,
        [(_x(end * i / 4, end), duration(end * i / 4) if i else "0 s") for i in (0, 2, 4)],
        [(_y(v, top), number(v)) for v in sorted({0, round(top / 2), top})],
        "; ".join(words),
    )


def _x(at: float, end: float) -> float:
    return round(LEFT + at / end * (WIDTH - LEFT - END), 1)


def _y(count: float, top: int) -> float:
    return round(HEIGHT - BOTTOM - count / max(top, 1) * (HEIGHT - BOTTOM - TOP), 1)


def _stairs(moments: Sequence[float], end: float, top: int) -> str:
    points = [f"{_x(0, end)},{_y(0, top)}"]
    for i, at in enumerate(moments):
        points += [f"{_x(at, end)},{_y(i, top)}", f"{_x(at, end)},{_y(i + 1, top)}"]
    points.append(f"{_x(end, end)},{_y(len(moments), top)}")
    return " ".join(points)


def trainer_bars(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Split each policy's bar into its parts, in percent of the longest."""
    longest = max((sum(row[name] for name, _, _ in PARTS) for row in rows), default=0.0) or 1.0
    out = []
    for row in rows:
        x, parts = 0.0, []
        for name, word, swatch in PARTS:
            width = 100 * row[name] / longest
            text = f"{word} {duration(row[name])}"
            parts.append({"x": round(x, 3), "width": round(width, 3), "swatch": swatch, "title": text})
            x += width
        out.append({"policy": row["policy"], "parts": parts, "words": ", ".join(p["title"] for p in parts)})
    return out


def staleness_bars(
    rows: Sequence[Mapping[str, Any]], bound: int, agents: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Draw samples by versions behind; the bound is a dashed line behind its last allowed lag."""
    if not rows:
        return None
    lags = list(range(max(3, bound + 1, *(row["lag"] for row in rows)) + 1))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    most = max(row["samples"] for row in rows)
    slot = (WIDTH - LEFT - 8) / len(lags)
    width = slot * 0.7 / len(policies)
    bars = []
    for row in rows:
        left = LEFT + row["lag"] * slot + slot * 0.15 + policies.index(row["policy"]) * width
        height = row["samples"] / most * (HEIGHT - BOTTOM - TOP - 12)
        bars.append(
            {
                "x": round(left, 1), "y": round(HEIGHT - BOTTOM - height, 1), "width": round(max(1.0, width - 1), 1),
                "height": round(height, 1), "hue": agents.get(row["policy"], {}).get("hue", 0),
                "title": f"{row['policy']}: {row['samples']} samples {row['lag']} behind",
            }
        )  # fmt: skip
    beyond = sum(row["samples"] for row in rows if row["lag"] > bound)
    return {
        "bars": bars,
        "bound_x": round(LEFT + (bound + 1) * slot, 1),
        "ticks": [(round(LEFT + (lag + 0.5) * slot, 1), str(lag)) for lag in lags],
        "most": number(most),
        "top": HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP - 12),
        "words": f"bound {bound}: {number(beyond)} samples beyond",
        "beyond": beyond,
    }
