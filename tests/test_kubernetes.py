"""docs/kubernetes.md and its manifests: what the API takes, what the guard makes of them, and that probe and wait agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import kubernetes_validate.utils
import pytest
import yaml
from doc_pages import ROOT, read_page
from guard_process import Host

from vllm_guard.claims.lock import AT_MOST_SECONDS
from vllm_guard.settings import TABLE
from vllm_guard.settle import AUTO_SECONDS
from vllm_guard.units import ExitCode

FOLDER = ROOT / "docs" / "kubernetes"
PAGE = "docs/kubernetes.md"


def numbers(version: str) -> tuple[int, ...]:
    """1.34 as (1, 34), and 1.34.0 too."""
    return tuple(map(int, version.split(".")[:2]))


VERSIONS = sorted({"{}.{}".format(*numbers(version)) for version in kubernetes_validate.utils.all_versions()}, key=numbers)


def documents(path: Path) -> list[dict[str, Any]]:
    """The resources of a manifest."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


MANIFESTS = {path.name: documents(path) for path in sorted(FOLDER.glob("*.yaml"))}
RESOURCES = [pytest.param(name, each, id=f"{name} {each['kind']} {each['metadata']['name']}") for name, all_of in MANIFESTS.items() for each in all_of]
DEPLOYMENTS = [each for all_of in MANIFESTS.values() for each in all_of if each["kind"] == "Deployment"]
PODS = [*(each["spec"]["template"] for each in DEPLOYMENTS), *MANIFESTS["pod.yaml"]]
CONTAINERS = [container for pod in PODS for container in pod["spec"]["containers"]]


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables with a value."""
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


@pytest.mark.parametrize(("name", "resource"), RESOURCES)
def test_every_manifest_is_what_the_api_takes(name: str, resource: dict[str, Any]) -> None:
    """In every release that the page names."""
    said = re.search(r"for (1\.\d+) to (1\.\d+) \(`pod\.yaml` from (1\.\d+)\)", read_page(PAGE))
    assert said is not None
    first = numbers(said[3] if name == "pod.yaml" else said[1])
    checked = [version for version in VERSIONS if first <= numbers(version) <= numbers(said[2])]

    assert said[2] in checked
    for version in checked:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelled_key_would_be_found() -> None:
    """The check above can fail, also deep inside."""
    deployment = documents(FOLDER / "deployment.yaml")[0]
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    probe["failureTreshold"] = probe.pop("failureThreshold")

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


# Of each startup probe, what its seconds are for: waiting, settling, loading; failures, seconds between them.
SAID = re.findall(
    r"# (\d+) s of waiting \+ (\d+) s of settling and locks \+ (\d+) s for loading = (\d+) x (\d+) s",
    "".join(path.read_text() for path in sorted(FOLDER.glob("*.yaml"))),
)


@pytest.mark.parametrize(("deployment", "said"), [pytest.param(*pair, id=pair[0]["metadata"]["name"]) for pair in zip(DEPLOYMENTS, SAID, strict=True)])
def test_the_startup_probe_outlasts_the_wait_and_the_loading(deployment: dict[str, Any], said: tuple[str, ...]) -> None:
    """As its comment and the page say; the rollout's deadline outlasts the probe, and the old Pod's memory is free before it is waited for."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    probe, wait = container["startupProbe"], int(environment(container)["VLLM_GUARD_WAIT"])
    waiting, settling, loading, failures, period = map(int, said)
    on_the_page = re.search(r"have (\d+) x (\d+) s for (\d+) s of waiting and (\d+) s of loading", read_page(PAGE).replace("\n", " "))

    assert on_the_page is not None
    assert (failures, period, wait, loading) == tuple(map(int, on_the_page.groups()))
    assert (failures, period, wait) == (probe["failureThreshold"], probe["periodSeconds"], waiting)
    assert settling >= AUTO_SECONDS + AT_MOST_SECONDS
    assert wait + settling + loading <= period * failures < deployment["spec"]["progressDeadlineSeconds"]
    assert {"type": "Recreate"} == deployment["spec"]["strategy"]


def test_every_pod_keeps_the_entrypoint_and_what_it_needs() -> None:
    """No command, no variables of Services, the guard's file for its last words."""
    default = next(row.default for row in TABLE if row.name == "termination_log")

    assert len(CONTAINERS) == len(PODS) == 4
    for pod, container in zip(PODS, CONTAINERS, strict=True):
        assert "command" not in container
        assert pod["spec"]["enableServiceLinks"] is False
        assert default == container.get("terminationMessagePath", "/dev/termination-log")
        assert "1" == container["resources"]["limits"]["nvidia.com/gpu"]
    assert not any(each["metadata"]["name"].startswith("vllm") for all_of in MANIFESTS.values() for each in all_of)


def test_pods_that_share_a_card_share_the_folder_of_claims() -> None:
    """The guard's own default, of the node; and what they ask for fits beside each other."""
    shared = [each["spec"]["template"]["spec"] for each in MANIFESTS["shared-card.yaml"]]
    default = next(row.meaning for row in TABLE if row.name == "claims_dir")
    shares = [float(words[words.index("--gpu-memory-utilization") + 1]) for pod in shared for words in [pod["containers"][0]["args"]]]
    for pod in shared:
        (host_path,) = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "claims"]
        (mount,) = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "claims"]
        assert host_path == mount
        assert f"auto: {mount}," in default

    assert len(shares) == 2
    assert sum(shares) < 0.95


def test_the_pod_that_is_not_restarted_tells_the_guards_codes_apart() -> None:
    """Those that no retry can mend."""
    (rule,) = MANIFESTS["pod.yaml"][0]["spec"]["containers"][0]["restartPolicyRules"]
    never = [ExitCode.USAGE, ExitCode.REFUSED_FOR_GOOD, ExitCode.CANNOT_RUN, ExitCode.NOT_FOUND]

    assert ("Restart", "NotIn", sorted(never)) == (rule["action"], rule["exitCodes"]["operator"], rule["exitCodes"]["values"])


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda each: " ".join(each["args"][:1]))
def test_the_guard_starts_every_container_as_it_is_written(host: Host, container: dict[str, Any]) -> None:
    """On an idle card at once, with its arguments unchanged and nothing to warn of."""
    ended = host.run("serve", *container["args"], environ={**environment(container), "VLLM_GUARD_LOG_FORMAT": "console"})

    assert ended.reached == tuple(word.encode() for word in ("serve", *container["args"])), ended.stderr
    assert "warning" not in ended.stderr
