from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inventory", "0003_node_token"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="preemptible",
            field=models.BooleanField(default=False),
        ),
    ]
