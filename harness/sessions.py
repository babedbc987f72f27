"""Streaming sessions as their clients see them: turns, what has been sent, when a session is over. Pure.

A turn is what one input (the request's prompt, or a chunk) is answered with; vLLM ends each with a finish reason. A
session whose inputs are all answered is parked until its client sends another, or closes it; then it is over without
one more output.
"""

from dataclasses import dataclass

from harness.model import Reference
from harness.scenario import Request, Scenario, prompt_length, request_id

Turns = tuple[Reference, ...]


def turns(scenario: Scenario, index: int) -> Turns:
    """The truth of a request's turns, all of which it may never come to; one for a request that is no session."""
    found = [Reference(scenario, index)]
    for chunk in scenario.requests[index].chunks or ():
        found.append(found[-1].continued(chunk))
    return tuple(found)


def all_turns(scenario: Scenario) -> dict[str, Reference]:
    """Every turn of every request, under names of their own."""
    return {
        f"{request_id(index)}, turn {number}": turn
        for index in range(len(scenario.requests))
        for number, turn in enumerate(turns(scenario, index))
    }


def longest(request: Request, images: tuple[int, ...]) -> int:
    """Tokens of a request or session from its first to its last output, if nothing stops it before."""
    chunks = request.chunks or ()
    texts = sum(part.length for chunk in chunks for part in chunk.prompt)
    outputs = request.max_tokens + sum(chunk.max_tokens - 1 for chunk in chunks)
    return prompt_length(request, images) + texts + outputs


@dataclass(slots=True)
class Session:
    """How far a session is. `sent` counts the inputs that the engine has been given, `done` those it has answered."""

    turns: Turns
    sent: int = 1
    done: int = 0
    closed: bool = False

    @property
    def parked(self) -> bool:
        """Whether the session waits for its client."""
        return self.done == self.sent

    @property
    def turn(self) -> int:
        """The turn that the engine is at, or has answered last."""
        return min(self.done, self.sent - 1)
