"""Routes of the API."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
