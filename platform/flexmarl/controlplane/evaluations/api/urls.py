"""Routes of suites and evaluations."""

from django.urls import path

from flexmarl.controlplane.evaluations.api import views

urlpatterns = [
    path("suites", views.SuitesView.as_view(), name="api-suites"),
    path("suites/<uuid:suite_id>", views.SuiteView.as_view(), name="api-suite"),
    path("suites/<uuid:suite_id>/versions", views.SuiteVersionsView.as_view(), name="api-suite-versions"),
    path("suites/<uuid:suite_id>/versions/<int:number>", views.SuiteVersionView.as_view(), name="api-suite-version"),
    path("suites/<uuid:suite_id>/leaderboard", views.LeaderboardView.as_view(), name="api-suite-leaderboard"),
    path("evaluations", views.EvaluationsView.as_view(), name="api-evaluations"),
    path("evaluations/<uuid:evaluation_id>", views.EvaluationView.as_view(), name="api-evaluation"),
    path("evaluations/<uuid:evaluation_id>/stop", views.StopEvaluationView.as_view(), name="api-evaluation-stop"),
    path("evaluations/<uuid:evaluation_id>/resume", views.ResumeEvaluationView.as_view(), name="api-evaluation-resume"),
    path("evaluations/<uuid:evaluation_id>/retry", views.RetryEvaluationView.as_view(), name="api-evaluation-retry"),
]
