"""Which devices of a host a command takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from vllm_guard.command.parse import Command, Given, parse
from vllm_guard.devices import Chosen, Device, Elsewhere, Selection, Unusable
from vllm_guard.facts import Claim, Facts, Gpu, Host, NumaNode, NvmlFault, UnreadableGpu, decides
from vllm_guard.host.visible import select_devices
from vllm_guard.release import Release, parse_release
from vllm_guard.units import GIB, MIB

H100 = "NVIDIA H100 80GB HBM3"
A10 = "NVIDIA A10"
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
LATEST = Release(0, 33)


def card(index: int, name: str = H100, **changes: Any) -> Gpu:
    """A card whose UUID begins with its own letter: GPU-a… is index 0."""
    uuid = f"GPU-{'abcdefgh'[index]}1111111-2222-3333-4444-555555555555"
    return Gpu(**{"nvml_index": index, "uuid": uuid, "name": name, "nvml_total_bytes": 80 * GIB, "free_bytes": 79 * GIB, **changes})


def mig_slice(index: int, number: int, **changes: Any) -> Gpu:
    """The slice of this number on the card of this index."""
    uuid = f"MIG-{'abcdefgh'[index]}{number}"
    name = f"{H100} MIG 1g.10gb"
    parent = {"mig_parent_uuid": card(index).uuid, "mig_parent_total_bytes": 80 * GIB, "nvml_total_bytes": 10 * GIB, "free_bytes": 9 * GIB}
    return card(index, name, **{"uuid": uuid, **parent, **changes})


def lost(index: int, uuid: str | None = None) -> UnreadableGpu:
    """A card that has fallen off the bus."""
    return UnreadableGpu(index, uuid, None, f"GPU {index} is lost", "reset it")


def facts(*gpus: Gpu | UnreadableGpu, environment: Mapping[str, str] | None = None, **changes: Any) -> Facts:
    """One reading of a host with these cards."""
    host = Host(memory_total_bytes=64 * GIB, memory_available_bytes=60 * GIB)
    return Facts(
        **{"taken_at": "now", "vllm_version": "0.33.0", "vllm_device": "cuda", "host": host, "gpus": gpus, "environment": environment or {}, **changes}
    )


def select(world: Facts, release: Release | None = LATEST, **options: object) -> Selection:
    """The selection for a command with these options, by dest."""
    given = {dest: Given(value, str(value), "argv") for dest, value in options.items()}
    return select_devices(world, Command((), None, given), release)


def chosen(world: Facts, release: Release | None = LATEST, **options: object) -> Chosen:
    """The selection, where devices are chosen."""
    selection = select(world, release, **options)
    assert isinstance(selection, Chosen)
    return selection


def uuids(selection: Selection) -> str:
    """The second half of each chosen card's name: `ba` is index 1, then index 0."""
    assert isinstance(selection, Chosen)
    return " ".join((device.uuid or "")[4:6].rstrip("1") or "?" for device in selection.devices)


def codes(selection: Selection) -> list[str]:
    """The codes of its warnings."""
    if isinstance(selection, Elsewhere):
        return [selection.warning.code]
    return [warning.code for warning in selection.warnings] if isinstance(selection, Chosen) else []


FOUR = [card(index) for index in range(4)]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, "a b c d", id="unset shows all in order"),
        pytest.param("2,0", "c a", id="the list's order is the logical order"),
        pytest.param(" 3 , +1 ", "d b", id="spaces and a plus are skipped"),
        pytest.param("1gpu2,2ampere", "b c", id="an integer ends where its digits end"),
        pytest.param("0,2,-1,1", "a c", id="a negative entry ends the list"),
        pytest.param("0,x,1", "a", id="a word ends the list"),
        pytest.param("3,4,0", "d", id="an index out of range ends the list"),
        pytest.param(f"1,{'9' * 5000},0", "b", id="an absurd index ends the list"),
        pytest.param("0,1,0", "", id="a repeated index empties the list"),
        pytest.param("0,GPU-b", "a", id="a UUID after an integer ends the list"),
        pytest.param("GPU-b,GPU-a1", "b a", id="UUIDs may be abbreviated"),
        pytest.param(card(3).uuid, "d", id="a full UUID"),
        pytest.param("GPU-b,1", "b", id="an integer after a UUID ends the list"),
        pytest.param("GPU-b,GPU-b1", "", id="one card named twice empties the list"),
        pytest.param("GPU-", "", id="a prefix of several UUIDs names none"),
        pytest.param("GPU-z,GPU-a", "", id="an unknown UUID ends the list"),
        pytest.param("MIG-a", "", id="a MIG name on a host without slices names none"),
        pytest.param("", "", id="the empty string shows none"),
        pytest.param("NoDevFiles", "", id="NoDevFiles shows none"),
    ],
)
def test_cuda_visible_devices(visible: str | None, expected: str) -> None:
    """CUDA_VISIBLE_DEVICES lists cards in CUDA's own grammar."""
    world = facts(*FOUR, environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    count = len(expected.split())

    assert expected == (uuids(select(world, tensor_parallel_size=count)) if count else "")
    assert isinstance(select(world, tensor_parallel_size=count + 1), Unusable)


def test_logical_order_gives_ordinals() -> None:
    """The ordinal is CUDA's, the index NVML's."""
    devices = chosen(facts(*FOUR, environment={"CUDA_VISIBLE_DEVICES": "2,0"}), tensor_parallel_size=2).devices

    assert [(device.ordinal, device.nvml_index) for device in devices] == [(0, 2), (1, 0)]


def test_order_of_the_facts_is_irrelevant() -> None:
    """Places come from the NVML index, not from where a snapshot lists a card."""
    assert uuids(select(facts(*reversed(FOUR)), tensor_parallel_size=2)) == "a b"


def test_only_the_facts_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is judged by its own environment, and the container runtime's variable says nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

    assert uuids(select(facts(*FOUR, environment={"NVIDIA_VISIBLE_DEVICES": "2"}))) == "a"


SLICED = [card(0), mig_slice(0, 1), mig_slice(0, 2), card(1), mig_slice(1, 1), card(2)]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, "MIG-a1", id="slices come first"),
        pytest.param("MIG-a2", "MIG-a2", id="a slice by its UUID"),
        pytest.param("MIG-b", "MIG-b1", id="a slice by an unambiguous beginning"),
        pytest.param("1", "MIG-b1", id="an integer counts cards and takes the first slice"),
        pytest.param("2", card(2).uuid, id="a whole card keeps its place behind sliced ones"),
        pytest.param("GPU-b", "MIG-b1", id="a sliced card's UUID takes its first slice"),
        pytest.param("MIG-" + card(1).uuid + "/7/0", "MIG-b1", id="the old name of the only slice of a card"),
    ],
)
def test_mig(visible: str | None, expected: str) -> None:
    """Slices stand for their card, which CUDA never shows whole."""
    selection = chosen(facts(*SLICED, environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))

    assert [expected] == [device.uuid for device in selection.devices]
    assert not selection.interchangeable


@pytest.mark.parametrize("visible", ["MIG-a1,MIG-a2", "0,1"])
def test_cuda_shows_one_slice(visible: str) -> None:
    """A process never sees two MIG slices, so two ranks cannot have them."""
    selection = select(facts(*SLICED, environment={"CUDA_VISIBLE_DEVICES": visible}), tensor_parallel_size=2)

    assert isinstance(selection, Unusable)
    assert selection.reason == "device_missing"
    assert "one MIG slice" in selection.message


@pytest.mark.parametrize("visible", ["MIG-a1,MIG-a1", "MIG-x", "MIG-a", "MIG-GPU-x/1/0", f"MIG-{card(0).uuid}"])
def test_no_slice_of_that_name(visible: str) -> None:
    """A repeated, unknown or ambiguous slice is no device."""
    assert isinstance(select(facts(*SLICED, environment={"CUDA_VISIBLE_DEVICES": visible})), Unusable)


def test_old_name_of_one_slice_among_several() -> None:
    """Instance numbers are not known to NVML, so any slice of that card may be meant."""
    selection = chosen(facts(*SLICED, environment={"CUDA_VISIBLE_DEVICES": f"MIG-{card(0).uuid}/9/0"}))

    assert [device.uuid for device in selection.devices] == ["MIG-a1", "MIG-a2"]
    assert (selection.world, selection.interchangeable, codes(selection)) == (1, True, ["mig_slice_unknown"])


def test_name_of_a_slice_before_driver_470() -> None:
    """A driver that still calls its slices MIG-GPU-… is matched to the letter."""
    old = [mig_slice(0, number, uuid=f"MIG-{card(0).uuid}/1/{number}") for number in (1, 10)]
    selection = chosen(facts(*old, environment={"CUDA_VISIBLE_DEVICES": old[0].uuid}))

    assert [old[0].uuid] == [device.uuid for device in selection.devices]


def test_parent_of_slices_that_cannot_be_read_is_silent() -> None:
    """In a container the parent card refuses to be read; its slices are what counts."""
    selection = chosen(facts(lost(0, card(0).uuid), mig_slice(0, 1)))

    assert ([device.uuid for device in selection.devices], codes(selection)) == (["MIG-a1"], [])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, 1, id="one by default"),
        pytest.param({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "prefill_context_parallel_size": 2}, 8, id="tp x pp x pcp"),
        pytest.param({"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, 2, id="decode context parallelism adds none"),
        pytest.param({"tensor_parallel_size": 0}, 1, id="a size that vLLM rejects counts as one"),
        pytest.param({"tensor_parallel_size": 2, "data_parallel_size": 3}, 6, id="every data-parallel replica"),
        pytest.param({"data_parallel_size": 8, "data_parallel_size_local": 2}, 2, id="the local replicas where given"),
        pytest.param({"data_parallel_size": 8, "data_parallel_rank": 0}, 1, id="a rank of an external load balancer"),
        pytest.param({"data_parallel_size": 8, "data_parallel_external_lb": True}, 1, id="an external load balancer"),
        pytest.param({"data_parallel_size": 4, "data_parallel_external_lb": False}, 4, id="an external load balancer switched off"),
        pytest.param({"data_parallel_size": 4, "data_parallel_multi_port_external_lb": True}, 4, id="one supervisor starts all replicas"),
        pytest.param({"headless": True, "data_parallel_size": 4, "data_parallel_size_local": 3}, 3, id="headless starts at the first device too"),
        pytest.param({"tensor_parallel_size": 8, "nnodes": 2}, 4, id="a replica over two nodes"),
        pytest.param({"tensor_parallel_size": 2, "nnodes": 2, "data_parallel_size": 4}, 4, id="replicas spread over two nodes"),
        pytest.param({"tensor_parallel_size": 2, "nnodes": 4, "data_parallel_size": 2}, 1, id="two replicas over four nodes"),
        pytest.param({"distributed_executor_backend": "mp", "tensor_parallel_size": 2}, 2, id="the mp executor"),
    ],
)
def test_ranks_on_this_host(options: Mapping[str, Any], expected: int) -> None:
    """The ranks of this host take the first logical devices."""
    selection = chosen(facts(*(card(index) for index in range(8))), **options)

    assert list(range(expected)) == [device.nvml_index for device in selection.devices]
    assert expected == selection.world


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param({"distributed_executor_backend": "ray"}, "ray_places_ranks", id="the Ray executor"),
        pytest.param({"data_parallel_backend": "ray", "device_ids": "9"}, "ray_places_ranks", id="Ray data parallelism ignores device ids"),
        pytest.param({"worker_use_ray": True}, "ray_places_ranks", id="the old switch for Ray"),
        pytest.param({"distributed_executor_backend": "external_launcher"}, "launcher_places_ranks", id="an external launcher"),
        pytest.param({"data_parallel_size_local": 0, "data_parallel_size": 8}, "no_local_ranks", id="a head node without a GPU"),
    ],
)
def test_ranks_elsewhere(options: Mapping[str, Any], code: str) -> None:
    """What others place is not judged, even where NVML is broken."""
    fault = NvmlFault("no_gpu", "no NVML", "install a driver")

    assert [code] == codes(select(facts(nvml_fault=fault), **options))


@pytest.mark.parametrize(
    ("visible", "device_ids", "expected"),
    [
        pytest.param(None, "3,1", "d b", id="physical indices"),
        pytest.param("2,0,3", "2,0", "d c", id="places in the visible list"),
        pytest.param("2,0", card(3).uuid, "d", id="a UUID"),
    ],
)
def test_device_ids(visible: str | None, device_ids: str, expected: str) -> None:
    """--device-ids chooses among the visible devices."""
    world = facts(*FOUR, environment={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert expected == uuids(select(world, device_ids=device_ids, tensor_parallel_size=len(expected.split())))


def test_options_as_the_user_writes_them() -> None:
    """The names asked for here are those that the parser gives."""
    written = ["model", "-tp", "2", "-pp", "1", "-pcp", "1", "-dp", "4", "-dpl", "1", "-n", "1", "-dpb", "mp", "--device-ids", "3,1"]

    assert uuids(select_devices(facts(*FOUR), parse(written, LATEST), LATEST)) == "d b"


@pytest.mark.parametrize("device_ids", ["", "0,0", "0,00", "0,GPU-b", "x", "-1", "GPU-b,GPU-b1", "0," * 999])
def test_device_ids_that_vllm_rejects(device_ids: str) -> None:
    """A malformed list is vLLM's to answer."""
    assert codes(select(facts(*FOUR), device_ids=device_ids)) == ["device_ids_rejected"]


@pytest.mark.parametrize("device_ids", ["4", "0,7", "GPU-z"])
def test_device_ids_that_are_missing(device_ids: str) -> None:
    """A well-formed name of no device stops the launch."""
    selection = select(facts(*FOUR), device_ids=device_ids)

    assert isinstance(selection, Unusable)
    assert selection.reason == "device_missing"


def test_fewer_device_ids_than_ranks() -> None:
    """The list bounds the ranks."""
    selection = select(facts(*FOUR), device_ids="0", tensor_parallel_size=2)

    assert isinstance(selection, Unusable)
    assert selection.message == "this command takes 2 GPUs of this host, 1 visible"


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.33.0", Unusable), ("0.11.2", Unusable), (None, Unusable), ("0.10.2", Elsewhere), ("0.9.2", Elsewhere)],
)
def test_more_ranks_than_devices(version: str | None, expected: type) -> None:
    """From 0.11.2 vLLM refuses more ranks than visible GPUs; before it may turn to Ray."""
    selection = select(facts(*FOUR, environment={"CUDA_VISIBLE_DEVICES": "0,1"}), parse_release(version), tensor_parallel_size=3)

    assert expected is type(selection)


@pytest.mark.parametrize(
    ("ranks", "message", "fix"),
    [
        (
            3,
            "this command takes 3 GPUs of this host, 2 visible (CUDA_VISIBLE_DEVICES='0,1')",
            "name more of the 4 GPUs of this host in CUDA_VISIBLE_DEVICES or --device-ids, or use fewer ranks",
        ),
        (
            4,
            "this command takes 4 GPUs of this host, 2 visible (CUDA_VISIBLE_DEVICES='0,1')",
            "name more of the 4 GPUs of this host in CUDA_VISIBLE_DEVICES or --device-ids, or use fewer ranks",
        ),
        (
            5,
            "this command takes 5 GPUs of this host, 2 visible (CUDA_VISIBLE_DEVICES='0,1')",
            "lower --tensor-parallel-size x --pipeline-parallel-size x --data-parallel-size to 4 or less, the GPUs of this host",
        ),
    ],
)
def test_missing_devices_are_counted(ranks: int, message: str, fix: str) -> None:
    """The message has both numbers and their cause, the fix one that this host can do."""
    selection = select(facts(*FOUR, environment={"CUDA_VISIBLE_DEVICES": "0,1"}), tensor_parallel_size=ranks)

    assert Unusable("device_missing", message, fix) == selection


def test_nvml_fault() -> None:
    """A fault of NVML as a whole is no verdict."""
    assert Unusable("driver", "mismatch", "reboot") == select(facts(nvml_fault=NvmlFault("driver", "mismatch", "reboot")))


def test_no_gpu() -> None:
    """A CUDA build without any card is no verdict."""
    selection = select(facts(), Release(0, 9, 2))

    assert isinstance(selection, Unusable)
    assert selection.reason == "no_gpu"


def test_unreadable_card_that_is_needed() -> None:
    """A lost card that a rank would take is no verdict, in the words of the reader."""
    assert Unusable("driver", "GPU 1 is lost", "reset it") == select(facts(card(0), lost(1), card(2)), tensor_parallel_size=2)


def test_unreadable_card_keeps_its_place() -> None:
    """Integers count a lost card; when it is not taken it is a warning."""
    selection = chosen(facts(lost(0), card(1), card(2), environment={"CUDA_VISIBLE_DEVICES": "1,2"}), tensor_parallel_size=2)

    assert (uuids(selection), codes(selection)) == ("b c", ["gpu_unreadable"])


MIXED = [card(0, A10), card(1), card(2)]


@pytest.mark.parametrize(
    ("environment", "ranks", "expected", "interchangeable"),
    [
        pytest.param({}, 1, "a b c", True, id="an implicit subset may be any card"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,1"}, 2, "a b c", True, id="integers may be any cards"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "2,1,0"}, 1, "a b c", True, id="a part of all visible may be any card"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "2,1,0"}, 3, "c b a", False, id="all cards are all cards"),
        pytest.param({}, 3, "a b c", False, id="all cards implicitly"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1", **PCI}, 1, "b", False, id="the bus order is NVML's"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 1, "a b c", True, id="the order by speed said aloud"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-c"}, 1, "c", False, id="a UUID is one card"),
    ],
)
def test_order_of_different_cards(environment: Mapping[str, str], ranks: int, expected: str, *, interchangeable: bool) -> None:
    """With different cards integers mean something only in bus order."""
    selection = chosen(facts(*MIXED, environment=environment), tensor_parallel_size=ranks)

    assert expected == uuids(selection)
    assert (ranks, interchangeable) == (selection.world, selection.interchangeable)
    assert (["gpu_order_unknown"] if interchangeable else []) == codes(selection)


@pytest.mark.parametrize(("ranks", "expected"), [(1, "a c"), (2, "a c")])
def test_unreadable_card_among_interchangeable_ones(ranks: int, expected: str) -> None:
    """A lost card that may not be meant is a warning while enough others can be read."""
    selection = chosen(facts(card(0, A10), lost(1), card(2)), tensor_parallel_size=ranks)

    assert (expected, ["gpu_order_unknown", "gpu_unreadable"]) == (uuids(selection), codes(selection))
    assert isinstance(select(facts(card(0, A10), lost(1), card(2)), tensor_parallel_size=3), Unusable)


@pytest.mark.parametrize(
    ("version", "visible", "expected"),
    [
        ("0.21.0", "GPU-a", ["uuids_not_understood"]),
        ("0.21.0", "0", []),
        ("0.24.0", "GPU-a", []),
        (None, "GPU-a", []),
    ],
)
def test_uuids_in_old_releases(version: str | None, visible: str, expected: list[str]) -> None:
    """Up to 0.21.0 vLLM itself fails on UUIDs: a warning, since CUDA would take them."""
    assert expected == codes(select(facts(*FOUR, environment={"CUDA_VISIBLE_DEVICES": visible}), parse_release(version)))


@pytest.mark.parametrize(
    ("environment", "free", "total", "code"),
    [
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M,1=4G"}, 4, 80, "memory_limit", id="MPS by ordinal caps free only"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "6GB"}, 6, 80, "memory_limit", id="MPS for all"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{card(2).uuid}=7G"}, 7, 80, "memory_limit", id="MPS by UUID"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "999G"}, 79, 80, "memory_limit", id="MPS above what is free"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"}, 79, 80, "memory_limit", id="MPS for another ordinal"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT_1": "4g"}, 4, 4, "memory_limit", id="HAMi by ordinal caps both"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "4096m"}, 4, 4, "memory_limit", id="HAMi for all"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "4g", "CUDA_DEVICE_MEMORY_LIMIT_1": "8g"}, 8, 8, "memory_limit", id="HAMi's own before all"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "999g"}, 79, 80, "memory_limit", id="a limit above the card"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "0"}, 79, 80, None, id="zero is no limit"),
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT": "lots"}, 79, 80, "memory_limit_unreadable", id="a word is no limit"),
        pytest.param({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "=4G"}, 79, 80, "memory_limit_unreadable", id="a pair without a device is no limit"),
        pytest.param({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 79, 80, None, id="no limit"),
    ],
)
def test_limits_below_the_card(environment: Mapping[str, str], free: int, total: int, code: str | None) -> None:
    """Limits that NVML may not show count, and are said; here for ordinal 1, which is index 2."""
    world = facts(*FOUR, environment={"CUDA_VISIBLE_DEVICES": "0,2", **environment})
    device = chosen(world, tensor_parallel_size=2).devices[1]

    assert (free * GIB, total * GIB) == (device.free_bytes, device.nvml_total_bytes)
    assert {code} - {None} == set(codes(select(world)))


def test_smallest_limit_among_interchangeable_cards() -> None:
    """Where any card may have either ordinal the smaller limit counts for all."""
    world = facts(*MIXED, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G,1=4G,2=1G"})

    assert {4 * GIB} == {device.free_bytes for device in chosen(world, tensor_parallel_size=2).devices}


def test_slice_of_hami_has_no_driver_reserve() -> None:
    """vLLM multiplies the slice itself, so nothing is taken off it."""
    world = facts(card(0, driver_reserved_bytes=600 * MIB), environment={"CUDA_DEVICE_MEMORY_LIMIT_0": "4g"})

    assert chosen(world).devices[0].driver_reserved_bytes == 0


@pytest.mark.parametrize(
    ("gpus", "environment", "options", "expected"),
    [
        pytest.param([card(0, A10, nvml_total_bytes=24 * GIB), card(1)], PCI, {"device_ids": "1"}, (24 * GIB, A10), id="logical 0 despite device ids"),
        pytest.param(MIXED, {"CUDA_VISIBLE_DEVICES": "1"}, {}, (80 * GIB, H100), id="vLLM takes CUDA's integers for NVML's"),
        pytest.param(SLICED, {}, {}, (80 * GIB, f"{H100} MIG 1g.10gb"), id="the parent's total for a slice"),
        pytest.param([mig_slice(0, 1, mig_parent_total_bytes=None)], {}, {}, (10 * GIB, f"{H100} MIG 1g.10gb"), id="its own where the parent is unreadable"),
        pytest.param([lost(0), card(1)], {}, {"device_ids": "1"}, (0, ""), id="unknown where logical 0 is unreadable"),
        pytest.param([card(0)], {"CUDA_DEVICE_MEMORY_LIMIT": "4g"}, {}, (4 * GIB, H100), id="the slice that HAMi shows to NVML"),
    ],
)
def test_tier(gpus: list[Gpu | UnreadableGpu], environment: Mapping[str, str], options: Mapping[str, Any], expected: tuple[int, str]) -> None:
    """vLLM's batch defaults follow its first visible device."""
    devices = chosen(facts(*gpus, environment=environment), **options).devices

    assert {expected} == {(device.tier_total_bytes, device.tier_name) for device in devices}


def test_claims_are_summed_by_card() -> None:
    """What other guards promised and have not used yet counts on its own card."""
    claims = tuple(Claim(card(index).uuid, promised, used, 1) for index, promised, used in [(0, 10, 4), (0, 5, 9), (0, 3, 0), (1, 100, 0)])

    assert chosen(facts(*FOUR, claims=claims)).devices[0].claimed_bytes == 9


def test_a_device_keeps_what_its_card_has() -> None:
    """Nothing that NVML told about a card is lost on the way to the plan."""
    gpu = card(0, driver_reserved_bytes=3, compute_capability=(12, 1), unified=True)

    sizes = (80 * GIB, 79 * GIB, 3, 80 * GIB)

    assert chosen(facts(gpu)).devices == (Device("cuda", 0, 0, gpu.uuid, H100, *sizes, (12, 1), unified=True, tier_name=H100, claim_key=gpu.uuid),)


NODES = (NumaNode(0, 32 * GIB, 30 * GIB), NumaNode(1, 16 * GIB, 9 * GIB))


@pytest.mark.parametrize(
    ("nodes", "cgroup", "ranks", "expected"),
    [
        pytest.param((), None, 1, [("NUMA node 0", 64, 60, 1)], id="a host of unknown nodes is one node"),
        pytest.param((), 8, 3, [("NUMA node 0", 8, 8, 3)], id="the cgroup's limit bounds both figures"),
        pytest.param(NODES, None, 1, [("NUMA node 0", 32, 30, 1)], id="rank 0 on node 0"),
        pytest.param(NODES, 20, 3, [("NUMA node 0", 32, 30, 2), ("NUMA node 1", 16, 9, 1)], id="ranks go round the nodes as they were read"),
        pytest.param((NumaNode(0, 0, 0), NODES[1]), None, 1, [("NUMA node 1", 16, 9, 1)], id="a node without memory is passed over"),
    ],
)
def test_cpu_build(nodes: tuple[NumaNode, ...], cgroup: int | None, ranks: int, expected: list[tuple[str, int, int, int]]) -> None:
    """The CPU build's devices are NUMA nodes, whatever NVML says."""
    host = Host(64 * GIB, 60 * GIB, None if cgroup is None else cgroup * GIB, nodes=nodes)
    fault = NvmlFault("no_gpu", "no NVML", "install a driver")
    selection = chosen(facts(vllm_device="cpu", host=host, nvml_fault=fault), tensor_parallel_size=ranks)

    assert expected == [(d.name, d.nvml_total_bytes // GIB, d.free_bytes // GIB, d.ranks) for d in selection.devices]
    assert (ranks, {("cpu", None, None)}) == (selection.world, {(d.kind, d.nvml_index, d.uuid) for d in selection.devices})


@pytest.mark.parametrize(("version", "expected"), [("0.18.1", Elsewhere), ("0.21.0", Chosen), ("0.33.0", Chosen), (None, Chosen)])
def test_cpu_build_without_gate(version: str | None, expected: type) -> None:
    """Before 0.21.0 the CPU build measured nothing."""
    assert expected is type(select(facts(vllm_device="cpu"), parse_release(version)))


@pytest.mark.parametrize("build", ["rocm", "xpu", "tpu", "unknown"])
def test_other_builds(build: str) -> None:
    """Builds that the guard does not know start untouched."""
    assert codes(select(facts(*FOUR, vllm_device=build))) == ["build_not_judged"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CUDA_VISIBLE_DEVICES", True),
        ("CUDA_DEVICE_MEMORY_LIMIT", True),
        ("CUDA_DEVICE_MEMORY_LIMIT_12", True),
        ("CUDA_DEVICE_MEMORY_LIMIT_X", False),
        ("NVIDIA_VISIBLE_DEVICES", False),
        ("HF_TOKEN", False),
    ],
)
def test_variables_that_decide(name: str, *, expected: bool) -> None:
    """Only what changes devices or memory travels with the facts."""
    assert expected == decides(name)


words = st.sampled_from(["0", "1", "2", "3", "7", "-1", "+0", "GPU-", "GPU-a", "GPU-b1", "MIG-", "MIG-a1", "MIG-b", f"MIG-{card(0).uuid}/1/0", "", " ", "x"])
hosts = st.sampled_from([FOUR, MIXED, SLICED, [lost(0), *MIXED[1:]], [card(0, A10), lost(1), card(2), mig_slice(3, 1)], [lost(0, "MIG-x")]])


@settings(max_examples=300, deadline=None)
@for_all(
    hosts,
    st.one_of(st.text(max_size=30), st.lists(words, max_size=5).map(",".join)),
    st.one_of(st.none(), st.text(max_size=10), st.lists(words, min_size=1, max_size=3).map(",".join)),
    st.text(max_size=12),
    st.integers(-1, 5),
)
def test_any_environment(gpus: list[Gpu | UnreadableGpu], visible: str, device_ids: str | None, limit: str, ranks: int) -> None:
    """No environment makes the selection fail; what it chooses are different readable cards of this host, enough for every rank."""
    limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit, "CUDA_DEVICE_MEMORY_LIMIT_0": limit}
    world = facts(*gpus, environment={"CUDA_VISIBLE_DEVICES": visible, **limits})
    options: dict[str, Any] = {} if device_ids is None else {"device_ids": device_ids}
    selection = select(world, tensor_parallel_size=ranks, **options)

    if isinstance(selection, Chosen):
        taken = [device.uuid for device in selection.devices]
        assert len(set(taken)) == len(taken) >= selection.world == max(1, ranks)
        assert set(taken) <= {gpu.uuid for gpu in gpus if isinstance(gpu, Gpu)}
        assert selection.interchangeable or len(taken) == selection.world
        assert all(0 <= device.free_bytes <= 79 * GIB for device in selection.devices)
