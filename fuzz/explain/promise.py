"""What an oracle promises, in the words of its docstring."""

import inspect


def promise(family: str, speaker: str = "") -> str:
    """The first paragraph of the docstring of an oracle: of the class `speaker`, or of a family's ("O1", ...) first.

    Empty if it says nothing, or is not known.
    """
    try:
        from harness import oracles
    except ImportError:
        return ""
    for cls in oracles.ALL:
        if cls.family == family and speaker in ("", cls.__name__):
            paragraph = (inspect.getdoc(cls) or "").partition("\n\n")[0]
            return " ".join(paragraph.split()).removeprefix(f"{family}: ")
    return ""
