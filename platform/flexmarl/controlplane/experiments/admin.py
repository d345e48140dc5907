"""Support staff's view of experiments."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import AnyModelAdmin
from flexmarl.controlplane.experiments.models import Experiment


@admin.register(Experiment)
class ExperimentAdmin(AnyModelAdmin):
    list_display = ("name", "project", "owner", "created_at")
    search_fields = ("name",)
    readonly_fields = ("owner",)
