from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_project_weight"),
    ]

    operations = [
        migrations.AddField(
            model_name="socketticket",
            name="session_key",
            field=models.CharField(blank=True, default="", max_length=40),
            preserve_default=False,
        ),
    ]
