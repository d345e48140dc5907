"""Turn roles of the whole installation into roles in the default project, and names of projects into projects."""

from django.db import migrations

OLD_TABLES = ("runs_run", "experiments_experiment", "agents_agentdefinition")
NEW_ROLE = {"viewer": "viewer", "editor": "editor", "operator": "operator"}


def forwards(apps, editor):
    Project = apps.get_model("accounts", "Project")
    Membership = apps.get_model("accounts", "Membership")
    User = apps.get_model("accounts", "User")
    default, _ = Project.objects.get_or_create(
        name="default", defaults={"description": "Where runs belong unless told otherwise."}
    )
    for name in _named(editor):
        Project.objects.get_or_create(name=name)
    for user in User.objects.filter(role__in=NEW_ROLE):
        Membership.objects.get_or_create(project=default, user=user, defaults={"role": NEW_ROLE[user.role]})
        User.objects.filter(pk=user.pk).update(role="member")
    User.objects.filter(role="admin").update(role="cluster_admin")


def _named(editor):
    """Names that rows of older versions hold as text."""
    with editor.connection.cursor() as cursor:
        for table in OLD_TABLES:
            cursor.execute("SELECT to_regclass(%s)", [table])
            if cursor.fetchone()[0] is not None:
                cursor.execute(f"SELECT DISTINCT project FROM {table}")
                yield from [row[0] for row in cursor.fetchall()]


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_projects")]

    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
