"""What the device worker cannot run, and why. Pure."""

from collections.abc import Mapping

from harness.groups import groups_of, has_mamba, reads_across
from harness.scenario import Full, Scenario

_STAGES = "the stages of a pipeline are processes that send each other tensors, and the device's side is one process"
_ACROSS = "the device's network has no cross-attention"

UNSUPPORTED: Mapping[str, str] = {"pipeline": _STAGES, "encoder_decoder": _ACROSS}
"""Features (by the names of fuzz.generate and harness.features) that the device's side does not support: the reason."""


def cannot_run(scenario: Scenario) -> str | None:
    """Why the device worker cannot run a scenario, or None. `UNSUPPORTED` speaks of whole features, this of uses."""
    if not any(isinstance(group, Full) for group in groups_of(scenario.engine)):
        return "no layer of the device's network sees the whole prefix, so that it could not tell what follows it"
    if scenario.engine.pipeline_parallel_size > 1:
        return _STAGES
    if reads_across(scenario.engine):
        return _ACROSS
    if has_mamba(scenario.engine) and scenario.engine.speculative is not None:
        return "the device's Mamba layer keeps no states of drafts; what moves those is Triton without a stand-in"
    return None
