"""Tests: fixed secrets, fast password hashing, an in-memory channel layer and cache, no limit on requests."""

from flexmarl.controlplane.settings.base import *  # noqa: F403
from flexmarl.controlplane.settings.base import CACHES, DATABASES

SECRET_KEY = "tests-only-secret-key-of-no-value"
ALLOWED_HOSTS = ["*"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CACHES["default"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
API_RATES = dict.fromkeys(("ordinary", "ingest", "sessions", "models", "anonymous", "secret"), 1_000_000)
# A pool keeps connections open, and an open connection keeps the test database from being dropped.
DATABASES["default"]["OPTIONS"].pop("pool", None)
