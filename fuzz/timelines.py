"""Timelines: who arrives when, who is aborted, and what an operator does. The random source comes first."""

from random import Random

from fuzz.swarm import Weights, chance
from harness.scenario import (
    Abort,
    Arrive,
    Event,
    Pause,
    Reset,
    Resume,
    concerns,
)

DELAYS = (*(0, 0, 0, 0, 1, 1, 2, 3, 4) * 8, 8, 16)
"""Mostly few iterations, so that requests meet; one event in 37 waits until everything before it has drained."""


def new_timeline(rng: Random, weights: Weights, num_requests: int) -> tuple[Event, ...]:
    """Everyone arrives in order; some are aborted, at any place after their arrival."""
    events: list[Event] = [Arrive(i, rng.choice(DELAYS)) for i in range(num_requests)]
    for i in range(num_requests):
        if chance(rng, weights, "abort") and rng.random() < 0.5:
            arrival = next(at for at, event in enumerate(events) if concerns(event) == i)
            abort = Abort(i, rng.choice(DELAYS), in_step=rng.random() < 0.5)
            events.insert(rng.randint(arrival + 1, len(events)), abort)
    for name, at_most in (("reset", 3), ("encoder_reset", 2)):
        for _ in range(rng.randint(0, at_most) if chance(rng, weights, name) else 0):
            events.insert(rng.randint(1, len(events)), new_reset(rng, name))
    for _ in range(rng.randint(1, 2) if chance(rng, weights, "pause") else 0):
        first = rng.randint(0, len(events))
        events.insert(first, new_pause(rng))
        events.insert(rng.randint(first + 1, min(first + 4, len(events))), Resume(rng.choice(DELAYS)))
    return tuple(events)


def new_reset(rng: Random, feature: str) -> Reset:
    """A reset of the cache that a feature names."""
    if feature == "encoder_reset":
        return Reset(rng.choice(DELAYS), cache="encoder")
    return Reset(rng.choice(DELAYS), reset_running_requests=rng.random() < 0.7)


def new_pause(rng: Random) -> Pause:
    """A pause; it needs its resumption."""
    return Pause(rng.choice(DELAYS), rng.choice(("abort", "wait", "keep", "keep")), rng.random() < 0.6)
