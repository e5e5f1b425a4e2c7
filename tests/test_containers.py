"""The Dockerfile, docs/containers.md and its compose file, as far as they can be judged without a container."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_pages import ROOT, block_with
from guard_process import Host
from model_files import stored, write_checkpoint

from vllm_guard import __version__

DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "docs" / "compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def tool(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A console script of the dev extra."""
    return subprocess.run([Path(sys.executable).with_name(name), *words], check=False, capture_output=True, text=True, timeout=60)


def test_hadolint_finds_nothing() -> None:
    """No finding of any level, and none is switched off."""
    linted = tool("hadolint", "--failure-threshold=style", str(DOCKERFILE))

    assert (0, "") == (linted.returncode, linted.stdout + linted.stderr)
    assert "hadolint" not in DOCKERFILE.read_text()


def test_hadolint_would_find_a_shell_around_the_entrypoint(tmp_path: Path) -> None:
    """The check above can fail."""
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.read_text() + "ENTRYPOINT vllm-guard serve\n")

    assert 1 == tool("hadolint", str(tmp_path / "Dockerfile")).returncode


def test_the_label_says_the_version_of_the_package() -> None:
    """The base's own label would say another program's."""
    assert f'org.opencontainers.image.version="{__version__}"' in DOCKERFILE.read_text()


def test_the_build_gets_what_the_package_is_made_of_and_no_more() -> None:
    """Everything is left out but the package, what its metadata names, and wheels for a build without a network."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    needed = {"vllm_guard", "pyproject.toml", *re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)}

    assert "*" in lines
    assert {f"!{name}" for name in needed} | {"!wheelhouse"} == {line for line in lines if line.startswith("!")}


def test_the_compose_file_is_what_the_schema_takes(tmp_path: Path) -> None:
    """And a misspelled key would be found."""
    misspelled = tmp_path / "compose.yaml"
    misspelled.write_text(COMPOSE.read_text().replace("    restart:", "    restrat:"))
    checks = [tool("check-jsonschema", "--builtin-schema=vendor.compose-spec", str(path)) for path in (COMPOSE, misspelled)]

    assert [0, 1] == [check.returncode for check in checks], checks[0].stdout
    assert "restrat" in checks[1].stdout


def test_the_compose_file_does_what_the_page_says() -> None:
    """Two models on one card, each with its share, that wait inside the guard, see each other's claims, are tried five times and start one after the other."""
    large, small = SERVICES.values()
    shares = [float(service["command"][service["command"].index("--gpu-memory-utilization") + 1]) for service in (large, small)]
    devices = [service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for service in (large, small)]

    assert sum(shares) < 0.95
    assert [["0"], ["0"]] == devices
    assert {"large": {"condition": "service_healthy"}} == small["depends_on"]
    for service in (large, small):
        assert ("vllm-guard", "on-failure:5", "host") == (service["image"], service["restart"], service["pid"])
        assert "/run/vllm-guard:/run/vllm-guard" in service["volumes"]
        assert {"entrypoint", "init"}.isdisjoint(service)  # the guard is the container's first process
        assert int(service["environment"]["VLLM_GUARD_WAIT"]) < 60 * int(service["healthcheck"]["start_period"].removesuffix("m"))


@pytest.mark.parametrize("name", SERVICES)
def test_the_guard_starts_every_service_as_it_is_written(host: Host, name: str) -> None:
    """On an idle card at once, with its arguments unchanged and nothing to warn of."""
    service = SERVICES[name]
    ended = host.run("serve", *service["command"], environ={**service["environment"], "VLLM_GUARD_LOG_FORMAT": "console"})

    assert ended.reached == tuple(word.encode() for word in ("serve", *service["command"])), ended.stderr
    assert "warning" not in ended.stderr


def test_the_warning_of_offload_is_what_the_guard_prints(host: Host, tmp_path: Path) -> None:
    """In a container that may use 32 GiB."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128_256, "hidden_size": 8192}
    config |= {"intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"tie_word_embeddings": False, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    model = write_checkpoint(tmp_path / "model", config, stored(config))
    facts = json.loads(host.run("snapshot").stdout)
    facts["host"]["cgroup_limit_bytes"], facts["host"]["memory_available_bytes"] = 32 << 30, 256 << 30
    (tmp_path / "snapshot").write_text(json.dumps(facts))
    offload = ("--cpu-offload-gb", "64", "--max-model-len", "2048")
    checked = host.run("check", str(model), *offload, f"--guard-snapshot={tmp_path / 'snapshot'}", environ={"VLLM_GUARD_LOG_FORMAT": "console"})

    assert block_with("docs/containers.md", "offload and swap").text.strip() in checked.lines
