"""The command line. Decides what the user asked for, calls the part that does it, and prints the answer.

Exit statuses of all commands: 0 clean, 1 findings, 2 bad input, 3 a fault of our own. vLLM and everything heavy is
imported inside commands, so that `--help` answers at once.
"""

# In the order of `--help`.
from fuzz.cli import campaigns, ledger, scenarios, devices, targets  # noqa: F401, I001
from fuzz.cli.app import app
from fuzz.console import answer, leave


def main() -> None:
    """Entry point of the console script. Never shows a traceback for what the user gave."""
    leave(answer(lambda: app(standalone_mode=False)))
