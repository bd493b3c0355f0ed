"""The CronJob that docs/operations/reconciliation.md shows is the one that the chart makes."""

import re

import yaml

from support.deploy.helm_chart import Helm, containers
from support.paths import ROOT

PAGE = (ROOT / "docs" / "operations" / "reconciliation.md").read_text(encoding="utf-8")


def test_the_cron_job_of_the_page_is_that_of_the_chart(helm: Helm) -> None:
    [block] = re.findall(r"^```yaml\n(schedule:.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    shown = yaml.safe_load(block)
    made = helm.render().get("CronJob", "availability-updater")["spec"]
    job = made["jobTemplate"]["spec"]
    [container] = containers(job["template"])
    assert shown == {
        "schedule": made["schedule"],
        "concurrencyPolicy": made["concurrencyPolicy"],
        "jobTemplate": {
            "spec": {
                "activeDeadlineSeconds": job["activeDeadlineSeconds"],
                "template": {"spec": {"containers": [{"args": [*container["command"], *container["args"]]}]}},
            }
        },
    }
