"""Talking to the agents of runs, in the dialect of OpenAI."""

from django.apps import AppConfig


class PlaygroundConfig(AppConfig):
    name = "flexmarl.controlplane.playground"
    label = "playground"
    verbose_name = "Playground"
