"""Routes of OpenAI's dialect, below `/v1/`: the base address of a client is `<origin>/v1`."""

from django.urls import path, re_path

from flexmarl.controlplane.playground.api import views
from flexmarl.controlplane.playground.refusals import unknown_path

urlpatterns = [
    path("models", views.ModelsView.as_view(), name="openai-models"),
    path("models/<path:name>", views.ModelView.as_view(), name="openai-model"),
    path("chat/completions", views.ChatView.as_view(), name="openai-chat"),
    path("completions", views.CompletionsView.as_view(), name="openai-completions"),
    re_path(r"^(?P<path>.*)$", unknown_path),
]
