"""The network's weights for a scenario: which prefixes it answers against its rule. Pure.

A network is a function of the prefix, so two requests with the same prompt get the same answers. Where a scenario
scripts them differently, `unified` makes the first one's script hold for all.
"""

from collections.abc import Mapping

import msgspec

from harness.model import EOS, STOP, Reference
from harness.scenario import Scenario, Speculative


def unified(scenario: Scenario) -> Scenario:
    """The scenario with one script of answers for each prompt; itself if that is so already."""
    first: dict[int, int] = {}
    requests = list(scenario.requests)
    for index, request in enumerate(requests):
        reference = Reference(scenario, index)
        leader = requests[first.setdefault(reference.contents[-1], index)]
        requests[index] = msgspec.structs.replace(
            request,
            eos_at=leader.eos_at,
            stop_at=leader.stop_at,
            acceptance=leader.acceptance,
            min_tokens=min(leader.min_tokens, request.max_tokens),
        )
    if tuple(requests) == scenario.requests:
        return scenario
    return msgspec.structs.replace(scenario, requests=tuple(requests))


def answers(references: Mapping[str, Reference]) -> dict[int, int]:
    """Fingerprint of a prefix to the token that the target says after it, where its rule would say another."""
    found: dict[int, int] = {}
    for reference in references.values():
        request = reference.request
        for at, token in ((request.stop_at, STOP), (request.eos_at, EOS)):
            if at is not None:
                found[reference.content(reference.prompt_length + at - 1)] = token
    return found


def mistakes(references: Mapping[str, Reference], speculative: Speculative | None) -> frozenset[int]:
    """Fingerprints of the prefixes after which the drafter errs."""
    if speculative is None:
        return frozenset()
    return frozenset(
        reference.content(position - 1)
        for reference in references.values()
        for position in range(
            reference.prompt_length + 1, reference.max_model_len + speculative.num_speculative_tokens + 1
        )
        if reference.errs(position, speculative.num_speculative_tokens)
    )
