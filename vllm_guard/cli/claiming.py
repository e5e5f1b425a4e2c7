"""Claims on the way to exec: the last reading, the last decision and the promise, all under the locks of the cards or nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from vllm_guard.claims.book import read_claims, write_claim
from vllm_guard.claims.folder import Folders, opened, places
from vllm_guard.claims.lock import locked
from vllm_guard.claims.reckon import spots
from vllm_guard.claims.record import Promise, is_uuid
from vllm_guard.devices import Chosen
from vllm_guard.facts import Facts, Warn
from vllm_guard.host.visible import select_devices
from vllm_guard.plan.decision import Decision, Launch
from vllm_guard.plan.promise import promised_bytes
from vllm_guard.settings import Settings, policy
from vllm_guard.subject import Subject
from vllm_guard.wait import outlook


def with_claims(facts: Facts, settings: Settings, environ: Mapping[str, str]) -> Facts:
    """The facts with what other guards promised. Takes no lock, writes nothing, and what cannot be read is no claim."""
    if settings.claims == "off" or not spots(facts):
        return facts
    with opened(places(settings.claims_dir, environ, os.geteuid()), create=False) as folders:
        return _with_claims_of(folders, facts)


def decide_and_claim(
    settings: Settings, subject: Subject, decision: Decision, read: Callable[[], Facts], may_wait: Callable[[], bool]
) -> tuple[Decision, tuple[Warn, ...]] | None:
    """The final decision and, when it is a launch that was judged, its promise, which lasts as long as this process and what it becomes.

    `decision` is the one so far, `read` a reading without claims. None, and nothing promised, where somebody took what `decision` counted on and what was
    asked may fit later, while `may_wait`. Whatever is wrong with the claims is one warning, never another verdict.
    """

    def decide(facts: Facts) -> Decision:
        return subject.decide(facts, policy(settings))

    keys = _keys(decision)
    if settings.claims == "off" or not keys or not all(map(is_uuid, keys)):
        return decision, ()
    with opened(places(settings.claims_dir, subject.environ, os.geteuid()), create=True) as folders:
        if folders.home is None:
            return decision, _off(folders.trouble)
        with locked(folders.home, keys) as unlocked:
            facts = _with_claims_of(folders, read())
            decision = decide(facts)
            if may_wait() and outlook(decision, facts, decide).state == "may_come":
                return None
            unwritten = _claim(folders, subject, decision, facts)
            if isinstance(decision, Launch) and _newcomers(folders, facts, keys):
                facts = _with_claims_of(folders, read())
                decision = _smaller(decide(facts), decision)
                unwritten = _claim(folders, subject, decision, facts)
    return decision, _off(unlocked or unwritten)


def _keys(decision: Decision) -> list[str]:
    """The cards or nodes that a launch promises something of."""
    plans = decision.assessment.devices if isinstance(decision, Launch) else ()
    return [plan.device.claim_key for plan in plans if plan.device.claim_key is not None]


def _newcomers(folders: Folders, before: Facts, keys: Collection[str]) -> bool:
    """Whether somebody claimed one of these since that reading, which only happens where a lock was not to be had. Both read after they wrote, so one
    of them at least sees the other.
    """
    known = {(claim.pid, claim.uuid) for claim in before.claims}
    return any(claim.uuid in keys and (claim.pid, claim.uuid) not in known for claim in _with_claims_of(folders, before).claims)


def _smaller(again: Decision, first: Decision) -> Decision:
    """The second decision, unless it takes more of a card or node than the promise that others have seen."""
    if not isinstance(again, Launch) or not isinstance(first, Launch):
        return again
    promised = {plan.device.claim_key: promised_bytes(first, plan) for plan in first.assessment.devices}
    more = any(promised_bytes(again, plan) > promised.get(plan.device.claim_key, 0) for plan in again.assessment.devices)
    return first if more else again


def _with_claims_of(folders: Folders, facts: Facts) -> Facts:
    with suppress(OSError):
        return replace(facts, claims=read_claims(folders, facts))
    return facts


def _claim(folders: Folders, subject: Subject, decision: Decision, facts: Facts) -> str | None:
    """Writes the promise of a launch. None, or why that failed."""
    selection = select_devices(facts, subject.command, subject.release)
    if folders.home is None or not isinstance(decision, Launch) or not isinstance(selection, Chosen):
        return None
    free = {spot.uuid: spot.free_bytes for spot in spots(facts)}
    plans = ((plan.device.claim_key, plan) for plan in decision.assessment.devices)
    promises = [Promise(key, promised_bytes(decision, plan), free[key]) for key, plan in plans if key in free]
    return write_claim(folders.home, selection.world, promises) if promises else None


def _off(trouble: str | None) -> tuple[Warn, ...]:
    if trouble is None:
        return ()
    return (Warn("claims_off", f"no claim among guards that start at once ({trouble}): they may count the same free memory"),)
