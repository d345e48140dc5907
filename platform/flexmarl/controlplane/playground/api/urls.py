"""Routes below `/v1/`: the base address of OpenAI's clients is `<origin>/v1`, that of Anthropic's `<origin>`."""

from django.urls import path, re_path

from flexmarl.controlplane.playground.api import views
from flexmarl.controlplane.playground.refusals import unknown_path

urlpatterns = [
    path("models", views.ModelsView.as_view(), name="openai-models"),
    path("models/<path:name>", views.ModelView.as_view(), name="openai-model"),
    path("chat/completions", views.ChatView.as_view(), name="openai-chat"),
    path("completions", views.CompletionsView.as_view(), name="openai-completions"),
    path("responses", views.ResponsesView.as_view(), name="openai-responses"),
    path("messages", views.MessagesView.as_view(), name="anthropic-messages"),
    path("messages/count_tokens", views.CountView.as_view(), name="anthropic-count-tokens"),
    re_path(r"^(?P<path>.*)$", unknown_path),
]
