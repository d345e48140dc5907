"""Support staff's view of evaluations. They are changed through actions only."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.evaluations.models import ModelEvaluation, Suite


@admin.register(Suite)
class SuiteAdmin(ReadOnlyAdmin):
    list_display = ("name", "project", "created_at")
    list_filter = ("project",)
    search_fields = ("name",)


@admin.register(ModelEvaluation)
class EvaluationAdmin(ReadOnlyAdmin):
    list_display = ("name", "project", "owner", "created_at")
    list_filter = ("project",)
    search_fields = ("name",)
