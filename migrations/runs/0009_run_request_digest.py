from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_run_deletion")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="request_digest",
            field=models.CharField(blank=True, default="", editable=False, max_length=64),
            preserve_default=False,
        ),
    ]
