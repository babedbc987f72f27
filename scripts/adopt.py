"""Writes harness/relied.json: what we rely on, as the newest supported release has it. A step of adopting one."""

import msgspec

from harness import drift, target


def main() -> None:
    """The newest supported release is fetched if it must be."""
    newest = target.resolve(target.SUPPORTED[-1], print)
    assert newest.path is not None
    taken = msgspec.json.encode(drift.take(newest.path / "vllm", newest.version))
    drift.SNAPSHOT.write_bytes(msgspec.json.format(taken, indent=1) + b"\n")


if __name__ == "__main__":
    main()
