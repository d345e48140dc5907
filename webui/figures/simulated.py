"""Charts of a simulation: presets beside each other, and what devices did. Pure: values in, values out.

A bar is the mean over seeds, its whisker reaches from the least to the most of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.simulator.reporting.report import CAUSES, EXPLAINED
from webui.figures.base import Figure, Table, layout
from webui.formats import number, percent, plural

ROW, AROUND = 26, 64
SHADES = {"weights": "$q6", "swap": "$q5", "tail": "$q4", "training": "$q3", "rollout": "$q3", "other": "$q1"}
"""Cause -> shade; an engine never waits for rollout, a trainer never for training."""
SWATCHES = {cause: shade.removeprefix("$") for cause, shade in SHADES.items()}
WORDS = {
    "weights": "loads weights",
    "swap": "starts, binds, suspends",
    "tail": "others of its kind are busy",
    "training": "trainers are busy",
    "rollout": "engines are busy",
    "other": "all idle",
}


def word_of(cause: str, use: str) -> str:
    """Return a cause in the words of one kind of device."""
    return f"other {use}s work" if cause == "tail" else WORDS[cause]


MEANS = {
    "step_s": "Simulated seconds per train step, averaged over the measured steps. Lower is better.",
    "tokens_s": "Reply tokens used for training, per simulated second.",
    "busy": "Share of leased device time spent working: replies on engines; gradients and optimizer steps on trainers.",
    "engine": "Why engines were idle, as shares of leased time; with busy time they add up to 100 %.",
    "trainer": "Why trainers were idle, as shares of leased time; with busy time they add up to 100 %.",
    "lag": "Mean number of versions between the weights that generated a row and those trained on it. 0 is on-policy.",
    "wasted": "Share of generated reply tokens never used for training: dropped, cancelled, or in flight at the end.",
    "devices": "Activity of every device over the measured steps, first seed. Empty is idle.",
}
Rows = Sequence[tuple[str, Mapping[str, Any]]]
"""(name, what `results.gathered` says of it), in the order shown."""


def charts(rows: Rows) -> dict[str, dict[str, Any]]:
    """Return all charts of a comparison by name."""
    rows = [(name, one) for name, one in rows if one["seeds"]]
    made = (
        _bars("step_s", "Time per step, s", rows, "step_s", digits=_step_digits(rows), told=" s"),
        _bars("tokens_s", "Trained tokens/s", rows, "tokens_s", digits=0, told=" tokens/s"),
        _utilisation(rows),
        _idle("engine", "Why engines were idle", rows),
        _idle("trainer", "Why trainers were idle", rows),
        _bars("lag", "Versions behind", rows, "lag", digits=2),
        _bars("wasted", "Generated and not trained", rows, "wasted_share", share=True),
    )
    return {figure.name: {**figure.as_dict(), "meaning": MEANS[figure.name]} for figure in made}


def _step_digits(rows: Rows) -> int:
    """Short steps are told to the hundredth."""
    return 1 if all(one["figures"]["step_s"]["mean"] >= 10.0 for _, one in rows) else 2


def _bars(
    name: str, title: str, rows: Rows, key: str, *, digits: int = 1, share: bool = False, told: str = ""
) -> Figure:
    """Draw one figure of all presets; `told` is its unit in words, where the title has it and ticks do not."""
    spreads = [one["figures"][key] for _, one in rows]
    scale = 100.0 if share else 1.0
    unit = " %" if share else ""
    columns = ["preset", "mean", "least", "most", "seeds"]
    table = Table(
        columns,
        [
            [word, *(round(spread[part] * scale, 4) for part in ("mean", "least", "most")), len(one["seeds"])]
            for (word, one), spread in zip(rows, spreads, strict=True)
        ],
    )
    means = [spread["mean"] * scale for spread in spreads]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [word for word, _ in rows],
            "x": [round(mean, 4) for mean in means],
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [round((s["most"] - s["mean"]) * scale, 4) for s in spreads],
                "arrayminus": [round((s["mean"] - s["least"]) * scale, 4) for s in spreads],
                "color": "$t1",
                "thickness": 1,
                "width": 3,
                "visible": any(s["most"] > s["least"] for s in spreads),
            },
            "marker": {"color": "$k2"},
            "text": [f"{number(mean, 1 if share else digits)}{unit or told}" for mean in means],
            "textposition": "none",
            "hovertemplate": "%{text}<extra>%{y}</extra>",
        }
    ]
    return Figure(name, title, _words(rows, means, digits, unit or told), table, data, _upright(rows, unit))


def _words(rows: Rows, means: Sequence[float], digits: int, unit: str) -> str:
    if not rows:
        return ""
    order = sorted(range(len(means)), key=lambda at: means[at])
    low, high = order[0], order[-1]
    if means[low] == means[high]:
        return f"{number(means[low], digits)}{unit} under {plural(len(rows), 'preset')}"
    return (
        f"From {number(means[low], digits)}{unit} ({rows[low][0]}) to {number(means[high], digits)}{unit} "
        f"({rows[high][0]})"
    )


def _utilisation(rows: Rows) -> Figure:
    kinds = (("engine_busy", "engines", "k1"), ("trainer_busy", "trainers", "k2"))
    shares = {key: [one["figures"][key]["mean"] for _, one in rows] for key, _, _ in kinds}
    table = Table(
        ["preset", "engines, %", "trainers, %"],
        [[word, *(round(100 * shares[key][at], 2) for key, _, _ in kinds)] for at, (word, _) in enumerate(rows)],
    )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": [word for word, _ in rows],
            "x": [round(100 * share, 3) for share in shares[key]],
            "marker": {"color": f"${swatch}"},
            "hovertemplate": "%{x:.1f} %<extra>" + label + "</extra>",
        }
        for key, label, swatch in kinds
    ]
    best = max(shares["engine_busy"], default=0.0)
    return Figure(
        "busy", "Busy share of held time", f"Engines are busy at most {percent(best, 1)}", table, data,
        _upright(rows, " %", 1.4, barmode="group"),
        [{"label": label, "swatch": swatch} for _, label, swatch in kinds],
    )  # fmt: skip


def _idle(use: str, title: str, rows: Rows) -> Figure:
    causes = [cause for cause in CAUSES if any(one["idle"][use].get(cause, 0.0) > 0.0005 for _, one in rows)]
    table = Table(
        ["preset", *(f"{word_of(cause, use)}, %" for cause in causes)],
        [[word, *(round(100 * one["idle"][use][cause], 2) for cause in causes)] for word, one in rows],
    )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": word_of(cause, use),
            "y": [word for word, _ in rows],
            "x": [round(100 * one["idle"][use][cause], 3) for _, one in rows],
            "marker": {"color": SHADES[cause]},
            "hovertemplate": "%{x:.1f} % " + EXPLAINED[cause] + "<extra></extra>",
        }
        for cause in causes
    ]
    sums = {cause: sum(one["idle"][use][cause] for _, one in rows) for cause in causes}
    most = max(sums, key=lambda cause: sums[cause], default=None)
    words = f"Most of it: {EXPLAINED[most]}" if most else "They were never idle"
    legend = [{"label": word_of(cause, use), "swatch": SWATCHES[cause]} for cause in causes]
    return Figure(use, title, words, table, data, _upright(rows, " %", barmode="stack"), legend)


def _upright(rows: Rows, unit: str = "", tall: float = 1.0, **more: Any) -> dict[str, Any]:
    longest = max((len(name) for name, _ in rows), default=0)
    return layout(
        height=AROUND + round(ROW * tall * max(1, len(rows))),
        margin={"l": min(190, 20 + round(6.1 * longest)), "r": 20, "t": 4, "b": 28},
        hovermode="closest",
        bargap=0.34,
        xaxis={"rangemode": "tozero", "gridcolor": "$grid", "ticksuffix": unit, "nticks": 6, "zeroline": False},
        yaxis={
            "autorange": "reversed",
            "type": "category",
            "nticks": 0,
            "dtick": 1,
            "gridcolor": "rgba(0,0,0,0)",
            "ticklabelstandoff": 4,
        },
        **more,
    )


KINDS: dict[str, tuple[str, str]] = {
    "rollout": ("generates", "q4"), "train": ("gradient", "q5"), "step": ("optimizer step", "q6"),
    "load": ("loads weights", "q3"), "bind": ("binds", "q2"), "resume": ("resumes", "q2"),
    "suspend": ("suspends", "q2"), "join": ("joins", "q2"), "vacate": ("makes room", "q2"),
    "checkpoint": ("checkpoint", "q2"), "sleep": ("sleeps", "q1"), "wake": ("wakes", "q1"), "start": ("starts", "q1"),
}  # fmt: skip
"""Kind of an interval -> what the device does, and its shade where no agent's hue says more."""
TALLEST = 64


def devices(line: Mapping[str, Any], hues: Mapping[str, int]) -> dict[str, Any]:
    """Draw what every device did: a row per device, policies in their hue."""
    shown = line["devices"][:TALLEST]
    names = {one["id"]: f"{one['use']} {one['id']}" for one in shown}
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in line["intervals"]:
        if one["device"] in names:
            by.setdefault((one["kind"], one["policy"] if one["busy"] else ""), []).append(one)
    data = [_lane(kind, policy, found, names, hues) for (kind, policy), found in sorted(by.items())]
    busy = {one["id"]: 0.0 for one in shown}
    for one in line["intervals"]:
        if one["busy"] and one["device"] in busy:
            busy[one["device"]] += one["t1"] - one["t0"]
    whole = line["seconds"] or 1.0
    rows = [[names[lease], round(100 * min(1.0, seconds / whole), 1)] for lease, seconds in busy.items()]
    left = f"; the shortest {number(line['left_out'])} intervals are left out" if line["left_out"] else ""
    more = f"; {len(line['devices']) - TALLEST} more devices are not drawn" if len(line["devices"]) > TALLEST else ""
    figure = Figure(
        "devices", f"Device activity: {line['name']}",
        f"{plural(len(shown), 'device')} over {number(whole)} s{left}{more}", Table(["device", "busy, %"], rows), data,
        layout(
            height=AROUND + 18 * max(2, len(shown)), barmode="overlay", bargap=0.2, hovermode="closest",
            margin={"l": 78, "r": 16, "t": 4, "b": 30},
            xaxis={"rangemode": "tozero", "gridcolor": "$grid", "ticksuffix": " s", "range": [0, whole]},
            yaxis={"autorange": "reversed", "type": "category", "categoryorder": "array", "dtick": 1,
                   "categoryarray": list(names.values()), "nticks": 0, "gridcolor": "rgba(0,0,0,0)",
                   "ticklabelstandoff": 4},
        ),
        _legend(by, hues),
    )  # fmt: skip
    return {**figure.as_dict(), "meaning": MEANS["devices"]}


def _lane(
    kind: str, policy: str, found: Sequence[Mapping[str, Any]], names: Mapping[int, str], hues: Mapping[str, int]
) -> dict[str, Any]:
    word, shade = KINDS.get(kind, (kind, "q2"))
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"{word} {policy}".strip(),
        "y": [names[one["device"]] for one in found],
        "x": [round(one["t1"] - one["t0"], 3) for one in found],
        "base": [one["t0"] for one in found],
        "marker": {"color": f"$a{hues[policy]}" if policy in hues and kind != "step" else f"${shade}"},
        "hovertemplate": f"%{{y}} {word} {policy}<br>%{{x:.2f}} s from %{{base:.1f}} s<extra></extra>",
    }


def _legend(by: Mapping[tuple[str, str], Any], hues: Mapping[str, int]) -> list[dict[str, Any]]:
    """Name every hue and shade once: kinds of one shade stand together."""
    policies = sorted({policy for kind, policy in by if policy in hues and kind != "step"})
    shades: dict[str, list[str]] = {}
    for word, shade in sorted(
        {KINDS.get(kind, (kind, "q2")) for kind, policy in by if policy not in hues or kind == "step"}
    ):
        shades.setdefault(shade, []).append(word)
    return [
        *({"label": policy, "hue": hues[policy]} for policy in policies),
        *({"label": ", ".join(words), "swatch": shade} for shade, words in sorted(shades.items(), reverse=True)),
    ]
