"""kubectl and Helm commands of docs/spec.md mean something that the chart makes."""

import re

import pytest

from support.deploy.helm_chart import Helm
from support.deploy.printed_commands import check_kubectl, names
from support.specification import printed_commands

pytestmark = pytest.mark.slow


def kubectl_commands() -> list[str]:
    pieces = [code for each in printed_commands() for code in each.pieces()]
    return [found for code in pieces for found in re.findall(r"\bkubectl [^|;#]+", code)]


def test_what_the_documents_ask_kubectl_for_is_there(helm: Helm) -> None:
    objects = helm.render().objects
    commands = kubectl_commands()
    assert len(commands) > 40
    for command in commands:
        check_kubectl(command, objects)


def test_a_name_that_the_chart_does_not_make_is_noticed(helm: Helm) -> None:
    objects = helm.render().objects
    for command in (
        "kubectl get pods -n gpu-controlplane -l app=job-processor",
        "kubectl get cronjob -n gpu-controlplane updater",
        "kubectl port-forward -n gpu-controlplane svc/postgres 5432:5432",
        "kubectl exec -it postgres-main-0 -n gpu-controlplane -- psql",
        "kubectl get pods -n gpu-control-plane",
    ):
        with pytest.raises(AssertionError):
            check_kubectl(command, objects)


def test_rights_of_the_updater_are_found_by_their_name(helm: Helm) -> None:
    objects = helm.render("values-aws.yaml").objects
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        assert any("availability" in name for name in names(objects, kind)), kind


def test_a_release_keeps_the_label_by_which_its_claims_are_deleted(helm: Helm) -> None:
    [command] = [one for one in kubectl_commands() if "delete pvc" in one]
    label, value = command.split(" -l ")[1].split("=")
    claims = helm.render().of("PersistentVolumeClaim")
    assert claims and all(one["metadata"]["labels"][label] == value for one in claims)
