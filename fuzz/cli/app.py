"""The typer application that all commands register with."""

import typer

app = typer.Typer(
    name="schedfuzz",
    help="Finds, shrinks, explains and replays bugs in vLLM's V1 scheduler.\n\n"
    "Exit status: 0 clean, 1 findings, 2 bad input, 3 a fault of schedfuzz.\n\n"
    "Example: schedfuzz run --vllm 0.19.0 --seconds 60",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
