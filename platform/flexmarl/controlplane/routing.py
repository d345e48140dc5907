"""Websocket routes."""

from django.urls import path

from flexmarl.controlplane.telemetry.live.consumers import LiveConsumer

websocket_urlpatterns = [path("ws/v1/", LiveConsumer.as_asgi())]
