"""The runner's `token_ids_cpu`, line by line: needed where a request is fed what the last user of its line has left.

Up to 0.13 a request that comes back into the batch is scheduled with drafts which nobody writes into its line
(`GPUModelRunner._update_states` adds it by `InputBatch.add_request`, after those of the others were written). Which
line that is, and what it holds, follows from `InputBatch`: the smallest free line first, then `condense`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Line:
    number: int
    known: int
    """`num_tokens_no_spec`: where drafts and samples are written."""
    extent: int
    """`num_tokens`, drafts included: how much moves with the line."""


@dataclass(slots=True)
class TokenRows:
    """Lines of tokens; a fresh one holds zeros."""

    lines: dict[str, _Line] = field(default_factory=dict)
    tokens: list[list[int]] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def remove(self, request: str) -> None:
        """The request leaves the batch; its tokens stay where they are."""
        line = self.lines.pop(request, None)
        if line is not None:
            self.free.append(line.number)

    def add(self, request: str, tokens: list[int]) -> None:
        """A request comes into the batch with what is known of it."""
        number = min(self.free, default=len(self.lines))
        if self.free:
            self.free.remove(number)
        self.lines[request] = _Line(number, len(tokens), len(tokens))
        self._write(number, 0, tokens)

    def condense(self) -> None:
        """The last lines move into those that are free."""
        last = len(self.lines) + len(self.free) - 1
        by_number = {line.number: line for line in self.lines.values()}
        for empty in sorted(self.free):
            while last not in by_number and last > empty:
                last -= 1
            if empty >= last:
                break
            line = by_number.pop(last)
            self._write(empty, 0, self.tokens[last][: line.extent])
            line.number = empty
            by_number[empty] = line
        self.free.clear()

    def draft(self, request: str, drafts: Iterable[int]) -> None:
        """Drafts are written behind what is known, and do not count as known."""
        line = self.lines[request]
        written = list(drafts)
        self._write(line.number, line.known, written)
        line.extent += len(written)

    def append(self, request: str, tokens: list[int]) -> None:
        """What a step has sampled."""
        line = self.lines[request]
        self._write(line.number, line.known, tokens)
        line.known = line.extent = line.known + len(tokens)

    def cut(self, request: str, known: int) -> None:
        """Outputs are taken back."""
        line = self.lines[request]
        line.known = line.extent = known

    def read(self, request: str, start: int, count: int) -> list[int]:
        """`count` tokens of a request's line from `start` on, whoever wrote them."""
        tokens = self.tokens[self.lines[request].number][start : start + count]
        return tokens + [0] * (count - len(tokens))

    def in_order(self) -> list[str]:
        """The batch's requests, by line."""
        return sorted(self.lines, key=lambda request: self.lines[request].number)

    def _write(self, number: int, start: int, tokens: list[int]) -> None:
        while len(self.tokens) <= number:
            self.tokens.append([])
        line = self.tokens[number]
        line.extend([0] * (start + len(tokens) - len(line)))
        line[start : start + len(tokens)] = tokens
