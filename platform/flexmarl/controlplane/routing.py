"""Websocket routes."""

from typing import Any, cast

from django.urls import path

from flexmarl.controlplane.telemetry.live.consumers import LiveConsumer

# Channels takes Django's patterns with applications in place of views; its types know only patterns of its own.
websocket_urlpatterns: list[Any] = [path("ws/v1/", cast("Any", LiveConsumer.as_asgi()))]
