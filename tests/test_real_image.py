"""The image of the Dockerfile and docs/containers.md: built without a network on a base made here, and run by podman, PID 1 and all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from doc_pages import ROOT, block_with, commands, read_page
from guard_process import CLAIM
from model_files import stored, write_checkpoint
from other_worlds import copy_checkout, wait_for
from podman_world import BASE, IMAGE, PINNED, VERSION, Podman, download, make_base, podman_world
from standin_driver import SCENARIO_VARIABLE, Card, write_scenario
from stub_vllm import Report, read_report

pytestmark = pytest.mark.slow

PAGE = "docs/containers.md"
COMMANDS = [words for words in commands(PAGE) if words[0] == "docker"]
OFFLINE = [f"--build-arg=PIP_{setting}" for setting in ("NO_INDEX=1", "FIND_LINKS=/src/wheelhouse")]
LIBRARY = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/libnvidia-ml.so.1"  # where NVIDIA's runtime puts the driver's
IDLE = Card()
FULL = Card(free_mib=300)  # nobody is listed: the holders are outside of the container


@dataclass(frozen=True, slots=True)
class World:
    """podman with the image, and what containers of a test get: a card, a folder for claims, a termination log, a place for the stub's report."""

    podman: Podman
    driver: Path
    folder: Path

    def options(self, card: Card | None, **environ: str) -> list[str]:
        """Options of `podman run`, as NVIDIA's runtime and the kubelet would add them; without a card there is no driver."""
        shutil.rmtree(self.folder / "report", ignore_errors=True)
        for name in ("report", "claims"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "termination-log").write_text("")
        mounts = {"report": "/report", "claims": "/run/vllm-guard", "termination-log": "/dev/termination-log"}
        options = [f"--volume={self.folder / name}:{place}" for name, place in mounts.items()]
        if card is not None:
            write_scenario(self.folder / "scenario", [card])
            options += [f"--volume={self.driver / Path(LIBRARY).name}:{LIBRARY}:ro", f"--volume={self.folder / 'scenario'}:/scenario:ro"]
        environ = {SCENARIO_VARIABLE: "/scenario", "STUB_REPORT": "/report", "VLLM_GUARD_SETTLE": "0", **environ}
        return [*options, *(f"--env={name}={value}" for name, value in environ.items())]

    def run(self, *words: str, card: Card | None = IDLE, **environ: str) -> subprocess.CompletedProcess[str]:
        """`podman run WORDS`, to its end."""
        return self.podman.run(*self.options(card, **environ), *words)

    def docker_run(self, words: Sequence[str], card: Card) -> subprocess.CompletedProcess[str]:
        """`docker run WORDS` of a page. Without what this machine has not: a GPU, a network, leave for podman to share the PID namespace."""
        at = next(place for place, word in enumerate(words) if word == "vllm-guard" and words[place - 1] != "--entrypoint")
        options = [option for option in words[:at] if option not in {"--rm", "--pid=host"}]
        for absent in ("--gpus", "-p"):
            if absent in options:
                del options[options.index(absent) : options.index(absent) + 2]
        home = self.folder / "home"
        (home / ".cache/huggingface").mkdir(parents=True, exist_ok=True)
        return self.run(*(option.replace("~", str(home)) for option in options), IMAGE, *words[at + 1 :], card=card)

    @property
    def report(self) -> Report | None:
        """What reached the stub; None when it was not started."""
        report = self.folder / "report"
        return read_report(report) if (report / "environ").exists() else None

    @property
    def reached(self) -> str:
        """The words behind `vllm`; empty when it was not started."""
        return "" if self.report is None else os.fsdecode(b" ".join(self.report.argv[1:]))

    @property
    def termination_log(self) -> str:
        """What the guard left for Kubernetes."""
        return (self.folder / "termination-log").read_text()


def base_of(words: Sequence[str]) -> str:
    """The base of a `docker build` command: the Dockerfile's, or what its build arguments say."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    named = dict(re.findall(r"^ARG (BASE_\w+)=(\S+)$", dockerfile, re.MULTILINE))
    named |= dict(word.split("=", 1) for word in words if word.startswith("BASE_"))
    image, version = named["BASE_IMAGE"], named["BASE_VERSION"]
    return f"{image if '.' in image else f'docker.io/{image}'}:{version}"


@pytest.fixture(scope="module", name="base")
def _base() -> Iterator[Podman]:
    """podman with an image under the name of every base that the page builds on."""
    with podman_world() as podman:
        make_base(podman, BASE)
        for words in COMMANDS:
            if words[1] == "build":
                assert podman("tag", BASE, base_of(words)).returncode == 0
        yield podman


@pytest.fixture(scope="module", name="context")
def _context(base: Podman) -> Path:
    """A fresh checkout with wheels for the base's Python, fetched by the page's command."""
    context = base.folder / "context"
    copy_checkout(context)
    version = base.run("--entrypoint=python3", BASE, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout.strip()
    _, command, *options = next(words for words in commands(PAGE) if words[0] == "pip")
    at = options.index("--python-version") + 1
    download(command, *options[:at], version, *options[at + 1 :], cwd=context)
    return context


@pytest.fixture(scope="module", name="podman")
def _podman(base: Podman, context: Path) -> Podman:
    """podman with the image, built by the page's command for a build without a network."""
    words = next(words for words in COMMANDS if "PIP_NO_INDEX=1" in words)
    built = base.build(context, *words[2:-1])
    assert built.returncode == 0, built.stderr
    return base


@pytest.fixture(name="world")
def _world(podman: Podman, driver_folder: Path, tmp_path: Path) -> World:
    return World(podman, driver_folder, tmp_path)


def inspect(podman: Podman, image: str) -> dict[str, object]:
    """What podman knows about an image."""
    inspected: dict[str, object] = json.loads(podman("image", "inspect", image).stdout)[0]
    return inspected


def test_the_image_says_what_it_is(podman: Podman) -> None:
    """The entrypoint in exec form, no command of its own, the link first on PATH, labels of its own and not the base's."""
    config = inspect(podman, IMAGE)["Config"]

    assert isinstance(config, dict)
    assert (["vllm-guard", "serve"], None) == (config["Entrypoint"], config.get("Cmd"))
    assert config["Env"][0].startswith("PATH=/opt/vllm-guard/bin:/usr/local/sbin:")
    assert "vllm-guard" == config["Labels"]["org.opencontainers.image.title"]
    assert base_of([]).endswith(config["Labels"]["org.opencontainers.image.base.name"])


def test_no_package_of_the_base_changes_and_nothing_of_the_build_stays(podman: Podman) -> None:
    """What vLLM was built with is as it was; wheels, sources and caches are not there; the layer is as small as the page says."""
    before, after = (set(podman.run("--entrypoint=python3", image, "-m", "pip", "list", "--format=freeze").stdout.splitlines()) for image in (BASE, IMAGE))
    left = podman.run("--entrypoint=find", IMAGE, "/src", "/tmp", "/root/.cache", "/wheelhouse", "-mindepth", "1").stdout  # noqa: S108 - the container's
    sizes = [inspect(podman, image)["Size"] for image in (IMAGE, BASE)]
    said = re.search(r"It adds one layer: (\d+) MB", read_page(PAGE))

    assert PINNED in before
    assert before < after
    assert any(line.startswith("vllm-guard==") for line in after)
    assert "" == left
    assert said is not None
    assert isinstance(sizes[0], int)
    assert isinstance(sizes[1], int)
    assert abs((sizes[0] - sizes[1]) / 1e6 - int(said[1])) < 3


def test_a_build_that_would_change_a_package_of_the_base_fails(podman: Podman, context: Path, tmp_path: Path) -> None:
    """Here on a base that was built with a psutil too old for the guard."""
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: psutil\nVersion: 5.0.0\n")
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nCOPY METADATA /usr/lib/python3/dist-packages/psutil-5.0.0.dist-info/METADATA\n")
    assert podman.build(tmp_path, "--tag", "localhost/old:1").returncode == 0
    built = podman.build(context, *OFFLINE, "--build-arg=BASE_IMAGE=localhost/old", "--build-arg=BASE_VERSION=1", "--tag", "localhost/none")

    assert built.returncode != 0
    assert "psutil>=5.9.4" in built.stdout + built.stderr


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[1] == "build" and "PIP_NO_INDEX=1" not in words], ids=" ".join)
def test_the_builds_of_the_page(podman: Podman, context: Path, words: list[str]) -> None:
    """Each on its own base, which here is always the same, and from the wheels, because there is no network."""
    built = podman.build(context, *words[2:-1], *OFFLINE)

    assert (0, ".") == (built.returncode, words[-1]), built.stderr
    tag = words[words.index("--tag") + 1]
    assert base_of(words).endswith(str(json.loads(podman("image", "inspect", f"localhost/{tag}").stdout)[0]["Labels"]["org.opencontainers.image.base.name"]))


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[1] == "run" and "VLLM_GUARD_LOG_FORMAT=console" not in words], ids=" ".join)
def test_the_runs_of_the_page(world: World, words: list[str]) -> None:
    """On an idle card: what is served reaches vLLM, what is only asked does not."""
    ended = world.docker_run(words[2:], IDLE)
    entrypoint = words[words.index("--entrypoint") + 1] if "--entrypoint" in words else ""
    behind = words[len(words) - words[::-1].index("vllm-guard") :]
    expected = {"": f"serve {' '.join(behind)}", "vllm": " ".join(behind), "vllm-guard": f"module --model {behind[-1]}" if behind[0] == "run" else ""}

    assert ended.returncode == 0, ended.stderr
    assert expected[entrypoint] == world.reached
    assert ("vllm-guard: launch: " if expected[entrypoint] or behind[0] == "check" else "") in ended.stderr
    assert ended.stdout.startswith("stub vllm" if expected[entrypoint] else "/usr/local/bin/vllm serve" if behind[0] == "check" else "GPU 0 ")


def test_the_refusal_of_the_page(world: World) -> None:
    """Command and output, word for word."""
    (step,) = block_with(PAGE, "VLLM_GUARD_LOG_FORMAT=console").steps
    ended = world.docker_run(step.command.removeprefix("docker run ").split(), FULL)

    assert (step.status, step.shown) == (ended.returncode, tuple(ended.stderr.splitlines()))
    assert (ended.stderr, "") == (world.termination_log, world.reached)
    assert block_with("docs/kubernetes.md", "refused").text == world.termination_log


def shown_forms() -> list[str]:
    """What may stand behind the image's name, from the first column of the page's table."""
    cells = [line.split(" | ")[0] for line in read_page(PAGE).splitlines() if line.startswith("| `")]
    return [form.replace("MODEL", "m").replace("…", "--port 1") for cell in cells for form in re.findall("`([^`]+)`", cell)]


@pytest.mark.parametrize("version", [VERSION, "0.9.2"])
@pytest.mark.parametrize("form", shown_forms())
def test_every_form_of_the_page_becomes_vllm(world: World, form: str, version: str) -> None:
    """As PID 1, with nothing of the guard left but the claim's descriptor; an older release gets the model where it wants it."""
    (world.folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    metadata = world.podman.run("--entrypoint=sh", IMAGE, "-c", "echo /usr/local/lib/python3.*/dist-packages/vllm-*.dist-info/METADATA").stdout.strip()
    ended = world.run(f"--volume={world.folder / 'METADATA'}:{metadata}:ro", IMAGE, *form.split(), VLLM_GUARD_MARGIN="1GiB", STUB_EXIT="3")
    option = version == VERSION and "--model" in form

    assert world.report is not None, ended.stderr
    assert (3, f"serve {'--model ' if option else ''}m --port 1") == (ended.returncode, world.reached)
    assert (1, {0, 1, 2, CLAIM}) == (world.report.pid, set(world.report.descriptors))
    assert not world.report.ignored | world.report.blocked
    assert not any(variable.startswith(b"VLLM_GUARD_") for variable in world.report.environ)
    assert ("vllm-guard: launch: ", "") == (ended.stderr[:20], world.termination_log)


def test_vllm_in_a_shell_goes_through_the_guard(world: World) -> None:
    """As in a manifest with `command: [sh, -c, vllm serve ...]`."""
    ended = world.run("--entrypoint=sh", IMAGE, "-c", "exec vllm serve m", card=FULL)

    assert (75, "") == (ended.returncode, world.reached)
    assert ended.stderr.startswith("vllm-guard: refused: ")


ENDS = [
    pytest.param(75, "refused: GPU 0 has 300 MiB free", ("m",), FULL, id="75"),
    pytest.param(78, "refused: GPU 0 leaves a budget of 74593 MiB, weights, activations and CUDA graphs", ("/model",), IDLE, id="78"),
    pytest.param(69, "error: cannot read GPU memory: nvmlInit: libnvidia-ml.so.1 is missing", ("m",), None, id="69"),
    pytest.param(64, "usage: unknown flag '--guard-marign'", ("m", "--guard-marign=1GiB"), IDLE, id="64"),
    pytest.param(126, "error: cannot run '/etc/passwd'", ("m", "--guard-vllm=/etc/passwd"), IDLE, id="126"),
    pytest.param(127, "error: cannot run '/no/vllm'", ("m", "--guard-vllm=/no/vllm"), IDLE, id="127"),
]


@pytest.mark.parametrize(("code", "line", "words", "card"), ENDS)
def test_the_exit_codes_and_the_termination_log(world: World, code: int, line: str, words: tuple[str, ...], card: Card | None) -> None:
    """The container ends with the guard's code, and the file that Kubernetes shows has the reason."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128_256, "hidden_size": 16_384}
    config |= {"intermediate_size": 53_248, "num_hidden_layers": 40, "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"tie_word_embeddings": False, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    model = write_checkpoint(world.folder / "model", config, stored(config))
    ended = world.run(f"--volume={model}:/model:ro", IMAGE, *words, card=card)

    assert (code, "") == (ended.returncode, world.reached), ended.stderr
    assert ended.stderr.startswith(f"vllm-guard: {line}")
    assert world.termination_log.startswith(f"vllm-guard: {line}")
    assert world.termination_log.splitlines()[-1].startswith(f"  exit {code}")


def test_a_waiting_container_stops_at_once(world: World) -> None:
    """TERM to PID 1 while it waits: within two seconds, with 143."""
    container = world.podman.start(*world.options(FULL), IMAGE, "m", "--guard-wait=60")
    wait_for(lambda: '"waiting"' in world.podman("logs", container).stderr, seconds=20)
    began = time.monotonic()
    stopped = world.podman("stop", "--time", "20", container)
    seconds = time.monotonic() - began
    code = world.podman("inspect", "--format", "{{.State.ExitCode}}", container).stdout.strip()

    assert (0, "143") == (stopped.returncode, code), stopped.stderr
    assert seconds < 2
    assert ("", "") == (world.reached, world.termination_log)


@pytest.fixture(name="serving")
def _serving(world: World) -> Iterator[Callable[[], str]]:
    """Starts a container whose vLLM stays; it ends with the test."""
    started: list[str] = []

    def start() -> str:
        (world.folder / "sleeper").write_text("#!/bin/sh\nexec sleep 60\n")
        (world.folder / "sleeper").chmod(0o755)
        started.append(world.podman.start(*world.options(IDLE), f"--volume={world.folder / 'sleeper'}:/usr/local/bin/vllm:ro", IMAGE, "m"))
        wait_for(lambda: "vllm-guard: launch: " in world.podman("logs", started[0]).stderr, seconds=20)
        return started[0]

    yield start
    for container in started:
        world.podman("rm", "--force", "--time", "0", container)


def test_containers_that_share_the_folder_share_claims(world: World, serving: Callable[[], str]) -> None:
    """What the vLLM of one was promised, and has not taken yet, is not there for the other; when it is gone, it is."""
    container = serving()
    during = world.run(IMAGE, "m")
    world.podman("rm", "--force", "--time", "0", container)
    afterwards = world.run(IMAGE, "m")

    assert (0, 0) == (during.returncode, afterwards.returncode), during.stderr
    assert "(GPU 0: 81080 of 81559 MiB free, 75233 MiB claimed by other guards, margin 1024 MiB)" in during.stderr
    assert "(vLLM's default fits): GPU 0 has 81080 of 81559 MiB free" in afterwards.stderr


@pytest.mark.parametrize("prepared", [True, False], ids=["a folder as the page wants it", "a folder as docker creates it"])
def test_a_container_with_another_user_claims_where_it_may(world: World, prepared: bool) -> None:  # noqa: FBT001 - a column
    """In a sticky folder that is open to all; one of root's is one warning, and the launch goes on without a claim."""
    mode = re.search(r"`install -d -m (\d+) /run/vllm-guard`", read_page(PAGE))
    assert mode is not None
    options = world.options(IDLE, VLLM_GUARD_LOG_FORMAT="console")
    (world.folder / "report").chmod(0o777)
    (world.folder / "claims").chmod(int(mode[1], 8) if prepared else 0o755)
    ended = world.podman.run("--user=1000:1000", *options, IMAGE, "m")

    assert world.report is not None, ended.stderr
    assert prepared == (CLAIM in world.report.descriptors)
    assert (0 if prepared else 1) == ended.stderr.count("vllm-guard: warning: "), ended.stderr
