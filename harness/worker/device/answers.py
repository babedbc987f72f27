"""The network's weights for a scenario: which prefixes it answers against its rule. Pure.

A network is a function of the prefix, so two requests with the same prompt get the same answers. Where a scenario
scripts them differently, `unified` makes the first one's script hold for all.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from harness.model import EOS, STOP, Reference
from harness.scenario import Chunk, Request, Scenario, Speculative
from harness.sessions import turns

_SCRIPT = ("eos_at", "stop_at", "acceptance")
_Scripted = TypeVar("_Scripted", Request, Chunk)


def unified(scenario: Scenario) -> Scenario:
    """The scenario with one script of answers for each prompt; itself if that is so already."""
    first: dict[int, tuple[object, ...]] = {}

    def follow(script: _Scripted, prompt: int) -> _Scripted:
        leader = first.setdefault(prompt, tuple(getattr(script, name) for name in _SCRIPT))
        return msgspec.structs.replace(script, **dict(zip(_SCRIPT, leader, strict=True)))

    least: dict[int, int] = {}
    requests = list(scenario.requests)
    for index, request in enumerate(requests):
        chunks = request.chunks or ()
        prompt = Reference(scenario, index).contents[-1]
        min_tokens = min(least.setdefault(prompt, request.min_tokens), request.max_tokens)
        # Turns with the same prompt after these come from the same outputs, and so from the same min_tokens.
        request = msgspec.structs.replace(follow(request, prompt), min_tokens=min_tokens)
        for number, chunk in enumerate(chunks):
            request = msgspec.structs.replace(request, chunks=chunks[: number + 1])
            requests[index] = request
            scripted = msgspec.structs.replace(scenario, requests=tuple(requests))
            prompt = turns(scripted, index)[-1].contents[-1]
            chunks = (*chunks[:number], follow(chunk, prompt), *chunks[number + 1 :])
        requests[index] = msgspec.structs.replace(request, chunks=None if request.chunks is None else chunks)
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
