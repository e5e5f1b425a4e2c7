"""The key-value cache of one launch, as this release plans, checks and prints it: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vllm_guard.model.kv_groups import Group, Groups, plan_groups
from vllm_guard.model.kv_layers import KvLayers
from vllm_guard.model.kv_setting import KvSetting
from vllm_guard.model.unknown import Unknown
from vllm_guard.release import Release

_FIRST_KNOWN: Final = Release(0, 9, 2)


@dataclass(frozen=True, slots=True)
class KvCache:
    """What the pool of one rank is cut into. Bytes are per GPU, of the pipeline stage that keeps most.

    `bytes_per_token` is pool bytes over the tokens that this release prints, rounded up, and None where the two are not proportional.
    """

    setting: KvSetting
    plan: Groups

    @property
    def bytes_per_block(self) -> int:
        """What one block of the pool costs: the largest group decides, the others leave padding."""
        return max((max(group.stage_bytes) for group in self.plan.groups), default=0)

    @property
    def block_size(self) -> int:
        """Tokens of a block as printed: the smallest of the groups'."""
        return min((group.page.block_size for group in self.plan.groups), default=0)

    @property
    def bytes_per_token(self) -> int | None:
        """Per printed token. From 0.21 the tokens of several groups follow the length, so there is no such figure."""
        count = len(self.plan.groups)
        if count == 0:
            return 0
        if count > 1 and self.setting.since(0, 21):
            return None
        if any(group.page.kind in ("state", "cross", "sliding", "chunked") for group in self.plan.groups) and count == 1 and self.setting.since(0, 21):
            return None
        return -(-self.bytes_per_block * count // self.block_size)

    @property
    def keeps_states(self) -> bool:
        """Whether recurrent layers keep a state of every request."""
        return any(group.page.kind == "state" for group in self.plan.groups)

    @property
    def null_block_bytes(self) -> int:
        """The block that the pool always holds back and that the check leaves out from 0.30."""
        return self.bytes_per_block if self.setting.since(0, 30) else 0

    def blocks_of(self, max_model_len: int) -> int:
        """Blocks that one sequence of this length takes, over all groups."""
        return sum(group.page.blocks(max_model_len, self.setting) for group in self.plan.groups)

    @property
    def blocks_of_one_sequence(self) -> int:
        """Blocks of one sequence of `max_model_len`."""
        return self.blocks_of(self.setting.max_model_len)

    @property
    def one_sequence_bytes(self) -> int:
        """What one sequence of `max_model_len` takes of the pool."""
        return self.bytes_per_block * self.blocks_of_one_sequence

    @property
    def tested_bytes(self) -> int:
        """What the check of this release asks for, without the null block: see `tested_bytes_of`."""
        return self.tested_bytes_of(self.setting.max_model_len)

    def tested_bytes_of(self, max_model_len: int) -> int:
        """What this release compares with the pool (v1/core/kv_cache_utils.py, inspected at 0.12.0, 0.15.1, 0.18.1 and 0.21.0).

        Up to 0.12 every layer's own need without padding; from 0.13 to 0.20 only the first group, and before 0.18 of all pipeline stages at once; from
        0.21 all groups.
        """
        if not self.setting.since(0, 13):
            return max((sum(asked.page.blocks(max_model_len, self.setting) * size for asked, size in stage) for stage in self._stages()), default=0)
        if self.setting.since(0, 21) or not self.plan.groups:
            return self.bytes_per_block * self.blocks_of(max_model_len)
        first = self.plan.groups[0].page.blocks(max_model_len, self.setting)
        return first * (self.bytes_per_block if self.setting.since(0, 18) else max(sum(group.stage_bytes) for group in self.plan.groups))

    def _stages(self) -> list[list[tuple[Group, int]]]:
        stages = self.setting.pipeline_parallel_size
        return [[(asked, asked.stage_bytes[stage]) for asked in self.plan.asked] for stage in range(stages)] if self.plan.asked else []

    def fits(self, pool_bytes: int, max_model_len: int) -> bool:
        """Whether this release would start with this pool and length."""
        return self.tested_bytes_of(max_model_len) <= pool_bytes - self.null_block_bytes

    def largest_max_model_len(self, pool_bytes: int) -> int:
        """The largest length up to `max_model_len` that this pool passes the check with; 0 when none does. It is the estimate that vLLM prints."""
        below, above = 0, self.setting.max_model_len + 1
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if self.fits(pool_bytes, middle) else (below, middle)
        return below

    def longest_of(self, pool_bytes: int, sequences: int, up_to: int) -> int:
        """The largest length up to `up_to` that this many sequences may have at once in this pool, one of which passes the check; 0 when none does."""
        below, above = 0, up_to + 1
        blocks = max(0, self.blocks_in(pool_bytes) - 1)  # one is always held back
        while above - below > 1:
            middle = (below + above) // 2
            holds = self.fits(pool_bytes, middle) and sequences * self.blocks_of(middle) <= blocks
            below, above = (middle, above) if holds else (below, middle)
        return below

    def blocks_in(self, pool_bytes: int) -> int:
        """Blocks that a pool of these bytes is cut into, the null block among them."""
        return max(0, pool_bytes) // self.bytes_per_block if self.bytes_per_block else 0

    def printed_tokens(self, pool_bytes: int) -> int:
        """`GPU KV cache size` as this release prints it (v1/core/kv_cache_utils.py)."""
        blocks = self.blocks_in(pool_bytes)
        if not self.plan.groups:
            return 0
        if self.setting.since(0, 21):
            return int(blocks / self.blocks_of_one_sequence * self.setting.max_model_len)
        return blocks // len(self.plan.groups) * self.block_size


def kv_cache(held: KvLayers, setting: KvSetting) -> KvCache | Unknown:
    """The cache of these layers under this setting, or why it is unknown. What a draft model keeps is in it only where its layers are in `held`."""
    if not setting.since(_FIRST_KNOWN.major, _FIRST_KNOWN.minor, _FIRST_KNOWN.patch):
        return Unknown(f"releases before {_FIRST_KNOWN} plan their cache in another way")
    if setting.context_parallel:
        return Unknown("context parallelism shards the cache in a way that is not modelled")
    plan = plan_groups(held, setting)
    return plan if isinstance(plan, Unknown) else KvCache(setting, plan)
