"""Claims of the shipped command: two guards on one card, who holds a claim and how long, and everybody who disturbs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from builders import checkpoint, cpu_facts, facts, gpu, judge, launched
from guard_process import BUSY, CLAIM, GUARD, MODEL, Ended, Host
from holding_vllm import Stage, Started, staged
from other_worlds import wait_for
from real.fake_memory import in_fake_memory, write_meminfo
from standin_driver import Card, Listed

from vllm_guard.claims.folder import Folder, Place, opened, places, why_untrusted
from vllm_guard.claims.lock import locked
from vllm_guard.claims.record import Owner, Promise, Record, from_bytes, to_bytes
from vllm_guard.facts import Claim
from vllm_guard.plan.promise import promised_bytes
from vllm_guard.units import GIB, MIB

CONSOLE = {"VLLM_GUARD_LOG_FORMAT": "console"}
UUID = "GPU-00000000-0000-4000-8000-000000000000"
TOTAL_MIB, FREE_MIB, OVERHEAD_MIB = 81_559, 81_080, 640
DEFAULT_MIB = 74_594 + OVERHEAD_MIB  # 0.92 of what CUDA sees of the card, and the start
NOBODY = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, users, mounts")


@pytest.fixture(name="stage")
def _stage(host: Host) -> Iterator[Stage]:
    """A host whose vLLM stays."""
    with staged(host) as stage:
        yield stage


def requested_mib(started: Started) -> int:
    """What its vLLM will take of the card, rounded up."""
    return int(FREE_MIB * started.utilization) + 1 + OVERHEAD_MIB


class TestTwoGuards:
    """On one idle card."""

    def test_at_the_same_moment_one_gets_what_it_asked_for_and_the_other_the_rest(self, stage: Stage) -> None:
        """Together they never take more than the card has."""
        both = [stage.started(each) for each in [stage.begin("--gpu-memory-utilization", "0.6") for _ in range(2)]]
        starts = [started for started in both if isinstance(started, Started)]

        assert 2 == len(starts)
        assert 0.6 == max(started.utilization for started in starts)
        assert sum(map(requested_mib, starts)) <= FREE_MIB
        assert any("MiB claimed by other guards" in started.stderr for started in starts)

    def test_at_the_same_moment_the_second_is_refused_where_the_rest_is_too_little(self, stage: Stage) -> None:
        """75: it may succeed later, when the first has said less or is gone."""
        both = [stage.started(each) for each in [stage.begin("--guard-min-utilization=0.5") for _ in range(2)]]

        assert [75] == [each for each in both if isinstance(each, int)]
        assert [0.92] == [each.utilization for each in both if isinstance(each, Started)]

    def test_a_promise_counts_until_the_memory_is_taken(self, stage: Stage) -> None:
        """Then what is free says it all, and claims say nothing twice."""
        first = stage.start("--gpu-memory-utilization=0.5")
        before = stage.host.check().lines[0]
        stage.host.cards(Card(processes=(Listed(first.pid, 20_000),)))
        half = stage.claims()[0]
        stage.host.cards(Card(processes=(Listed(first.pid, 40_000),)))
        after = stage.claims()[0]

        assert "0.92 to 0.4688 (GPU 0: 81080 of 81559 MiB free, 41180 MiB claimed by other guards" in before
        assert (41_180 * MIB, 20_000 * MIB, False) == (half["promised_bytes"], half["used_bytes"], half["ended"])
        assert (40_000 * MIB, True) == (after["used_bytes"], after["ended"])
        assert "claimed" not in stage.host.check().lines[0]

    def test_a_promise_ends_with_the_process(self, stage: Stage) -> None:
        """Nothing has to be cleaned up, and the next start removes the file."""
        stage.start().kill()
        after = stage.claims()
        second = stage.start()

        assert ([], 0.92) == (after, second.utilization)
        assert 1 == len(list(stage.host.claims.glob("*.claim")))

    def test_a_claim_never_refuses_for_good(self) -> None:
        """Whoever promised the whole card will be gone one day."""
        card = gpu()
        decision = judge(facts(card, claims=[Claim(card.uuid, card.nvml_total_bytes, 0, 1)]))

        assert 75 == decision.exit_code  # type: ignore[union-attr]  # a refusal


class TestWhoHolds:
    """The lock lives on a descriptor that vLLM inherits: forked children keep it, spawned ones do not get it."""

    def test_a_forked_child_keeps_the_claim_of_a_killed_server(self, stage: Stage) -> None:
        """It holds the memory; when it is gone too, so is the claim."""
        started = stage.start(child="fork")
        started.kill()
        kept = stage.claims()
        os.kill(started.child, 9)
        deadline = time.monotonic() + 5
        while stage.claims() and time.monotonic() < deadline:
            time.sleep(0.05)

        assert [started.pid] == [claim["pid"] for claim in kept]
        assert not stage.claims()

    def test_what_a_forked_child_of_a_killed_server_takes_counts(self, stage: Stage) -> None:
        """Its line of parents is cut: what free memory has dropped since the promise is taken for it."""
        started = stage.start(child="fork")
        started.kill()
        stage.host.cards(Card(processes=(Listed(started.child, 70_000),)))

        assert [(70_000 * MIB, True)] == [(claim["used_bytes"], claim["ended"]) for claim in stage.claims()]

    def test_a_spawned_child_does_not_keep_the_claim(self, stage: Stage) -> None:
        """It never had the descriptor."""
        started = stage.start(child="spawn")
        inherited = Path(f"/proc/{started.child}/fd/{CLAIM}").exists()
        before = stage.claims()
        started.kill()

        assert (False, 1, []) == (inherited, len(before), stage.claims())

    def test_a_server_that_becomes_a_guard_again_does_not_count_itself(self, stage: Stage) -> None:
        """A restart by exec: same pid, one claim."""
        started = stage.start(environ={"HOLD_AGAIN": str(GUARD)})

        assert (0.92, "") == (started.utilization, started.stderr.partition("claimed by")[1])
        assert [started.pid] == [claim["pid"] for claim in stage.claims()]

    @needs_root
    def test_a_claim_from_another_pid_namespace_counts_by_what_free_memory_drops(self, stage: Stage) -> None:
        """Its pid means nothing here, not even where another process has it."""
        started = stage.start("--gpu-memory-utilization=0.5", wrapper=["unshare", "-fp", "--kill-child", "--mount-proc"])
        before = stage.claims()
        stage.host.cards(Card(free_mib=FREE_MIB - 20_000, processes=(Listed(os.getpid(), 20_000),)))
        half = stage.claims()

        assert (1, [1], [0]) == (started.pid, [claim["pid"] for claim in before], [claim["used_bytes"] for claim in before])
        assert [20_000 * MIB] == [claim["used_bytes"] for claim in half]

    @needs_root
    def test_claims_are_seen_from_another_pid_namespace(self, stage: Stage) -> None:
        """Containers that share the folder."""
        stage.start("--gpu-memory-utilization=0.5")

        assert 1 == len(stage.claims(wrapper=["unshare", "-fp", "--kill-child", "--mount-proc"]))


@needs_root
def test_users_see_each_others_claims(stage: Stage) -> None:
    """In a folder that root made: each user's promise binds the others, and names its owner."""
    if subprocess.run([*NOBODY, str(GUARD), "--guard-version"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs a guard that other users may run")
    for folder in (stage.host.driver, stage.host.folder, stage.host.folder.parent, stage.host.folder.parent.parent):
        folder.chmod(0o711)
    ours = stage.start("--gpu-memory-utilization=0.3")
    theirs = stage.start("--gpu-memory-utilization=0.3", wrapper=NOBODY, environ={"HOME": None})
    third = stage.start()

    assert (0.3, 0.3, "") == (ours.utilization, theirs.utilization, theirs.stderr.partition("warning")[1])
    assert {(ours.pid, "root"), (theirs.pid, "54321"), (third.pid, "root")} == {(claim["pid"], claim["user"]) for claim in stage.claims()}
    assert sum(map(requested_mib, (ours, theirs, third))) <= FREE_MIB
    assert 0o1777 == stage.host.claims.stat().st_mode & 0o7777


def test_gpus_shows_claims_with_their_owners(stage: Stage) -> None:
    """On stdout, below the cards."""
    started = stage.start("--gpu-memory-utilization=0.5")
    lines = stage.host.run("gpus", environ=CONSOLE).stdout.decode().splitlines()
    claim = next(line for line in lines if "claim" in line and "pid" in line)

    assert claim.startswith(f"GPU 0  41180 MiB claimed by pid {started.pid}  {_me()}  up ")
    assert claim.endswith("0 MiB of it used, 41180 MiB to come")


def _me() -> str:
    import pwd  # noqa: PLC0415 - only here

    return pwd.getpwuid(os.geteuid()).pw_name


QUIET: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "check": (("check", MODEL), {}),
    "a dry run": (("serve", MODEL, "--guard-dry-run"), {}),
    "observing": (("serve", MODEL, "--guard-mode=observe"), {}),
    "mode off": (("serve", MODEL, "--guard-mode=off"), {}),
    "claims off": (("serve", MODEL, "--guard-claims=off"), {}),
    "gpus": (("gpus",), {}),
    "a snapshot": (("snapshot",), {}),
    "a refusal": (("serve", MODEL, "--guard-min-free=200GiB"), {}),
    "a command line that vLLM rejects": (("serve", MODEL, "--gpu-memory-utilization=7"), {}),
}


@pytest.mark.parametrize(("words", "environ"), QUIET.values(), ids=QUIET)
def test_who_starts_nothing_or_was_told_not_to_promises_nothing(host: Host, words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """No folder, no lock, no file, no descriptor."""
    ended = host.run(*words, environ=environ)

    assert not host.claims.exists()
    assert ended.report is None or CLAIM not in ended.report.descriptors


@needs_root
class TestHostMemory:
    """The CPU build on a node of 8 GiB with 6 GiB free, whoever takes it: what is promised is the request and 890 MiB beside it."""

    @pytest.fixture(name="stage")
    def _stage(self, host: Host) -> Iterator[Stage]:
        """A host with that build."""
        host.install("0.32.0+cpu")
        self.meminfo = host.folder / "meminfo"
        write_meminfo(self.meminfo, total_mib=8192, free_mib=6144)
        self.node = in_fake_memory(self.meminfo, [])
        with staged(host) as stage:
            yield stage

    def claimed_mib(self, stage: Stage) -> int:
        """What a guard that comes now finds promised."""
        claimed: int = stage.host.check("--guard-json", wrapper=self.node).document["devices"][0]["claimed_bytes"]
        return claimed // MIB

    def test_a_second_guard_at_the_same_moment_is_refused(self, stage: Stage) -> None:
        """75: the margin leaves it nothing."""
        both = [stage.started(each) for each in [stage.begin(wrapper=self.node) for _ in range(2)]]

        assert [75] == [each for each in both if isinstance(each, int)]
        assert [0.375] == [each.utilization for each in both if isinstance(each, Started)]

    def test_a_second_guard_at_the_same_moment_takes_less(self, stage: Stage) -> None:
        """Both of them fit, by their settings: 6144 is 3072 + 890, and 1292 + 890; what the first holds already is a MiB or two."""
        options = ("--guard-margin=0", "--guard-start-overhead=890MiB", "--guard-max-utilization=0.375")
        both = [stage.started(each) for each in [stage.begin(*options, wrapper=self.node) for _ in range(2)]]
        less, asked = sorted(each.utilization for each in both if isinstance(each, Started))

        assert 0.375 == asked
        assert 0.1577 == pytest.approx(less, abs=0.001)

    def test_a_promise_of_a_container_counts_until_the_node_has_that_much_less(self, stage: Stage) -> None:
        """Nine tenths of it end it."""
        stage.start("--gpu-memory-utilization=0.25", wrapper=["unshare", "-fp", "--kill-child", "--mount-proc", *self.node])
        before = self.claimed_mib(stage)
        write_meminfo(self.meminfo, total_mib=8192, free_mib=5144)
        partly = self.claimed_mib(stage)
        write_meminfo(self.meminfo, total_mib=8192, free_mib=3499)

        assert (2048 + 890, 2048 + 890 - 1000, 0) == (before, partly, self.claimed_mib(stage))

    def test_gpus_shows_them(self, stage: Stage) -> None:
        """Where there are no cards."""
        started = stage.start("--gpu-memory-utilization=0.25", wrapper=self.node)
        stage.host.cards(init_error=12)
        shown = stage.host.run("gpus", wrapper=self.node).stdout.decode()

        assert re.search(rf"NUMA node 0  2938 MiB claimed by pid {started.pid}  root  up .*   0 MiB of it used, 2938 MiB to come", shown), shown


def test_run_promises_too(host: Host) -> None:
    """Another launcher on the same card."""
    ended = host.run("run", "--", "vllm", "serve", MODEL)

    assert ended.report is not None
    assert CLAIM in ended.report.descriptors
    assert [MODEL.encode()] == list(ended.reached[1:2])


def record(promised_mib: int = 50_000, **owner: int | str) -> bytes:
    """A record as a guard that has ended writes it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    values = {"pid": 4711, "started_ticks": 1, "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino, "boot_id": boot, **owner}
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return to_bytes(Record(Owner(**values), now, 1, (Promise(UUID, promised_mib * MIB, FREE_MIB * MIB),)))  # type: ignore[arg-type]  # a field's own type


def hold(folder: Path, data: bytes, name: str = "4711-0123456789abcdef.claim") -> int:
    """A file of this content whose lock we hold: its descriptor."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    descriptor = os.open(folder / name, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_record_that_somebody_holds_counts_and_one_that_nobody_holds_does_not(host: Host) -> None:
    """The lock decides, not the pid in it."""
    descriptor = hold(host.claims, record())
    counted = host.check().lines[0]
    os.close(descriptor)
    ended = host.serve(environ=CONSOLE)

    assert "50000 MiB claimed by other guards" in counted
    assert (["vllm-guard: launch: --gpu-memory-utilization 0.92 unchanged (vLLM's default fits): GPU 0 has 81080 of 81559 MiB free"]) == ended.lines
    assert not (host.claims / "4711-0123456789abcdef.claim").exists()


def test_a_promise_above_the_card_is_the_card(host: Host) -> None:
    """Refused for now, and said; never for good."""
    descriptor = hold(host.claims, record(10**9))
    ended = host.serve(environ=CONSOLE)
    os.close(descriptor)

    assert (75, 1) == (ended.code, len([line for line in ended.lines if line.startswith("vllm-guard: ")]))


def unreadable(kind: str) -> Callable[[Path], None]:
    """Puts something at the name of a claim that is no record."""

    def put(folder: Path) -> None:
        path = folder / "4711-0123456789abcdef.claim"
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "link":
                (folder / "elsewhere").write_bytes(record())
                path.symlink_to(folder / "elsewhere")
            case "dangling":
                path.symlink_to("/nowhere/at/all")
            case _:
                path.symlink_to("/dev/zero")

    return put


HELD_FILES: Mapping[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half a record": lambda: record()[:60],
    "10 MB": lambda: record() + b" " * 10_000_000,
    "no JSON": lambda: b"\x00\xff" * 50,
    "another boot": lambda: record(boot_id="0" * 36),
    "a time to come": lambda: record().replace(b'"taken_seconds":', b'"taken_seconds":9'),
}
UNCHANGED = ["vllm-guard: launch: --gpu-memory-utilization 0.92 unchanged (vLLM's default fits): GPU 0 has 81080 of 81559 MiB free"]


@pytest.mark.parametrize("make", HELD_FILES.values(), ids=HELD_FILES)
def test_a_held_file_that_is_no_record_is_passed_over(host: Host, make: Callable[[], bytes]) -> None:
    """Whatever is in it: a right start, at once, and not a word."""
    descriptor = hold(host.claims, make())
    ended = host.serve(environ=CONSOLE, timeout_seconds=10)
    os.close(descriptor)

    assert (0, UNCHANGED) == (ended.code, ended.lines)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "dangling", "device"])
def test_what_is_no_file_at_the_name_of_a_claim_is_passed_over(host: Host, kind: str) -> None:
    """Neither followed nor waited for nor removed."""
    host.claims.mkdir()
    unreadable(kind)(host.claims)
    ended = host.serve(environ=CONSOLE, timeout_seconds=10)

    assert (0, UNCHANGED) == (ended.code, ended.lines)
    assert os.path.lexists(host.claims / "4711-0123456789abcdef.claim")


def warned_once(ended: Ended) -> str:
    """The one warning of a launch that went on."""
    assert (0, b"stub vllm\n") == (ended.code, ended.stdout), ended.stderr
    assert 2 == len(ended.lines), ended.stderr
    assert ended.lines[1].startswith("vllm-guard: warning: no claim among guards that start at once (")
    return ended.lines[1]


def test_a_lock_that_somebody_holds_forever_costs_5_seconds(host: Host) -> None:
    """And one warning; the promise is written all the same."""
    host.claims.mkdir()
    descriptor = os.open(host.claims / f"{UUID}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ended = host.serve(environ=CONSOLE)
    os.close(descriptor)

    assert "another process holds this lock for too long" in warned_once(ended)
    assert 5 <= ended.seconds < 10
    assert ended.report is not None
    assert CLAIM in ended.report.descriptors


def test_who_may_wait_does_when_another_promised_the_memory_first(stage: Stage) -> None:
    """Two wait for one release: the second comes to the lock with a decision that no longer holds, and goes back to waiting."""
    stage.host.claims.mkdir()
    lock = os.open(stage.host.claims / f"{UUID}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    guard = stage.begin("--guard-wait=60")
    time.sleep(2)  # it has decided and asks for the lock
    promise = hold(stage.host.claims, record())
    os.close(lock)
    wait_for(lambda: "GPU 0 has 31080 MiB free beside 50000 MiB claimed by other guards, --gpu-memory-utilization" in stage.said(guard), 20)
    began = list(stage.ready.iterdir())
    os.close(promise)
    started = stage.started(guard)

    assert [] == began
    assert isinstance(started, Started)
    assert 0.92 == started.utilization


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_a_lock_that_is_no_file_is_one_warning(host: Host, kind: str) -> None:
    """And no wait: nothing is followed, no pipe is opened for writing."""
    host.claims.mkdir()
    unreadable(kind)(host.claims)
    (host.claims / "4711-0123456789abcdef.claim").rename(host.claims / f"{UUID}.lock")
    ended = host.serve(environ=CONSOLE)

    assert f"{UUID}.lock: " in warned_once(ended)
    assert ended.seconds < 5


def linked(folder: Path) -> None:
    """A link where the folder should be."""
    (folder.parent / "real").mkdir()
    folder.symlink_to(folder.parent / "real")


def open_to_all(folder: Path) -> None:
    """A folder in which everybody may remove everything."""
    folder.mkdir()
    folder.chmod(0o777)


def of_a_user(folder: Path) -> None:
    """A folder that a user made for root."""
    folder.mkdir()
    os.chown(folder, 54321, 54321)


FOLDERS: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "a link": (linked, "Not a directory"),
    "a file": (Path.touch, "Not a directory"),
    "a pipe": (os.mkfifo, "Not a directory"),
    "open to all": (open_to_all, "others may remove what lies in it"),
    "somebody else's, for root": (of_a_user, "it belongs to another user"),
}


@pytest.mark.parametrize(("make", "because"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_cannot_be_trusted_is_one_warning(host: Host, make: Callable[[Path], None], because: str) -> None:
    """Claims are off, and nothing is written there."""
    if because == "it belongs to another user" and os.geteuid() != 0:
        pytest.skip("needs root")
    make(host.claims)
    ended = host.serve(environ=CONSOLE)

    assert because in warned_once(ended)
    assert host.claims.is_fifo() or host.claims.is_file() or not list(host.claims.iterdir())


def test_a_folder_that_cannot_be_made_is_one_warning(host: Host) -> None:
    """Its parent is missing."""
    ended = host.serve(environ={**CONSOLE, "VLLM_GUARD_CLAIMS_DIR": "/nowhere/at/all"})

    assert "(/nowhere/at/all: No such file or directory)" in warned_once(ended)


@needs_root
def test_claims_in_a_folder_that_is_read_only_still_count(host: Host) -> None:
    """They are honoured; our own cannot be written, which is one warning."""
    descriptor = hold(host.claims, record())
    mount = f'mount --bind "{host.claims}" "{host.claims}" && mount -o remount,bind,ro "{host.claims}" && exec "$0" "$@"'
    ended = host.serve(environ=CONSOLE, wrapper=["unshare", "-m", "sh", "-c", mount])
    os.close(descriptor)

    assert ended.lines[0].startswith("vllm-guard: launch: --gpu-memory-utilization 0.92 to ")
    assert "50000 MiB claimed by other guards" in ended.lines[0]
    assert f"({host.claims}: it cannot be written to)" in ended.lines[1]


@needs_root
def test_a_full_disk_is_one_warning_and_leaves_nothing(host: Host) -> None:
    """The lock can be taken, the record cannot be written."""
    host.claims.mkdir()
    full = f'mount -t tmpfs -o size=4k,mode=1777 none "{host.claims}" && head -c 4096 /dev/zero > "{host.claims}/filler"'
    after = f'"$0" "$@"; code=$?; ls "{host.claims}" >> "{host.folder}/left"; exit $code'
    ended = host.serve(environ=CONSOLE, wrapper=["unshare", "-m", "sh", "-c", f"{full}; {after}"])

    assert "No space left on device" in warned_once(ended)
    assert {"filler", f"{UUID}.lock"} == set((host.folder / "left").read_text().split())


def test_a_limit_on_file_sizes_is_one_warning_and_leaves_nothing(host: Host) -> None:
    """ulimit -f 0: writing fails, no signal kills the guard."""
    ended = host.serve(environ={**CONSOLE, "STUB_REPORT": None}, wrapper=["prlimit", "--fsize=0"])

    assert "File too large" in warned_once(ended)
    assert [f"{UUID}.lock"] == [path.name for path in host.claims.iterdir()]


def test_few_descriptors_are_one_warning(host: Host) -> None:
    """ulimit -n below the place of the claim's."""
    ended = host.serve(environ=CONSOLE, wrapper=["prlimit", f"--nofile={CLAIM}"])

    assert "Invalid argument" in warned_once(ended)
    assert not list(host.claims.glob("*.claim"))


def test_the_umask_does_not_hide_a_claim(stage: Stage) -> None:
    """Other users must be able to read it and to take the lock, and only that."""
    stage.start(wrapper=["sh", "-c", 'umask 077; exec "$0" "$@"'])

    assert {0o644} == {path.stat().st_mode & 0o777 for path in stage.host.claims.iterdir()}


def test_the_clock_of_a_record_does_not_jump(stage: Stage) -> None:
    """It counts from boot, through suspend too; nobody sets it."""
    stage.start()
    written = from_bytes(next(stage.host.claims.glob("*.claim")).read_bytes())

    assert written is not None
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - written.taken_seconds < 10


@pytest.mark.parametrize(
    ("owner", "mode", "user", "named", "trusted"),
    [
        pytest.param(0, 0o41777, 0, False, True, id="root's, sticky, for root"),
        pytest.param(0, 0o40755, 1000, False, True, id="root's, for a user"),
        pytest.param(1000, 0o40700, 1000, False, True, id="a user's own"),
        pytest.param(1001, 0o41777, 1000, False, False, id="another user's, for a user"),
        pytest.param(1001, 0o41777, 1000, True, True, id="another user's that was named"),
        pytest.param(1000, 0o40700, 0, True, False, id="a user's that was named, for root"),
        pytest.param(0, 0o40777, 1000, True, False, id="open to all"),
        pytest.param(0, 0o40775, 0, True, False, id="open to a group"),
    ],
)
def test_whom_a_folder_must_belong_to(owner: int, mode: int, user: int, *, named: bool, trusted: bool) -> None:
    """Root uses only root's; nobody uses one in which others can remove claims."""
    status = os.stat_result((mode, 1, 1, 2, owner, owner, 0, 0, 0, 0))

    assert trusted == (why_untrusted(status, user, named=named) is None)


def test_where_claims_lie(tmp_path: Path) -> None:
    """The shared folders, which only root creates, then the user's own run-time folder, if it is his."""
    me = os.geteuid()
    shared = ["/run/vllm-guard", "/run/lock/vllm-guard"]
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}

    assert [Place(path, 0o1777) for path in shared] == list(places(None, {}, 0))
    assert [Place(path, None) for path in shared] == list(places(None, environ, me + 1))
    assert [*shared, f"{tmp_path}/vllm-guard"] == [place.path for place in places(None, environ, me)]
    assert shared == [place.path for place in places(None, {"XDG_RUNTIME_DIR": "relative"}, me)]
    assert shared == [place.path for place in places(None, {"XDG_RUNTIME_DIR": "/a\0b"}, me)]
    assert (Place("/srv/claims", 0o700, named=True),) == places("/srv/claims", environ, 1000)


def test_the_first_place_that_takes_a_folder_gets_it(tmp_path: Path) -> None:
    """Later ones are not created then, and all that are there are read."""
    (tmp_path / "third").mkdir(mode=0o700)
    wanted = [Place(str(tmp_path / "missing" / "first"), 0o700), Place(str(tmp_path / "second"), 0o1777), Place(str(tmp_path / "third"), None)]
    with opened(wanted, create=False) as folders:
        before = [Path(folder.path).name for folder in folders.readable]
    with opened(wanted, create=True) as folders:
        home = folders.home

    assert (["third"], "second") == (before, Path(home.path).name if home else None)
    assert 0o1777 == (tmp_path / "second").stat().st_mode & 0o7777


def test_locks_are_taken_in_one_order(tmp_path: Path) -> None:
    """Two guards with the same cards in another order never wait for each other."""
    with opened([Place(str(tmp_path), None)], create=False) as folders:
        assert isinstance(folders.home, Folder)
        with locked(folders.home, ["GPU-b", "GPU-a"]) as first, locked(folders.home, ["GPU-c", "GPU-a"], 0.1) as second:
            names = sorted(path.name for path in tmp_path.iterdir())

    assert (None, ["GPU-a.lock", "GPU-b.lock"]) == (first, names)
    assert "GPU-a.lock: another process holds this lock for too long" in (second or "")


PROMISES: Mapping[str, tuple[tuple[str, ...], int, int]] = {
    "vLLM's default": ((), 81_080, 74_594 + 640),
    "a value that was given": (("--gpu-memory-utilization=0.5",), 81_080, 40_540 + 640),
    "what the guard chose": ((), 41_080, int(81_080 * 0.4832) + 640),
}


@pytest.mark.parametrize(("argv", "free_mib", "expected_mib"), PROMISES.values(), ids=PROMISES)
def test_what_is_promised(argv: tuple[str, ...], free_mib: int, expected_mib: int) -> None:
    """What vLLM requests of what CUDA sees, and what its process takes before."""
    decision = launched(judge(facts(gpu(free_mib=free_mib, reserved_mib=479)), *argv))

    assert expected_mib == pytest.approx(promised_bytes(decision, decision.assessment.devices[0]) / MIB, abs=1)


HOST_PROMISES: Mapping[str, tuple[tuple[str, ...], Mapping[str, str], int]] = {
    "what the guard chose": ((), {}, 3072 + 890),
    "a value that was given": (("--gpu-memory-utilization=0.5",), {}, 4096 + 890),
    "for each rank": (("--gpu-memory-utilization=0.25", "-tp", "2"), {}, 2 * 2048 + 890),
    "never more than the node": (("--gpu-memory-utilization=0.5", "-tp", "2"), {}, 8192),
    "a cache in blocks, and no model that is known": (("--num-gpu-blocks-override=10",), {}, 3072 + 890),
    "a cache in bytes, and no model that is known": (("--kv-cache-memory-bytes=64M",), {}, 64 + 890),
    "the variable that wins over the flag": (("--kv-cache-memory-bytes=64M",), {"VLLM_CPU_KVCACHE_SPACE": "2"}, 2048 + 890),
}


@pytest.mark.parametrize(("argv", "environment", "expected_mib"), HOST_PROMISES.values(), ids=HOST_PROMISES)
def test_what_the_cpu_build_promises(argv: tuple[str, ...], environment: Mapping[str, str], expected_mib: int) -> None:
    """What its workers request of the node, and what was measured beside them; the fraction counts only where the cache has no size of its own."""
    launch = launched(judge(cpu_facts(total_mib=8192, free_mib=6144, environment=environment), *argv))

    assert expected_mib == pytest.approx(promised_bytes(launch, launch.assessment.devices[0]) / MIB, abs=1)


def test_a_fraction_that_sizes_nothing_is_not_promised() -> None:
    """A model without a KV cache takes itself alone, and so it is with a cache that is given in blocks."""
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512}
    bert = checkpoint(130, architectures=["BertModel"], model_type="bert", vocab_size=30_522, **sizes)
    llama = checkpoint(1000, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    on_card, on_node = facts(gpu(reserved_mib=479)), cpu_facts(total_mib=65_536, free_mib=60_000)
    starts = [
        launched(judge(on_card, "--gpu-memory-utilization=0.5", model=bert)),
        launched(judge(on_node, "--gpu-memory-utilization=0.5", model=bert)),
        launched(judge(on_card, "--num-gpu-blocks-override=1000", "--max-model-len=2048", model=llama)),
    ]

    assert all(promised_bytes(start, start.assessment.devices[0]) < 16 * GIB for start in starts)


def test_a_cache_given_in_bytes_is_what_is_promised_beside_the_model() -> None:
    """The fraction only decides the gate then; a model that is not known leaves the fraction."""
    unknown = launched(judge(facts(), "--kv-cache-memory-bytes", str(4 * GIB)))

    assert promised_bytes(unknown, unknown.assessment.devices[0]) > 70 * GIB


def test_snapshots_keep_claims_and_hide_strangers(stage: Stage) -> None:
    """A decision can be replayed with them; another user's name is not written."""
    stage.start("--gpu-memory-utilization=0.5")
    file = stage.host.folder / "snapshot"
    file.write_bytes(stage.host.run("snapshot").stdout)
    replayed = stage.host.check(f"--guard-snapshot={file}")
    claim = json.loads(file.read_text())["claims"][0]

    assert "41180 MiB claimed by other guards" in replayed.lines[0]
    assert (_me(), False) == (claim["user"], claim["ended"])


def test_claims_cost_no_library(host: Host) -> None:
    """Only cards with processes are worth psutil."""
    descriptor = hold(host.claims, record())
    ended = host.serve(environ={"PYTHONPROFILEIMPORTTIME": "1", **CONSOLE}, wrapper=[sys.executable, "-X", "importtime"])
    os.close(descriptor)

    assert 0 == ended.code
    assert " psutil" not in ended.stderr


def test_a_shared_card_is_left_to_the_neighbour(host: Host) -> None:
    """A neighbour without a claim is as before."""
    host.cards(BUSY)

    assert b"0.3606" == host.serve().reached[-1]


NO_LOCKS = """
import time
import vllm_guard.claims.book as book, vllm_guard.claims.lock as lock
write = book.write_claim
def take(descriptor, deadline):
    raise OSError(38, "Function not implemented")
def write_late(*given):
    time.sleep(2)
    return write(*given)
lock.take, book.write_claim = take, write_late
"""


def test_without_locks_two_guards_still_see_each_other(stage: Stage) -> None:
    """On a file system that has none both decide before either has written: each looks once more after it wrote."""
    (stage.host.folder / "shim").mkdir()
    (stage.host.folder / "shim" / "sitecustomize.py").write_text(NO_LOCKS)
    begun = [stage.begin("--guard-min-utilization=0.02", environ={"PYTHONPATH": str(stage.host.folder / "shim")}) for _ in range(2)]
    both = [stage.started(each, 40) for each in begun]
    starts = [started for started in both if isinstance(started, Started)]

    assert sum(map(requested_mib, starts)) <= FREE_MIB
    assert {75} >= {each for each in both if isinstance(each, int)}
    assert all("Function not implemented" in started.stderr for started in starts)
