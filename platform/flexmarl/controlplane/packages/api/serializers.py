"""Shapes of packages."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.packages.filters import STATES


class PackageSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField(help_text="Distribution; runs name it as NAME@RELEASE.")
    release = serializers.CharField(help_text="Version of the distribution.")
    source = serializers.JSONField(help_text="Where it came from.")  # type: ignore[assignment]
    owner = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(STATES)
    reason = serializers.CharField(allow_blank=True, help_text="Why the build failed: see docs/refusals.md.")
    reason_text = serializers.CharField(allow_blank=True)
    now = serializers.CharField(allow_blank=True, help_text="What the build is doing.")
    digest = serializers.CharField(allow_blank=True, help_text="Of all that was installed; empty until it is ready.")
    environments = serializers.IntegerField(help_text="How many it offers.")
    allowed_actions = serializers.ListField(child=serializers.CharField())
    archived_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Version of this row, for If-Match.")
    url = serializers.CharField()


class PackageDetailSerializer(PackageSerializer):
    manifest = serializers.JSONField(help_text="Its environments with options, roles and scores, and what is left out.")
    lock = serializers.JSONField(help_text="What was installed: [{name, version, sha256}].")
    log = serializers.CharField(allow_blank=True, help_text="End of what the build wrote.")
    node = serializers.CharField(allow_blank=True, help_text="Who builds or built it.")


class NewPackageSerializer(StrictSerializer):
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    source = serializers.DictField(  # type: ignore[assignment]
        help_text="{type: requirement, requirement: textarena==0.7.4}, or {type: upload, file: NAME, digest: SHA256} "
        "of a file that was uploaded; with entry: my_package.games:Maze for a class that no registry names."
    )


class PackageFileSerializer(serializers.Serializer[Any]):
    file = serializers.CharField()
    digest = serializers.CharField(help_text="SHA-256, by which a build names it.")
    bytes = serializers.IntegerField()
