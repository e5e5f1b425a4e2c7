"""No secret of a command line gets into a log, a report or a message."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_guard.command.mask import mask_argv, mask_text, name_of
from vllm_guard.release import Release

V0_32 = Release(0, 32)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["m", "--api-key", "k1", "k2", "--port", "1"], ["m", "--api-key", "***", "***", "--port", "1"], id="all keys behind --api-key"),
        pytest.param(["m", "--api-key=k1"], ["m", "--api-key=***"], id="a key behind ="),
        pytest.param(["m", "--api_key=a=b"], ["m", "--api_key=***"], id="a key with = in it"),
        pytest.param(["m", "--api-k", "k1"], ["m", "--api-k", "***"], id="an abbreviation"),
        pytest.param(["m", "--api", "k1"], ["m", "--api", "***"], id="an ambiguous abbreviation"),
        pytest.param(["m", "--api-key", "-k1"], ["m", "--api-key", "***"], id="a key that argparse would take for an option"),
        pytest.param(["--api-key", "--model", "m", "k1"], ["--api-key", "--model", "m", "***"], id="a key behind the model that vLLM moves away"),
        pytest.param(["m", "--", "--api-key", "k1"], ["m", "--", "--api-key", "***"], id="behind a separator"),
        pytest.param(["m", "--hf-token", "hf_x", "--hf-tok=y"], ["m", "--hf-token", "***", "--hf-tok=***"], id="--hf-token"),
        pytest.param(["m", "--hf-token", "--port", "1"], ["m", "--hf-token", "--port", "1"], id="--hf-token without a value"),
        pytest.param(["https://me:pw@host/m", "--host=http://a@b"], ["https://***@host/m", "--host=http://***@b"], id="user information in URLs"),
        pytest.param(["m", "--hf-overrides", '{"a": {"auth_token": "x"}}'], ["m", "--hf-overrides", '{"a": {"auth_token": "***"}}'], id="a key of JSON"),
        pytest.param(["m", '--kv-transfer-config={"Password":1}'], ["m", '--kv-transfer-config={"Password": "***"}'], id="JSON behind ="),
        pytest.param(["m", "--x", '[{"api_key": ["a", "b"]}]'], ["m", "--x", '[{"api_key": "***"}]'], id="a list of keys in JSON"),
        pytest.param(["m", "--x", '{"secret": "a", "b": 80m}'], ["m", "--x", '{"secret": "***", "b": 80m}'], id="JSON with a number of vLLM's own"),
        pytest.param(["m", '-O{"token":"s"}'], ["m", '-O{"token": "***"}'], id="JSON glued to -O"),
        pytest.param(["m", "--x.client_secret", "s"], ["m", "--x.client_secret", "***"], id="a dotted key"),
        pytest.param(["m", "-cc.a.token=s"], ["m", "-cc.a.token=***"], id="a dotted key behind ="),
        pytest.param(
            ["m", "--new-token", "s", "--other-password=s"], ["m", "--new-token", "***", "--other-password=***"], id="unknown options named like secrets"
        ),
    ],
)
def test_secrets_are_masked_word_for_word(argv: list[str], expected: list[str]) -> None:
    """The words stay as many as they were."""
    assert tuple(expected) == mask_argv(argv, V0_32)


@pytest.mark.parametrize(
    "argv",
    [
        ["m", "--max-num-batched-tokens", "2048", "--spec-tokens=3", "--tokenizer", "t", "--return-tokens-as-token-ids"],
        ["m", "--speculative-config", '{"num_speculative_tokens":3,"tokenizer":"t"}', "-sc.num_speculative_tokens", "3"],
        ["m", "--hf-overrides", '{"eos_token_id": [1, 2], "a": null}', "--hf-overrides.bos_token_id", "1"],
        ["org/model@main", "--served-model-name", "a@b", "--allowed-origins", '["https://a.b"]', "--api-server-count", "2"],
    ],
    ids=" ".join,
)
def test_what_is_no_secret_stays(argv: list[str]) -> None:
    """The tokens that a model counts are numbers, and a user reads his own line back."""
    assert tuple(argv) == mask_argv(argv, V0_32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve m --api-key k1 k2 --port 1", "vllm serve m --api-key *** *** --port 1"),
        ("vllm serve m --api_key='a b' --port 1", "vllm serve m --api_key=*** --port 1"),
        ("vllm serve m --api-ke k1", "vllm serve m --api-ke ***"),
        ("x --hf-tok hf_a --hf-token=hf_b y", "x --hf-tok *** --hf-token=*** y"),
        ("x --db-password pw --auth-token=t", "x --db-password *** --auth-token=***"),
        ("HF_TOKEN=hf_x AWS_SECRET_ACCESS_KEY=y python", "HF_TOKEN=*** AWS_SECRET_ACCESS_KEY=*** python"),
        ("pulls https://u:p@h/x and http://t@h", "pulls https://***@h/x and http://***@h"),
        ("got {'api_key': ['a', 'b'], 'port': 1}", "got {'api_key': '***', 'port': 1}"),
        ('got {"token": "a\\"b", "n": 1}', 'got {"token": "***", "n": 1}'),
        ("denied: hf_a1B2c3D4e5a1B2c3D4e5a1B2c3 and sk-a1B2c3D4e5a1B2c3D4e5x", "denied: *** and ***"),
        ("Authorization: Bearer abc.def-123= x", "Authorization: Bearer *** x"),
        ("hf_transfer of hf_internal_testing/sk-learn by the Bearer of it", "hf_transfer of hf_internal_testing/sk-learn by the Bearer of it"),
        ("max_num_batched_tokens=2048 --max-num-batched-tokens 8k", "max_num_batched_tokens=2048 --max-num-batched-tokens 8k"),
        ("--return-tokens-as-token-ids m --tokenizer t --api-server-count 2", "--return-tokens-as-token-ids m --tokenizer t --api-server-count 2"),
    ],
)
def test_secrets_are_masked_in_free_text(text: str, expected: str) -> None:
    """By pattern, in command lines and in messages."""
    assert expected == mask_text(text)


@pytest.mark.parametrize(
    ("cmdline", "expected"),
    [
        pytest.param(["python", "train.py", "--lr", "1"], "python train.py --lr", id="program and two words"),
        pytest.param(["VLLM::EngineCore"], "VLLM::EngineCore", id="a title"),
        pytest.param(["nginx: worker process is shutting down"], "nginx: worker process", id="a title of words"),
        pytest.param(["x", "--api-key", "k"], "x --api-key ***", id="a secret"),
        pytest.param(["x", "--api-key=k", "y"], "x --api-key=*** y", id="a secret behind ="),
        pytest.param(["sh", "-c", "export HF_TOKEN=t\nrun"], "sh -c export HF_TOKEN=*** run", id="a script"),
        pytest.param(["\x1b]0;gone\x07a\x1b[31mb", "c\x00\x9bd", "\u202ee\udcff"], "ab cd e", id="escapes, control characters, direction marks, stray bytes"),
        pytest.param([], "", id="nothing"),
        pytest.param(["\x00", "a"], "a", id="a word of nothing printable"),
    ],
)
def test_a_process_is_named_in_three_words(cmdline: list[str], expected: str) -> None:
    """Safe to print on a terminal and to keep in a log."""
    assert expected == name_of(cmdline)


def test_a_long_name_is_cut() -> None:
    """At 120 characters."""
    name = name_of(["x" * 500])
    assert (len(name), name[-1]) == (120, "…")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=8) | st.sampled_from(["--api-key", "--", "m", "-x.y", '{"token":', "--hf-t=", "--model", "--config"]), max_size=8))
def test_masking_never_fails_and_keeps_the_number_of_words(argv: list[str]) -> None:
    """Whatever stands there; the name of it is printable."""
    assert len(argv) == len(mask_argv(argv, V0_32))
    assert name_of(argv).isprintable()


@given(st.lists(st.sampled_from(["k3y-one", "k3y-two"]), min_size=1, max_size=3), st.sampled_from(["--api-key", "--api_key", "--api-k", "--api-ke"]))
def test_no_key_survives(keys: list[str], name: str) -> None:
    """In argv and in text."""
    argv = ["m", "--port", "1", name, *keys, "--seed", "1"]
    assert "k3y" not in " ".join(mask_argv(argv, V0_32)) + mask_text(" ".join(argv))


@pytest.mark.parametrize(
    "text", ["token" * 4000, '"token' * 4000, "://" * 8000, "--api-key '" * 2000, '"\\' * 4000, "[" * 8000, "a." * 8000], ids=lambda text: text[:12]
)
def test_hostile_text_does_not_hang(text: str) -> None:
    """A command line is the kernel's word for what somebody else typed."""
    start = time.process_time()
    mask_text(text)
    assert time.process_time() - start < 2
