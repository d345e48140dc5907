"""Small drawings and number formats for templates. Everything that came from people or models is escaped."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from flexmarl.contracts.status import SHOWN_TERMINAL, STOPPED
from webui import formats
from webui.figures.steps import Spark

register = template.Library()

PULSE = mark_safe('<i class="pulse"></i>')
"""The mark of a state that is alive."""

PILLS = {
    "draft": ("", "circle-dashed", "Draft"),
    "queued": ("", "clock", "Queued"),
    "starting": ("", "progress", "Starting"),
    "running": ("ok", "", "Running"),
    "pausing": ("wn", "player-pause", "Pausing"),
    "paused": ("wn", "player-pause", "Paused"),
    "resuming": ("", "progress", "Resuming"),
    "stopping": ("", "player-stop", "Stopping"),
    "done": ("", "circle-check", "Done"),
    "completed": ("", "circle-check", "Completed"),
    STOPPED: ("", "player-stop", "Stopped"),
    "failed": ("bad", "circle-x", "Failed"),
    "cancelled": ("", "ban", "Cancelled"),
    "killed": ("", "ban", "Killed"),
}
"""Status -> (tone, icon, word); running pulses instead of an icon."""

VERDICTS = {
    "healthy": ("ok", "circle-check", "Healthy"),
    "watch": ("wn", "alert-triangle", "Watch"),
    "degraded": ("bad", "alert-triangle", "Degraded"),
    "stalled": ("bad", "alert-circle", "Stalled"),
}
"""Verdict -> (tone, icon, word). It has no pill: beside a state it must look different from it."""

LEVELS = {"warning": ("wn", "alert-triangle"), "error": ("bad", "alert-circle")}


@register.simple_tag
def icon(name: str, classes: str = "") -> SafeString:
    """Draw an icon of the sprite; it carries no meaning of its own."""
    return format_html(
        '<svg class="i {}" aria-hidden="true"><use href="{}#{}"></use></svg>', classes, static("webui/icons.svg"), name
    )


@register.simple_tag
def icon_at(name: str, size: int = 12) -> SafeString:
    """Draw an icon inside another drawing."""
    return format_html(
        '<use class="i" href="{}#{}" width="{}" height="{}"></use>', static("webui/icons.svg"), name, size, size
    )


@register.simple_tag
def pill(run: Mapping[str, Any], now: datetime | None = None) -> SafeString:
    """Draw a run's state: icon, word and, given `now`, how long it has lasted."""
    tone, shape, word = PILLS.get(run["status"], ("", "circle-dashed", run["status"]))
    mark = icon(shape) if shape else PULSE
    lasted = ""
    if now:
        ended = run["status"] in SHOWN_TERMINAL
        lasted = f" {formats.ago(run['status_since'], now) if ended else formats.since(run['status_since'], now)}"
    title = run.get("reason_text") or word
    return format_html('<span class="pill {}" title="{}">{}{}{}</span>', tone, title, mark, word, lasted)


@register.simple_tag
def verdict(name: str, title: str = "") -> SafeString:
    """Draw how a run does; a dash where nothing can be said."""
    if name not in VERDICTS:
        return format_html('<span class="muted">{}</span>', formats.DASH)
    tone, shape, word = VERDICTS[name]
    return format_html('<span class="vd {}" title="{}">{}{}</span>', tone, title or word, icon(shape), word)


@register.simple_tag
def monogram(agent: Mapping[str, Any] | None, classes: str = "", word: str = "") -> SafeString:
    """Draw a role's square."""
    if not agent:
        return format_html('<span class="mg {}" aria-hidden="true">{}</span>', classes, word[:1].upper())
    two = "two" if len(agent["monogram"]) > 1 else ""
    return format_html(
        '<span class="mg hue-{} {} {}" title="{}" aria-hidden="true">{}</span>',
        agent["hue"], two, classes, agent["role"], agent["monogram"],
    )  # fmt: skip


@register.simple_tag
def chip(agent: Mapping[str, Any]) -> SafeString:
    """Draw a role's square and name."""
    return format_html('<span class="chip">{}{}</span>', monogram(agent), agent["role"])


@register.simple_tag
def bar(share: float | None, classes: str = "", label: str = "") -> SafeString:
    """Draw a share of 1 as a bar; without a label it is decoration beside its figure."""
    width = f"{100 * min(1.0, max(0.0, share or 0.0)):.2f}"
    named = format_html('role="img" aria-label="{}"', label) if label else SafeString('aria-hidden="true"')
    return format_html('<svg class="bar {}" {}><rect width="{}%" height="100%"></rect></svg>', classes, named, width)


@register.simple_tag
def sparkline(drawn: Spark | None, classes: str = "", fill: bool = True) -> SafeString:
    """Draw a sparkline; decoration beside its last value."""
    if drawn is None:
        return SafeString("")
    area = format_html('<polygon points="{}"></polygon>', drawn.area) if fill else SafeString("")
    return format_html(
        '<svg class="spark {}" width="{}" height="{}" viewBox="0 0 {} {}" aria-hidden="true">{}'
        '<polyline points="{}"></polyline><circle cx="{}" cy="{}" r="2.2"></circle></svg>',
        classes, drawn.width, drawn.height, drawn.width, drawn.height, area, drawn.line, drawn.end_x, drawn.end_y,
    )  # fmt: skip


@register.simple_tag
def moment(at: str | datetime | None, now: datetime) -> SafeString:
    """Write a time relative to now, the absolute one on hover."""
    then = formats.moment(at)
    if then is None:
        return SafeString(formats.DASH)
    local = then.astimezone(now.tzinfo)
    stamp, text = local.isoformat(timespec="seconds"), f"{local:%Y-%m-%d %H:%M:%S %Z}"
    return format_html('<time datetime="{}" title="{}">{}</time>', stamp, text, formats.ago(then, now))


@register.simple_tag
def squares(agents: list[Mapping[str, Any]]) -> SafeString:
    """Draw the squares of a team in a row."""
    return format_html_join("", "{}", ((monogram(agent),) for agent in agents))


@register.filter
def fixed(value: float | None, digits: int = 3) -> str:
    """Write a number with fixed digits."""
    return formats.number(value, digits)


@register.filter
def thousands(value: float | None) -> str:
    """Write a whole number with thin spaces."""
    return formats.number(value)


register.filter("signed", formats.signed)
register.filter("percent", formats.percent)
register.filter("si", formats.si)
register.filter("seconds", formats.duration)
register.filter("bytes", formats.bytes_text)
register.filter("device_hours", formats.device_hours)


@register.filter
def eta(value: Mapping[str, float] | None) -> str:
    """Write an estimate as a range."""
    return formats.span(value["low"], value["high"]) if value else formats.DASH


@register.filter
def lasted(run: Mapping[str, Any], now: datetime) -> str:
    """Write how long a run has been going, or took."""
    start, end = formats.moment(run["started_at"]), formats.moment(run["finished_at"]) or now
    return formats.duration((end - start).total_seconds()) if start else "not started"


@register.filter
def share_of(value: float | None, whole: float | None) -> float:
    """Divide, for bars."""
    return value / whole if value and whole else 0.0


@register.filter
def get(mapping: Mapping[str, Any] | None, key: str) -> Any:
    """Look a key up."""
    return (mapping or {}).get(key)


@register.filter
def level_tone(level: str) -> str:
    """Class of a note's level."""
    return LEVELS.get(level, ("muted", ""))[0]


@register.filter
def level_icon(level: str) -> str:
    """Icon of a note's level."""
    return LEVELS.get(level, ("", "info-circle"))[1]


@register.filter
def initials(name: str) -> str:
    """Two letters of a person's name."""
    parts = [part for part in name.replace(".", " ").replace("-", " ").replace("_", " ").split() if part]
    return (parts[0][0] + parts[1][0] if len(parts) > 1 else name[:2]).upper()


@register.filter
def minus(value: float, other: float) -> float:
    """Subtract, for places in drawings."""
    return round(value - other, 3)


@register.filter
def plus(value: float, other: float) -> float:
    """Add, for places in drawings."""
    return round(value + other, 3)


@register.filter
def spaced(name: str) -> str:
    """Write an identifier as words of the glossary."""
    return name.replace("micro_batch", "micro-batch").replace("mini_batch", "mini-batch").replace("_", " ")


@register.filter
def clock(at: str) -> str:
    """Write the time of day of a moment in the person's time zone."""
    then = formats.moment(at)
    return f"{timezone.localtime(then):%H:%M:%S}" if then else formats.DASH


@register.filter
def epoch_clock(at: float) -> str:
    """Write the time of day of seconds since the epoch in the person's time zone."""
    return f"{timezone.localtime(datetime.fromtimestamp(at, UTC)):%H:%M:%S}"


@register.filter
def of(share: float, height: float) -> float:
    """Percent of a height."""
    return round(share * height / 100, 2)


@register.filter
def from_top(share: float, height: float) -> float:
    """Where a bar of this many percent begins when it stands on the ground."""
    return round(height - share * height / 100, 2)


@register.filter
def words(text: str) -> list[str]:
    """Split a list written in a template."""
    return text.split()


@register.filter
def field_id(pointer: str) -> str:
    """Id of the input of a field."""
    return "f" + pointer.replace("/", "-")


@register.filter
def plain(value: Any) -> str:
    """Write a value as a person would type it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


@register.filter
def plus_half(value: float, width: float) -> float:
    """Middle of a box that begins at `value`."""
    return round(value + width / 2, 2)


@register.filter
def minus_half(value: float, width: float) -> float:
    """Beginning of a box whose middle is `value`."""
    return round(value - width / 2, 2)


@register.filter
def rest_of(value: float, whole: float) -> float:
    """What `value` leaves of a whole."""
    return round(whole - value, 2)


_CHANGES = {
    "cordon": "cordoned", "enable": "enabled", "drain": "draining", "note": "has another note",
    "move": "put into a pool", "create": "created", "update": "changed", "delete": "deleted", "set": "quota set",
}  # fmt: skip


@register.filter
def change_word(action: str) -> str:
    """Say what a change of the hardware's rules did."""
    kind, _, verb = action.partition(".")
    return "quota lifted" if action == "quota.delete" else _CHANGES.get(verb, f"{kind} {verb}")


@register.filter
def quota_for(quotas: list[Mapping[str, Any]], project: str) -> Mapping[str, Any] | None:
    """Find a project's quota among those of a pool."""
    return next((quota for quota in quotas if quota["project"] == project), None)


@register.filter
def slashless(name: str) -> str:
    """Id of a series' chart."""
    return str(name or "").replace("/", "-")


@register.filter
def at(rows: list[Any], index: int) -> Any:
    """Take the n-th of a list."""
    return rows[index]


@register.filter
def figure(value: float | None) -> str:
    """Write a figure of any size in few digits."""
    if value is None:
        return formats.DASH
    if value == int(value) and abs(value) < 10_000:
        return formats.number(value)
    if abs(value) >= 10_000:
        return formats.si(value)
    return formats.tiny(value) if abs(value) < 0.1 else formats.number(value, 1 if abs(value) >= 100 else 3)
