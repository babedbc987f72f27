"""All plants, by name: the id of the ledger record whose bug each brings back, or `mend-` and what it mends."""

from harness.planting import blocks, connectors, encoder, flow, mends
from harness.planting.plant import Plant
from harness.releases import TargetError

PLANTS: dict[str, Plant] = {
    plant.name: plant for family in (encoder, flow, blocks, connectors, mends) for plant in family.PLANTS
}


def find(name: str) -> Plant:
    """The plant of that name. TargetError names those there are."""
    if name not in PLANTS:
        raise TargetError(f"no planted bug is called {name!r}; choose one of: {' '.join(PLANTS)}")
    return PLANTS[name]
