"""What the device worker cannot run, and why. Pure."""

from collections.abc import Mapping

UNSUPPORTED: Mapping[str, str] = {}
"""Features (by the names of fuzz.generate and harness.features) that the device's side does not support: the reason."""
