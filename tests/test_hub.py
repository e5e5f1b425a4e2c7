"""What the guard asks a model hub, what it makes of the answers, and when it asks nothing: against a hub on this machine."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from guard_process import MODEL, UNTOUCHED, Host
from model_files import entry, stored, write_checkpoint, write_shard
from stand_in_hub import COMMIT, TOKEN, Hub, serving_hub
from standin_driver import Card

from vllm_guard.hub import ask as asking_room
from vllm_guard.model.checkpoint import Checkpoint
from vllm_guard.model.files import read_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 128,
    "vocab_size": 128,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
# As large as Llama 3.1 70B: 141 GB, of which the files on this disk are holes.
LARGE = {**CONFIG, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
LARGE = {**LARGE, "intermediate_size": 28672, "vocab_size": 128_256, "max_position_embeddings": 131_072}
ON = "--guard-remote-metadata=on"
LISTING = "/api/models/org/model/revision/main"
# A process of its own, as the guard is one: it forks, and its answer depends on the whole environment.
ASK = """
import os, sys, time
from vllm_guard.hub.ask import ask_hub
before, began = dict(os.environ), time.monotonic()
found = ask_hub(sys.argv[1], sys.argv[2] or None, sys.argv[3] or None, os.environ)
seconds = time.monotonic() - began
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print([repr(found), seconds, "huggingface_hub" in sys.modules, before == dict(os.environ), len(os.listdir("/proc/self/fd"))])
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking: the repr of the checkpoint, or of why there is none."""

    found: str
    seconds: float
    said: str


@pytest.fixture(name="hub")
def _hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with a small model in two shards."""
    with serving_hub(write_checkpoint(tmp_path / "there", CONFIG, stored(CONFIG), 2)) as hub:
        yield hub


@pytest.fixture(name="home")
def _home(tmp_path: Path) -> Path:
    """The user's home, without a cache."""
    home = tmp_path / "user"
    home.mkdir()
    return home


def ask(hub: Hub, home: Path, model: str = MODEL, revision: str = "", token: str = "", **environ: str) -> Answer:
    """Asks in a process of its own, which imports nothing, keeps its environment and has neither child nor descriptor left."""
    environment = {"PATH": os.defpath, "HOME": str(home), "HF_ENDPOINT": hub.endpoint, **environ}
    done = subprocess.run([sys.executable, "-c", ASK, model, revision, token], env=environment, check=True, capture_output=True, text=True)
    found, seconds, imported, unchanged, descriptors = ast.literal_eval(done.stdout)
    assert (False, True, 4) == (imported, unchanged, descriptors)  # 4: the three streams, and the listing itself
    return Answer(found, seconds, done.stdout + done.stderr)


def ask_here(hub: Hub, home: Path, model: str = MODEL, revision: str = "", **environ: str) -> str:
    """The same in this process, which is faster: what the child does is done here, without a deadline."""
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "HF_ENDPOINT": hub.endpoint, **environ}

    def told_here(_seconds: float, work: Callable[[Callable[[str], None]], None], _environ: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
        lines: list[str] = []
        work(lines.append)
        return tuple(lines), True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking_room, "told_within", told_here)
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        if "TMPDIR" in environ:
            patch.setattr(tempfile, "tempdir", environ["TMPDIR"])
        return repr(asking_room.ask_hub(model, revision or None, None, environment))


def on_disk(hub: Hub) -> str:
    """What the guard reads of the folder itself."""
    found = read_model(str(hub.folder), None, None, {})
    assert isinstance(found, Checkpoint), found
    return repr(replace(found, folder=f"127.0.0.1/{MODEL}@{COMMIT}"))


def write_json(path: Path, value: object) -> None:
    """A small file of the repository."""
    path.write_text(json.dumps(value))


def _one_file(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    write_checkpoint(folder, CONFIG, stored(CONFIG))


def _every_small_file(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"model_max_length": 512})
    write_json(folder / "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
    write_json(folder / "modules.json", [])


def _no_safetensors(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")


def _long_header(folder: Path) -> None:
    _no_safetensors(folder)
    write_shard(folder / "model.safetensors", {f"model.layers.0.{'x' * 200}.{n}": entry("F16", [1], 2 * n, 2 * n + 2) for n in range(1000)}, 2000)


def _lying_header(folder: Path) -> None:
    write_shard(folder / "model-00001-of-00002.safetensors", {"a": entry("BF16", [1 << 40], 0, 1 << 41)}, 10)


def _huge_header(folder: Path) -> None:
    write_shard(folder / "model-00001-of-00002.safetensors", b"{}", 10, length=1 << 62)


def _wild_index(folder: Path) -> None:
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"a": "../x.safetensors", "b": "config.json", "c": "none.safetensors"}})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="two shards and an index"),
        pytest.param(_one_file, id="one file"),
        pytest.param(_every_small_file, id="a tokenizer's limit, ModelOpt's file, modules of sentence transformers"),
        pytest.param(_no_safetensors, id="weights in another format"),
        pytest.param(_long_header, id="a header longer than what is asked for first"),
        pytest.param(_lying_header, id="a tensor beyond its file"),
        pytest.param(_huge_header, id="a header of exabytes"),
        pytest.param(_wild_index, id="an index that names other files"),
    ],
)
def test_a_hub_tells_what_the_downloaded_folder_would(hub: Hub, home: Path, change: Any) -> None:
    """The checkpoint is the same but for its place, now and from what was kept."""
    change(hub.folder)

    assert on_disk(hub) == ask_here(hub, home)
    assert on_disk(hub) == ask_here(hub, home)


@pytest.mark.parametrize("size_bytes", [0, 100, 1 << 60, -1, None, "large"])
def test_a_size_that_cannot_be_makes_no_weights(hub: Hub, home: Path, size_bytes: object) -> None:
    """A listing is the hub's word; one that its own headers contradict is not believed, and nothing is larger than a file can be."""
    hub.sizes_bytes = {"model-00001-of-00002.safetensors": size_bytes}

    found = ask_here(hub, home)

    assert found.startswith("Checkpoint")
    assert "headers=None" in found
    assert str(1 << 60) not in found


def test_a_server_without_ranges_is_read_no_further_than_needed(hub: Hub, home: Path) -> None:
    """It answers with the whole file, which is not read to its end."""
    hub.ignores_ranges = True

    assert on_disk(hub) == ask_here(hub, home)


def test_each_file_is_asked_for_once_and_then_the_branch_only(hub: Hub, home: Path) -> None:
    """Headers by range from where the hub points to; a commit that was kept needs no request, and no child."""
    files = f"/org/model/resolve/{COMMIT}"
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

    ask_here(hub, home)
    first, hub.asked = hub.asked, []
    ask_here(hub, home)
    second, hub.asked = hub.paths, []
    by_commit = ask_here(hub, home, revision=COMMIT)

    assert LISTING == first[0].path
    assert {f"{files}/{name}" for name in ("config.json", "model.safetensors.index.json", *shards)} == {one.path for one in first[1:] if one.server == "hub"}
    assert {f"/files/{name}" for name in shards} == {one.path for one in first if one.server == "files"}
    assert 7 == len(first)
    assert {None, "bytes=0-99999"} == {one.bytes_range for one in first}
    assert ([LISTING], []) == (second, hub.paths)
    assert on_disk(hub) == by_commit


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1", COMMIT])
def test_a_revision_is_asked_for_by_its_name(hub: Hub, home: Path, revision: str) -> None:
    """A tag, a pull request, a commit."""
    hub.revisions = (revision,)

    assert on_disk(hub) == ask_here(hub, home, revision=revision)


@pytest.mark.parametrize("given", ["option", "environment", "file"])
def test_a_token_opens_a_gated_model_and_goes_nowhere_else(hub: Hub, home: Path, given: str) -> None:
    """To the hub alone, not to the server that it points to, and nobody reads it."""
    hub.private = True
    (home / "token").write_text(f"{TOKEN}\n")
    environ = {"environment": {"HF_TOKEN": TOKEN}, "file": {"HF_TOKEN_PATH": str(home / "token")}}.get(given, {})

    answer = ask(hub, home, token=TOKEN if given == "option" else "", **environ)

    assert on_disk(hub) == answer.found
    assert {("hub", f"Bearer {TOKEN}"), ("files", None)} == {(one.server, one.authorization) for one in hub.asked}
    assert TOKEN not in answer.said


REFUSED = [
    pytest.param({"/api/": (401, "GatedRepo")}, {}, "the model is gated", id="gated, at once"),
    pytest.param({"config.json": (403, "GatedRepo")}, {}, "the model is gated", id="gated, its listing is public"),
    pytest.param({"/api/": (401, "")}, {}, "shows it only with a token", id="nobody knows whether it exists"),
    pytest.param({"/api/": (404, "RepoNotFound")}, {}, "it knows no such model", id="no such model"),
    pytest.param({"/api/": (404, "RevisionNotFound")}, {}, "not this revision", id="no such revision"),
    pytest.param({"/api/": (429, "")}, {}, "it answered with status 429", id="too many requests, asked once"),
    pytest.param({"config.json": (503, "")}, {}, "it answered with status 503", id="out of order, asked once"),
    pytest.param({}, {"listing": b"<html>"}, "its answer is not that of a model hub", id="a captive portal"),
    pytest.param({}, {"listing": b"[" * 100_000}, "its answer is not that of a model hub", id="a nest"),
    pytest.param({}, {"listing": b'{"sha": "../..", "siblings": []}'}, "its answer is not that of a model hub", id="a commit that is a path"),
    pytest.param({}, {"listing": b" " * (17 << 20)}, "an answer is larger than", id="an endless listing"),
    pytest.param({}, {"config.json": b" " * (5 << 20)}, "an answer is larger than", id="an endless config"),
    pytest.param({}, {"config.json": b"[1]"}, "config.json: it is not a JSON object", id="a config that is none"),
    pytest.param({}, {"listing": b'{"sha": "%s", "siblings": []}' % COMMIT.encode()}, "config.json: No such file", id="an empty repository"),
]


@pytest.mark.parametrize(("answers", "bodies", "why"), REFUSED)
def test_no_checkpoint_comes_with_a_reason(hub: Hub, home: Path, answers: dict[str, tuple[int, str]], bodies: dict[str, bytes], why: str) -> None:
    """And nothing is asked again."""
    hub.answers, hub.bodies = answers, bodies

    answer = ask_here(hub, home)

    assert answer.startswith("UnknownCheckpoint")
    assert why in answer
    assert len(hub.paths) == len(set(hub.paths))


def test_without_the_files_on_weights_there_is_still_a_config(hub: Hub, home: Path) -> None:
    """Headers that are refused, then the index too: less is known, nothing is wrong."""
    whole = read_model(str(hub.folder), None, None, {})
    assert isinstance(whole, Checkpoint)
    hub.answers = {"/files/": (500, "")}
    without_headers = ask_here(hub, home)
    (home / ".cache" / "vllm-guard").rename(home / "before")
    hub.answers = {"index.json": (500, "")}
    without_index = ask_here(hub, home)

    assert repr(replace(whole, folder=f"127.0.0.1/{MODEL}@{COMMIT}", headers=None)) == without_headers
    assert without_index.startswith("Checkpoint")
    assert "weight_files_bytes=None, weights_unknown_because='model.safetensors.index.json: No such file" in without_index


@pytest.mark.parametrize(
    ("drips", "found"),
    [
        pytest.param("/api/", "no answer within 2 s", id="the listing"),
        pytest.param("tokenizer_config", "no answer within 2 s", id="a file that the length depends on"),
        pytest.param("/files/", "headers=None", id="the headers"),
    ],
)
def test_two_seconds_are_all_that_a_slow_hub_gets(hub: Hub, home: Path, drips: str, found: str) -> None:
    """A byte now and then keeps no connection open; what came is kept, and the next time brings the rest."""
    write_json(hub.folder / "tokenizer_config.json", {"model_max_length": 512})
    hub.drips = drips
    slow = ask(hub, home)
    hub.drips, hub.asked = "(?!)", []

    assert found in slow.found
    assert 1.9 < slow.seconds < 3
    assert on_disk(hub) == ask(hub, home).found
    assert (drips == "/api/") == any(path.endswith("/config.json") for path in hub.paths)


def test_a_hub_that_accepts_no_connection_is_said_at_once(hub: Hub, home: Path) -> None:
    """A port that nobody listens at."""
    answer = ask(hub, home, HF_ENDPOINT="http://127.0.0.1:9")

    assert "the request failed (Connect" in answer.found
    assert answer.seconds < 1.5


NOT_ASKED: Mapping[str, tuple[dict[str, str], str, str]] = {
    "offline": ({"HF_HUB_OFFLINE": "1"}, MODEL, "HF_HUB_OFFLINE is set"),
    "offline by the older name": ({"TRANSFORMERS_OFFLINE": "yes"}, MODEL, "TRANSFORMERS_OFFLINE is set"),
    "a hub of another kind": ({"VLLM_USE_MODELSCOPE": "True"}, MODEL, "VLLM_USE_MODELSCOPE is set"),
    "no address": ({"HF_ENDPOINT": "http://[x"}, MODEL, "HF_ENDPOINT is no address"),
    "a file in a bucket": ({}, "s3:bucket", "no name of a model"),
    "a quantization behind the name": ({}, "org/model:Q4_K_M", "no name of a model"),
    "a way out": ({}, "org/..", "no name of a model"),
}


@pytest.mark.parametrize(("environ", "model", "why"), NOT_ASKED.values(), ids=NOT_ASKED.keys())
def test_nothing_is_asked_where_vllm_would_not_ask(hub: Hub, home: Path, environ: dict[str, str], model: str, why: str) -> None:
    """Not one request, and a reason."""
    answer = ask_here(hub, home, model, **environ)

    assert why in answer
    assert [] == hub.asked


def test_without_huggingface_hub_nothing_is_asked(hub: Hub, home: Path) -> None:
    """It is no dependency of the guard."""
    (home / "huggingface_hub.py").write_text("raise ImportError\n")

    answer = ask(hub, home, PYTHONPATH=str(home))

    assert "huggingface_hub, which would ask, is not installed beside vllm-guard" in answer.found
    assert [] == hub.asked


def _link(cache: Path) -> None:
    (cache.parent / "elsewhere").mkdir()
    (cache / "vllm-guard").symlink_to(cache.parent / "elsewhere")


def _everybodys(cache: Path) -> None:
    (cache / "vllm-guard" / "hub").mkdir(parents=True)
    (cache / "vllm-guard" / "hub").chmod(0o777)


def _a_file(cache: Path) -> None:
    (cache / "vllm-guard").write_text("")


@pytest.mark.parametrize("spoil", [_link, _everybodys, _a_file])
def test_a_cache_that_others_may_change_is_not_used(hub: Hub, home: Path, spoil: Any) -> None:
    """What comes is read all the same, from a folder that is gone afterwards."""
    (home / ".cache").mkdir()
    (home / "tmp").mkdir()
    spoil(home / ".cache")
    before = sorted(home.rglob("*"))

    assert on_disk(hub) == ask_here(hub, home, TMPDIR=str(home / "tmp"))
    assert before == sorted(home.rglob("*"))


def test_the_cache_is_the_users_own_and_not_that_of_models(hub: Hub, home: Path) -> None:
    """Nobody else reads or writes it, and vLLM finds no half of a model in the Hugging Face cache."""
    ask(hub, home, XDG_CACHE_HOME=str(home / "xdg"), HF_HOME=str(home / "hf"))
    folders = [path for path in (home / "xdg").rglob("*") if path.is_dir()]

    assert {0o700} == {path.stat().st_mode & 0o777 for path in folders}
    assert 3 == len(folders)
    assert [home / "xdg"] == list(home.iterdir())
    assert sum(path.stat().st_size for path in folders[-1].iterdir()) < 100_000


@pytest.mark.parametrize("name", ["config.json", "sizes.json", "model-00001-of-00002.safetensors"])
@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"model-00001-of-00002.safetensors": -1}', b"\xff" * 100])
def test_whatever_lies_in_the_cache_is_only_data(hub: Hub, home: Path, name: str, content: bytes) -> None:
    """A spoilt file makes something unknown, and no crash."""
    ask_here(hub, home)
    spoilt = next((home / ".cache" / "vllm-guard" / "hub").iterdir()) / name
    spoilt.write_bytes(content)

    assert ask_here(hub, home, revision=COMMIT).startswith(("UnknownCheckpoint", "Checkpoint"))


# Through the commands


@pytest.fixture(name="asking")
def _asking(host: Host, hub: Hub) -> Host:
    """A host whose hub is the one here, and whose settings say nothing about it."""
    host.environ |= {"HF_ENDPOINT": hub.endpoint, "VLLM_GUARD_REMOTE_METADATA": None, "PYTHONPATH": None}
    return host


def test_a_check_says_before_the_download_that_a_model_is_too_large(asking: Host, hub: Hub, tmp_path: Path) -> None:
    """141 GB on an idle card of 80: refused for good, by exact headers."""
    hub.folder = write_checkpoint(tmp_path / "large", LARGE, stored(LARGE), 30)

    ended = asking.check("--guard-json")

    assert (78, "model_too_large") == (ended.code, ended.document["reason"])
    assert "computed" == ended.document["demand"]["weights"]["source"]
    assert 1 + 2 + 2 * 30 == len(hub.asked)


def test_an_estimate_needs_no_download(asking: Host, hub: Hub, tmp_path: Path) -> None:
    """Four cards of 80 GiB hold what one does not; without an answer there is no table."""
    hub.folder = write_checkpoint(tmp_path / "large", LARGE, stored(LARGE), 30)
    words = ("estimate", MODEL, "--memory", "80GiB", "--max-model-len", "4096", "--guard-json")

    rows = asking.run(*words).document["cards"][0]["rows"]
    silent = asking.run(*words, environ={"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path)})

    assert {1: "no", 4: "yes"} == {row["tensor_parallel_size"]: row["fits"] for row in rows if row["tensor_parallel_size"] in {1, 4}}
    assert 64 == silent.code
    assert "HF_HUB_OFFLINE is set" in silent.stderr


def test_serve_refuses_before_the_download_where_it_may_ask(asking: Host, hub: Hub, tmp_path: Path) -> None:
    """With the setting, and in a dry run without it."""
    hub.folder = write_checkpoint(tmp_path / "large", LARGE, stored(LARGE), 30)

    assert (78, None) == ((ended := asking.serve(ON)).code, ended.report)
    assert 78 == asking.serve("--guard-dry-run").code


QUIET: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "serve": (("serve", MODEL), {}),
    "run": (("run", "--", "vllm", "serve", MODEL), {}),
    "check with the setting off": (("check", MODEL), {"VLLM_GUARD_REMOTE_METADATA": "off"}),
    "a dry run with the setting off": (("serve", MODEL, "--guard-dry-run", "--guard-remote-metadata=off"), {}),
    "serve of a folder": (("serve", "{folder}", ON), {}),
    "serve without an engine": (("run", ON, "--", "vllm", "bench", "serve", "--model", MODEL), {}),
    "vLLM's help": (("serve", MODEL, "--help", ON), {}),
    "serve with mode=off": (("serve", MODEL, ON, "--guard-mode=off"), {}),
}


@pytest.mark.parametrize(("words", "environ"), QUIET.values(), ids=QUIET.keys())
def test_nothing_is_asked_unless_it_was_wanted(asking: Host, hub: Hub, words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Above all not on the way to exec."""
    ended = asking.run(*(word.replace("{folder}", str(hub.folder)) for word in words), environ=environ)

    assert 0 == ended.code, ended.stderr
    assert [] == hub.asked


def test_vllm_gets_what_it_would_have_got(asking: Host, hub: Hub) -> None:
    """Environment, descriptors and signals are the same with a request on the way to exec."""
    plain = asking.serve(environ={"HF_TOKEN": TOKEN}).report
    asked = asking.serve(ON, environ={"HF_TOKEN": TOKEN}).report

    assert plain is not None
    assert asked is not None
    assert [] != hub.asked
    assert UNTOUCHED == asked.argv[1:]
    assert replace(plain, pid=asked.pid) == asked


@pytest.mark.parametrize("drips", ["/api/", "/files/"])
def test_a_slow_hub_delays_a_launch_by_two_seconds(asking: Host, hub: Hub, drips: str) -> None:
    """And never stops it."""
    hub.drips = drips

    ended = asking.serve(ON)

    assert UNTOUCHED == ended.reached
    assert ended.seconds < 4


def test_the_tokens_of_command_line_and_launcher_are_used(asking: Host, hub: Hub) -> None:
    """vLLM's own option, and what `env` sets in front of vLLM."""
    hub.private = True

    by_option = asking.check("--hf-token", TOKEN, "--guard-json")
    by_launcher = asking.run("run", "--guard-dry-run", "--guard-json", "--", "env", f"HF_TOKEN={TOKEN}", "vllm", "serve", MODEL)
    without = asking.check("--guard-json")

    assert ["computed", "computed"] == [ended.document["demand"]["weights"]["source"] for ended in (by_option, by_launcher)]
    assert [("model_unknown", True)] == [(warning["code"], "the model is gated" in warning["message"]) for warning in without.document["warnings"]]
    assert TOKEN not in by_option.stderr + by_option.stdout.decode() + by_launcher.stderr


def test_a_model_that_fits_is_launched_with_what_the_hub_says(asking: Host, hub: Hub) -> None:
    """The demand is that of the checkpoint, on a card that is busy."""
    asking.cards(Card(free_mib=20_000))

    ended = asking.check("--guard-json")

    assert 0 == ended.code
    assert stored(CONFIG).size_bytes == ended.document["demand"]["weights"]["low"]
    assert [] != hub.asked
