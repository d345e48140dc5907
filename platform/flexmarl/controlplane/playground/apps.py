"""Talking to the agents of runs, in the dialects of OpenAI and Anthropic."""

from importlib import import_module

from django.apps import AppConfig


class PlaygroundConfig(AppConfig):
    name = "flexmarl.controlplane.playground"
    label = "playground"
    verbose_name = "Playground"

    def ready(self) -> None:
        """Register serving keys with the API's document."""
        import_module("flexmarl.controlplane.playground.api.openapi")
