"""Planted bugs: known bugs of vLLM put back, in memory, into a release that is free of them.

A plant is an edit of the syntax tree of a few loaded functions. No source text of vLLM is kept here and no file of it
is touched: the function's own source is parsed, one place in it is changed, and what that compiles to becomes the
function's code until it is undone. An edit says exactly what it expects to find; a release of another shape is
refused with a `TargetError`, and nothing is changed.
"""

from harness.planting.install import current, plant, planted, uproot
from harness.planting.plant import Plant
from harness.planting.plants import PLANTS, find

__all__ = ["PLANTS", "Plant", "current", "find", "plant", "planted", "uproot"]
