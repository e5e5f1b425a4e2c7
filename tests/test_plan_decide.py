"""The decision on one command line: table tests. Sizes in MiB."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import change, checkpoint, codes, cpu_facts, facts, gate, gpu, judge, launched, process, refused

from vllm_guard.facts import Claim, UnreadableGpu
from vllm_guard.plan.decision import Unmeasured
from vllm_guard.plan.policy import Amount, Policy
from vllm_guard.units import GIB, MIB, ExitCode

BUSY = gpu(free_mib=30_112, processes=[process(48_213, 50_000)])


def test_an_idle_card_changes_nothing() -> None:
    """An idle card starts exactly as plain vLLM would."""
    launch = launched(judge(facts()))

    assert () == launch.assessment.changes
    assert gate(launch) == "pass"
    assert launch.assessment.settings["gpu_memory_utilization"].source == "vllm_default"


def test_an_idle_small_card_changes_nothing_though_the_margin_would_not_fit() -> None:
    """On a card that nobody uses the margin is nothing and the overhead counts at its low figure."""
    small = gpu(total_mib=6144, free_mib=6100, reserved_mib=40)

    assert change(judge(facts(small))) is None


def test_a_busy_card_gets_the_largest_fraction_that_leaves_overhead_and_margin() -> None:
    """(30112 - 640 - 1024) / 81559, rounded down to four decimals."""
    assert change(judge(facts(BUSY))) == "0.3488"


def test_the_launch_says_from_what_to_what_and_why() -> None:
    """Lowering is not silent."""
    made = launched(judge(facts(BUSY))).assessment.changes[0]

    assert ("--gpu-memory-utilization", "0.92", "0.3488") == (made.flag, made.before, made.after)
    assert made.because == "GPU 0: 30112 of 81559 MiB free, margin 1024 MiB"


def test_the_share_of_the_kv_pool_is_said_where_the_weights_are_known() -> None:
    """(28448 - 15000) / (75034 - 15000) is 22 %."""
    made = launched(judge(facts(BUSY), model=checkpoint(15_000))).assessment.changes[0]

    assert made.because.endswith("KV pool about 22 % of normal")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("0.9.2", "0.3425", id="0.9.2 leaves graphs outside its budget"),
        pytest.param("0.18.1", "0.3425", id="0.18.1 leaves graphs outside"),
        pytest.param("0.21.0", "0.3488", id="0.21.0 counts graphs with its default runner"),
        pytest.param("0.28.0", "0.3425", id="0.28.0 leaves graphs outside with the V2 runner"),
        pytest.param("0.32.0", "0.3488", id="0.32.0 counts graphs"),
        pytest.param("0.19.0", "0.3425", id="between 0.18.1 and 0.21.0 the worse of both"),
        pytest.param("0.99.0", "0.3488", id="beyond the last the last one stands in"),
        pytest.param(None, "0.3488", id="an unknown release counts as beyond the last"),
    ],
)
def test_graphs_outside_the_budget_lower_the_fraction(version: str | None, expected: str) -> None:
    """What vLLM adds beyond its budget is kept free where the release does that."""
    assert change(judge(facts(BUSY, version=version))) == expected


def test_the_v2_runner_can_be_forced_off() -> None:
    """VLLM_USE_V2_MODEL_RUNNER=0 puts graphs into the budget of 0.28.0."""
    world = facts(BUSY, version="0.28.0", environment={"VLLM_USE_V2_MODEL_RUNNER": "0"})

    assert change(judge(world)) == "0.3488"


def test_eager_mode_has_no_graphs_outside() -> None:
    """--enforce-eager captures nothing."""
    assert change(judge(facts(BUSY, version="0.18.1"), "--enforce-eager")) == "0.3488"


def test_a_release_beyond_the_last_is_said_once() -> None:
    """Assumed is said, and nothing else changes."""
    assert codes(judge(facts(version="0.99.0"))) == ["release_assumed"]


def test_a_release_without_a_gate_is_only_observed() -> None:
    """Before 0.9.2 nothing is decided."""
    launch = launched(judge(facts(gpu(free_mib=10), version="0.8.5.post1")))

    assert () == launch.assessment.changes
    assert codes(launch) == ["release_observed"]


def test_the_worst_card_decides_and_is_named() -> None:
    """One fraction for all ranks."""
    launch = launched(judge(facts(gpu(0, free_mib=70_000), gpu(1, free_mib=60_000)), "--tensor-parallel-size", "2"))

    assert [False, True] == [plan.limiting for plan in launch.assessment.devices]
    assert launch.assessment.changes[0].because.startswith("GPU 1: 60000 of 81559 MiB free")
    assert change(launch) == "0.7074"  # (60000 - 1280 - 1024) / 81559: NCCL comes before the gate


def test_claims_of_other_guards_count_as_taken() -> None:
    """A promise that is not used memory yet is not free."""
    card = gpu()
    claim = Claim(card.uuid, promised_bytes=40 * GIB, used_bytes=10 * GIB, pid=1)
    launch = launched(judge(facts(card, claims=[claim])))

    assert launch.assessment.devices[0].device.claimed_bytes == 30 * GIB
    assert change(launch) == "0.5948"  # (80900 - 30720 - 640 - 1024) / 81559


class TestGivenByTheUser:
    """What the user gave stays, unless it certainly fails."""

    def test_a_value_that_works_stays(self) -> None:
        """Never merely for margin."""
        assert change(judge(facts(BUSY), "--gpu-memory-utilization", "0.36")) is None

    def test_an_uncertain_value_stays_with_a_warning(self) -> None:
        """Between the low and the likely overhead nobody knows."""
        decision = judge(facts(BUSY), "--gpu-memory-utilization", "0.365")

        assert (None, "uncertain", ["gate_uncertain"]) == (change(decision), gate(decision), codes(decision))

    def test_a_value_that_certainly_fails_is_lowered(self) -> None:
        """It needs more than free minus the low overhead."""
        decision = judge(facts(BUSY), "--gpu-memory-utilization", "0.9")

        assert change(decision) == "0.3488"
        assert launched(decision).assessment.changes[0].before == "0.9"

    def test_the_drivers_share_is_not_counted_against_it(self) -> None:
        """A given value is judged against what CUDA calls the total."""
        card = gpu(total_mib=1000 * 40, reserved_mib=1000, free_mib=39_000 - 400 - 390)

        assert gate(judge(facts(card), "--gpu-memory-utilization", "0.98")) != "fail"

    def test_keep_refuses_what_certainly_fails(self) -> None:
        """on_explicit=keep changes nothing."""
        refusal = refused(judge(facts(BUSY), "--gpu-memory-utilization", "0.9", policy=Policy(on_explicit="keep")))

        assert ("gpu_busy", ExitCode.REFUSED_FOR_NOW) == (refusal.reason, refusal.exit_code)
        assert refusal.assessment.fixes[0] == "--gpu-memory-utilization 0.3488 or less"

    def test_without_the_lever_it_is_refused(self) -> None:
        """Empty levers change nothing."""
        assert refused(judge(facts(BUSY), "--gpu-memory-utilization", "0.9", policy=Policy(levers=frozenset()))).reason == "gpu_busy"

    @pytest.mark.parametrize("value", ["0", "1.5", "nan", "inf"])
    def test_a_value_that_vllm_rejects_is_left_to_it(self, value: str) -> None:
        """Untouched, with a warning, gates unknown."""
        decision = judge(facts(BUSY), "--gpu-memory-utilization", value)

        assert (None, "unknown", ["value_invalid"]) == (change(decision), gate(decision), codes(decision))

    def test_a_command_line_that_vllm_rejects_is_left_to_it(self) -> None:
        """The guard does not answer for vLLM."""
        decision = judge(facts(gpu(free_mib=10)), "--max-num-seqs", "2k")

        assert (None, ["vllm_rejects"]) == (change(decision), codes(decision))

    def test_the_last_of_several_counts(self) -> None:
        """As vLLM reads it."""
        assert change(judge(facts(BUSY), "--gpu-memory-utilization", "0.9", "--gpu-mem", "0.3")) is None

    def test_max_utilization_binds_it_only_once_it_must_be_lowered(self) -> None:
        """Ceilings are for what the guard chooses."""
        assert change(judge(facts(), "--gpu-memory-utilization", "0.9", policy=Policy(max_utilization=0.5))) is None
        assert change(judge(facts(BUSY), "--gpu-memory-utilization", "0.9", policy=Policy(max_utilization=0.33339))) == "0.3333"


class TestThresholds:
    """What the operator will not start with."""

    def test_a_card_without_room_is_refused_with_numbers_that_add_up(self) -> None:
        """512 of KV cache, 640 of overhead and a margin of a quarter of 1200."""
        refusal = refused(judge(facts(gpu(free_mib=1200))))

        assert (1200 * MIB, (512 + 640 + 300) * MIB) == (refusal.have_bytes, refusal.need_bytes)
        assert [("smallest KV cache", 512), ("start overhead", 640), ("margin", 300)] == [(need.name, need.size_bytes // MIB) for need in refusal.needs]

    def test_weights_that_leave_no_cache_are_refused(self) -> None:
        """The likely share of the weight files counts for the automatic threshold."""
        refusal = refused(judge(facts(BUSY), model=checkpoint(29_200)))

        assert refusal.reason == "below_min_kv_cache"

    def test_float32_weights_count_half(self) -> None:
        """They are cast while they load."""
        assert change(judge(facts(BUSY), model=checkpoint(29_200, torch_dtype="float32"))) == "0.3488"

    def test_min_kv_cache_is_a_threshold_on_what_is_certain(self) -> None:
        """Half of the weight files and the operator's smallest pool."""
        policy = Policy(min_kv_cache_bytes=20 * GIB)

        assert refused(judge(facts(BUSY), policy=policy, model=checkpoint(20_000))).reason == "below_min_kv_cache"
        assert change(judge(facts(BUSY), policy=policy, model=checkpoint(15_000))) == "0.3488"

    def test_without_thresholds_one_mebibyte_of_pool_is_enough(self) -> None:
        """min_kv_cache=0 turns the threshold off."""
        policy = Policy(min_kv_cache_bytes=0, margin=Amount(0))

        assert change(judge(facts(gpu(free_mib=660)), policy=policy)) == "0.0002"
        assert refused(judge(facts(gpu(free_mib=640)), policy=policy)).reason == "gpu_busy"

    def test_min_free_refuses_whatever_was_asked(self) -> None:
        """A card with less than this is not for us."""
        policy = Policy(min_free=Amount(fraction=0.5))

        assert refused(judge(facts(BUSY), "--gpu-memory-utilization", "0.1", policy=policy)).reason == "below_min_free"

    @pytest.mark.parametrize("argv", [("--gpu-memory-utilization", "0.3"), ("--gpu-memory-utilization", "0.9"), ()])
    def test_min_utilization_refuses_whatever_was_asked(self, argv: tuple[str, ...]) -> None:
        """The operator does not want so small a server."""
        assert refused(judge(facts(BUSY), *argv, policy=Policy(min_utilization=0.5))).reason == "below_min_utilization"

    def test_a_margin_that_the_card_cannot_give_refuses(self) -> None:
        """The operator's own margin is not given away where nothing says that the model needs it."""
        assert refused(judge(facts(gpu(free_mib=80_000)), policy=Policy(margin=Amount(79_900 * MIB)))).reason == "gpu_busy"

    def test_fixed_levers_on_a_busy_card_are_the_cards_fault(self) -> None:
        """No threshold plays a part."""
        assert refused(judge(facts(BUSY), policy=Policy(levers=frozenset()))).reason == "gpu_busy"
        assert refused(judge(facts(BUSY), "--kv-cache-memory-bytes", "40G")).reason == "gpu_busy"
        assert refused(judge(facts(BUSY), "--gpu-memory-utilization", "0.9", policy=Policy(min_kv_cache_bytes=60 * GIB))).reason == "below_min_kv_cache"

    def test_budget_and_ceiling_bind_the_default(self) -> None:
        """A quarter of an idle card."""
        assert change(judge(facts(), policy=Policy(max_utilization=0.25))) == "0.25"
        assert change(judge(facts(), policy=Policy(budget_bytes=20 * GIB))) == "0.2511"

    def test_a_default_that_may_fit_is_not_refused_for_the_margin(self) -> None:
        """0.92 of 6000 MiB fits beside the low overhead; what fits beside the likely one is less than the least that the guard would like."""
        decision = judge(facts(gpu(total_mib=6000, free_mib=5930, reserved_mib=0)), model=checkpoint(4900))

        assert ("0.8816", ["no_margin"]) == (change(decision), codes(decision)[:1])

    def test_the_margin_yields_to_a_model_that_needs_it_and_that_is_said(self) -> None:
        """28300 of weights and 512 of cache fit beside the overhead, not beside the margin too."""
        decision = judge(facts(BUSY), model=checkpoint(28_300))

        assert ("0.3557", ["margin_given_up"]) == (change(decision), codes(decision)[:1])
        assert launched(decision).assessment.devices[0].margin_bytes < 1024 * MIB

    def test_memory_outside_the_budget_never_makes_a_refusal(self) -> None:
        """CUDA graphs of 0.18.1 give way where they alone would leave nothing."""
        decision = judge(facts(gpu(free_mib=1847, name="4090", total_mib=24_564, reserved_mib=449), version="0.18.1"))

        assert ("0.0213", ["outside_budget_dropped"]) == (change(decision), codes(decision))


class TestWeightsThatCannotFit:
    """Gate 2 as far as weight files prove it."""

    def test_half_of_the_files_above_the_budget_fails(self) -> None:
        """A given value that works at gate 1 still leaves no KV cache."""
        refusal = refused(judge(facts(), "--gpu-memory-utilization", "0.2", model=checkpoint(40_000)))

        assert ("model_too_large", ExitCode.REFUSED_FOR_NOW) == (refusal.reason, refusal.exit_code)
        assert gate(refusal, "cache_blocks") == "fail"

    def test_a_model_above_the_empty_card_is_named_so(self) -> None:
        """Nobody else's fault."""
        assert refused(judge(facts(BUSY), model=checkpoint(200_000))).reason == "model_too_large"

    @pytest.mark.parametrize(
        "argv",
        [
            pytest.param(("--cpu-offload-gb", "8"), id="offloaded"),
            pytest.param(("--quantization", "fp8"), id="quantized while loading"),
            pytest.param(("--load-format", "dummy"), id="dummy weights"),
            pytest.param(("--runner", "pooling"), id="pooling"),
            pytest.param(("--hf-overrides", '{"num_hidden_layers": 2}'), id="overridden config"),
        ],
    )
    def test_nothing_is_proved_where_other_bytes_are_loaded(self, argv: tuple[str, ...]) -> None:
        """Unknown never refuses."""
        decision = judge(facts(), *argv, model=checkpoint(400_000))

        assert (None, "unknown") == (change(decision), gate(decision, "cache_blocks"))

    def test_ranks_share_the_weights(self) -> None:
        """Over tp * pp * dp."""
        cards = [gpu(index) for index in range(4)]

        assert change(judge(facts(*cards), "-tp", "2", "-pp", "2", model=checkpoint(200_000))) is None

    @pytest.mark.parametrize("version", ["0.99.0", None])
    def test_a_release_that_is_not_known_is_never_refused_for_its_weights(self, version: str | None) -> None:
        """A certain failure becomes uncertain."""
        decision = judge(facts(version=version), "--gpu-memory-utilization", "0.3", model=checkpoint(81_000))

        assert (None, "uncertain") == (change(decision), gate(decision, "cache_blocks"))

    def test_a_card_that_may_be_meant_and_is_too_small_proves_nothing(self) -> None:
        """The other one holds the model."""
        cards = (gpu(0, total_mib=8192, free_mib=8100, reserved_mib=80, name="3070"), gpu(1, total_mib=24_564, free_mib=24_100, reserved_mib=449, name="4090"))

        for argv in ((), ("--gpu-memory-utilization", "0.9"), ("--kv-cache-memory-bytes", "10G")):
            launched(judge(facts(*cards), *argv, model=checkpoint(16_000)))

    @pytest.mark.parametrize(
        ("argv", "environment"),
        [
            pytest.param(("--offload-group-size", "8", "--offload-num-in-group", "7"), {}, id="prefetch offloading"),
            pytest.param(("-pp", "2"), {"VLLM_PP_LAYER_PARTITION": "28,4"}, id="an uneven pipeline"),
        ],
    )
    def test_nothing_is_proved_where_ranks_hold_uneven_shares(self, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        """The average says nothing about one rank."""
        launched(judge(facts(gpu(0), gpu(1), environment=environment), *argv, model=checkpoint(400_000)))

    def test_a_quantized_checkpoint_with_its_method_named_counts(self) -> None:
        """--quantization beside a quantized checkpoint quantizes nothing while loading."""
        model = checkpoint(400_000, quantization_config={"quant_method": "awq"})

        assert refused(judge(facts(), "--quantization", "awq", model=model)).reason == "model_too_large"


class TestExplicitPool:
    """--kv-cache-memory-bytes and --num-gpu-blocks-override."""

    def test_the_gate_still_runs_so_a_passing_fraction_is_emitted(self) -> None:
        """The default 0.92 must fit although the pool is given."""
        assert change(judge(facts(BUSY), "--kv-cache-memory-bytes", "1G")) == "0.3488"
        assert change(judge(facts(BUSY), "--num-gpu-blocks-override", "100")) == "0.3488"

    def test_the_smallest_pool_is_no_threshold_then(self) -> None:
        """The fraction does not size the pool."""
        assert change(judge(facts(gpu(free_mib=1200)), "--kv-cache-memory-bytes", "16M")) is not None

    def test_a_pool_above_what_is_free_fails(self) -> None:
        """It would die of an out-of-memory error."""
        refusal = refused(judge(facts(BUSY), "--kv-cache-memory-bytes", "40G"))

        assert gate(refusal, "cache_blocks") == "fail"

    def test_on_the_cpu_build_it_skips_gate_1(self) -> None:
        """CPUWorker looks at the gate only without a KV size."""
        decision = judge(cpu_facts(total_mib=8192, free_mib=6144), "--kv-cache-memory-bytes", "64M")

        assert (None, "pass") == (change(decision), gate(decision))

    def test_the_cpu_builds_variable_counts_too(self) -> None:
        """VLLM_CPU_KVCACHE_SPACE is in GiB."""
        world = cpu_facts(total_mib=8192, free_mib=6144, environment={"VLLM_CPU_KVCACHE_SPACE": "100"})

        assert gate(refused(judge(world)), "cache_blocks") == "fail"


class TestCpuBuild:
    """Host memory as a device."""

    def test_a_default_that_the_node_cannot_give_is_lowered(self) -> None:
        """(6144 - 1536 - 1536) / 8192: the margin of 2 GiB is cut to a quarter of what is free."""
        assert change(judge(cpu_facts(total_mib=8192, free_mib=6144))) == "0.375"

    def test_a_default_that_fits_stays(self) -> None:
        """Nothing to do on a machine with much free memory."""
        assert change(judge(cpu_facts(total_mib=262_144, free_mib=262_000), "--gpu-memory-utilization", "0.5")) is None

    def test_a_working_explicit_value_is_not_lowered(self) -> None:
        """The real build was seen to start with about 1.15 GiB less than was there before."""
        assert change(judge(cpu_facts(total_mib=12_380, free_mib=12_206), "--gpu-memory-utilization", "0.881")) is None


class TestDevices:
    """Missing and strange devices."""

    def test_a_missing_device_is_no_verdict(self) -> None:
        """Two ranks on one card."""
        decision = judge(facts(), "-tp", "2")

        assert isinstance(decision, Unmeasured)
        assert decision.reason == "device_missing"

    def test_a_lost_card_that_is_not_chosen_is_a_warning(self) -> None:
        """It does not stop a launch."""
        lost = UnreadableGpu(1, "GPU-x", "NVIDIA H100 80GB HBM3", "GPU 1: lost", "reset it")

        assert codes(judge(facts(gpu(), lost))) == ["gpu_unreadable"]

    def test_cards_that_cannot_be_told_apart_count_at_their_worst(self) -> None:
        """Integers on different cards without PCI_BUS_ID."""
        cards = (gpu(0, free_mib=40_000), gpu(1, free_mib=20_000, total_mib=24_564, reserved_mib=400, name="NVIDIA GeForce RTX 4090"))
        decision = judge(facts(*cards))

        assert change(decision) == "0.47"  # (40000 - 640 - 1024) / 81559; the other card would allow 0.76
        assert "gpu_order_unknown" in codes(decision)

    def test_a_worst_card_without_room_does_not_refuse_what_another_one_can_start(self) -> None:
        """Only when no assignment works it is certain."""
        cards = (gpu(0), gpu(1, free_mib=100, total_mib=24_564, reserved_mib=400, name="NVIDIA GeForce RTX 4090"))

        decision = judge(facts(*cards))

        assert (None, True) == (change(decision), "order_unknown" in codes(decision))

    def test_wsl_gets_a_larger_margin(self) -> None:
        """Other Windows programs are not seen."""
        plain = launched(judge(facts(BUSY))).assessment.devices[0].margin_bytes
        wsl = launched(judge(facts(BUSY, wsl=True))).assessment.devices[0].margin_bytes

        assert wsl - plain == 81_559 * MIB * 3 // 100

    def test_a_unified_board_keeps_memory_for_its_system(self) -> None:
        """A tenth of the board, 4 GiB at least."""
        board = gpu(name="NVIDIA GB10", total_mib=122_000, free_mib=100_000, reserved_mib=None, unified=True)

        assert launched(judge(facts(board))).assessment.devices[0].margin_bytes == 12_200 * MIB

    def test_an_old_driver_never_proves_a_failure_by_its_reserved_share(self) -> None:
        """Without memory v2 the driver's share is unknown: up to 4 % may be missing from CUDA's total."""
        card = gpu(total_mib=15_360, free_mib=14_900, reserved_mib=None)
        world = facts(replace(card, processes=()))

        assert gate(judge(world, "--gpu-memory-utilization", "0.98")) == "uncertain"
