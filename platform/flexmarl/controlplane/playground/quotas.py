"""What a serving key may use, exactly, however many calls come at once.

Invariants. A call is let in only if all that it may use at most fits into what is left of the day behind what was
charged and what calls under way may still use, so the quota is never exceeded. A call is charged once, with the tokens
that an engine read and made for it. Whoever begins or ends a call holds the lock of the key's day for that moment and
never while an engine is asked. What a web process that was killed had under way is let go after `LOST_S`, uncharged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from flexmarl.controlplane.common import measuring
from flexmarl.controlplane.common.problems import FieldError, RateLimited
from flexmarl.controlplane.playground.models import ServingCall, ServingDay, ServingKey

LOST_S = 300.0
"""Longer than any call takes: two waits for an engine, and an answer of each."""
AGAIN_S = 5
"""When to ask again for what calls under way may not need after all."""
MINUTE_S = 60


class QuotaExceeded(RateLimited):
    code = "quota_exceeded"
    title = "The quota of the key is used up"


@dataclass(slots=True)
class Meter:
    """One call under a key: let in, then charged."""

    key: ServingKey
    headers: dict[str, str] | None = None
    """What is left, in OpenAI's fields, once it is let in."""
    _call: ServingCall | None = None

    def open(self, most: int) -> None:
        """Let a call in that uses `most` tokens at most. Raises QuotaExceeded, with the moment to ask again."""
        with transaction.atomic():
            now = timezone.now()
            day = _locked(self.key, now)
            refusal = self._refusal(day, most, now)
            if refusal is None:
                day.minute_requests += 1
                day.requests += 1
                self._call = ServingCall.objects.create(of=day, reserved=most, opened_at=now)
            else:
                day.refused += 1
            day.save(update_fields=["minute", "minute_requests", "requests", "refused", "used_at"])
        measuring.PROCESS.served(self.key.project_id, "let_in" if refusal is None else "refused")
        if refusal is not None:
            raise refusal

    def close(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Charge what the call used, once; nothing if it never was let in."""
        call, self._call = self._call, None
        if call is None:
            return
        with transaction.atomic():
            ServingDay.objects.filter(pk=call.of_id).update(
                prompt_tokens=F("prompt_tokens") + prompt_tokens,
                completion_tokens=F("completion_tokens") + completion_tokens,
            )
            ServingCall.objects.filter(pk=call.pk).delete()
        measuring.PROCESS.charged(self.key.project_id, prompt_tokens, completion_tokens)

    def _refusal(self, day: ServingDay, most: int, now: datetime) -> QuotaExceeded | None:
        """Return why a call is not let in, or note what is left when it is."""
        requests, tokens = self.key.requests_per_minute, self.key.tokens_per_day
        if day.minute_requests >= requests:
            detail = f"requests_per_minute: the key {self.key.name} has sent its {requests} requests of this minute."
            return _exceeded(detail, "requests_per_minute", _to_minute(now))
        ServingCall.objects.filter(of=day, opened_at__lt=now - timedelta(seconds=LOST_S)).delete()
        held = ServingCall.objects.filter(of=day).aggregate(all=Sum("reserved"))["all"] or 0
        left = tokens - day.tokens - held
        if most > left:
            detail = (
                f"tokens_per_day: the request may use {most} tokens, prompt and replies together; of the {tokens} of "
                f"the key {self.key.name} for this day (UTC) {day.tokens} are used and {held} are reserved by calls "
                "under way. Lower max_tokens, or ask again later."
            )
            fits_later = most <= tokens - day.tokens
            return _exceeded(detail, "tokens_per_day", AGAIN_S if fits_later else _to_day(now))
        self.headers = {
            "x-ratelimit-limit-requests": str(requests),
            "x-ratelimit-remaining-requests": str(requests - day.minute_requests - 1),
            "x-ratelimit-limit-tokens": str(tokens),
            "x-ratelimit-remaining-tokens": str(left - most),
        }
        return None


def _locked(key: ServingKey, now: datetime) -> ServingDay:
    """Return the key's row of today, locked, with the counter of this minute."""
    day = now.astimezone(UTC).date()
    found = ServingDay.objects.select_for_update().filter(key=key, day=day).first()
    if found is None:
        ServingDay.objects.get_or_create(key=key, day=day)
        found = ServingDay.objects.select_for_update().get(key=key, day=day)
    minute = int(timezone.now().timestamp()) // MINUTE_S  # now: the lock may have been waited for
    if minute > found.minute:
        found.minute, found.minute_requests = minute, 0
    return found


def _exceeded(detail: str, quota: str, wait_s: int) -> QuotaExceeded:
    headers = {"Retry-After": str(wait_s)}
    if wait_s > MINUTE_S:
        headers["x-should-retry"] = "false"  # which OpenAI's clients honour: nobody waits for a day
    return QuotaExceeded(
        detail, errors=[FieldError(quota, QuotaExceeded.code, detail, location="header")], headers=headers
    )


def _to_minute(now: datetime) -> int:
    return MINUTE_S - int(now.timestamp()) % MINUTE_S


def _to_day(now: datetime) -> int:
    at = now.astimezone(UTC)
    return int((at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1) - at).total_seconds()) + 1
