"""Mutators of what happens when: events, their order and delays (see `mutators`)."""

from random import Random

from msgspec.structs import replace

from fuzz.edits import (
    MAX_DELAY,
    any_event,
    change_script,
    insert_event,
    tweak,
    without_events,
    without_requests,
)
from fuzz.timelines import DELAYS, new_pause, new_reset
from harness.scenario import (
    MAX_EVENTS,
    Abort,
    Arrive,
    Event,
    Pause,
    Reset,
    Resume,
    Scenario,
)


def insert_abort(rng: Random, scenario: Scenario) -> Scenario:
    aborted = {event.request for event in scenario.timeline if isinstance(event, Abort)}
    arrived = [e.request for e in scenario.timeline if isinstance(e, Arrive) and e.request not in aborted]
    if not arrived:
        return scenario
    return insert_event(rng, scenario, Abort(rng.choice(arrived), rng.choice(DELAYS), rng.random() < 0.5))


def remove_event(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.timeline) < 2:
        return scenario
    at = rng.randrange(len(scenario.timeline))
    event = scenario.timeline[at]
    if isinstance(event, Arrive):
        return without_requests(scenario, (event.request,))
    return without_events(scenario, (at,))


def move_event(rng: Random, scenario: Scenario) -> Scenario:
    """To another place; its delay stays where it was, with its successor."""
    if len(scenario.timeline) < 2:
        return scenario
    at = rng.randrange(len(scenario.timeline))
    rest = list(without_events(scenario, (at,)).timeline)
    rest.insert(rng.randint(0, len(rest)), replace(scenario.timeline[at], delay=0))
    return replace(scenario, timeline=tuple(rest))


def change_delay(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        return replace(event, delay=rng.choice((tweak(rng, event.delay, 0, MAX_DELAY), rng.choice(DELAYS))))

    return any_event(rng, scenario, edit)


def flip_in_step(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        return replace(event, in_step=not event.in_step) if isinstance(event, Abort) else event

    return any_event(rng, scenario, edit)


def insert_reset(rng: Random, scenario: Scenario) -> Scenario:
    return insert_event(rng, scenario, new_reset(rng, "reset"))


def insert_encoder_reset(rng: Random, scenario: Scenario) -> Scenario:
    """Right after a pause, if there is one, where running requests do not hinder it."""
    pauses = [at for at, event in enumerate(scenario.timeline) if isinstance(event, Pause)]
    reset = new_reset(rng, "encoder_reset")
    if not pauses or rng.random() < 0.3 or len(scenario.timeline) >= MAX_EVENTS:
        return insert_event(rng, scenario, reset)
    at = rng.choice(pauses) + 1
    return replace(scenario, timeline=(*scenario.timeline[:at], reset, *scenario.timeline[at:]))


def insert_pause(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.timeline) >= MAX_EVENTS - 1:
        return scenario
    timeline = list(scenario.timeline)
    first = rng.randint(0, len(timeline))
    timeline.insert(first, new_pause(rng))
    timeline.insert(rng.randint(first + 1, len(timeline)), Resume(rng.choice(DELAYS)))
    return replace(scenario, timeline=tuple(timeline))


def change_pause(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        if isinstance(event, Pause):
            return replace(new_pause(rng), delay=event.delay)
        if isinstance(event, Reset):
            return replace(event, reset_running_requests=not event.reset_running_requests)
        return event

    return any_event(rng, scenario, edit)


def change_step_delays(rng: Random, scenario: Scenario) -> Scenario:
    return replace(scenario, step_delays=change_script(rng, scenario.step_delays, rng.choice((1, 3, 8))))
