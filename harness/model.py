"""The reference language model: every token is a deterministic function of the whole prefix. Pure.

The prefix of a sequence is folded into a 64-bit fingerprint, token by token. Position `i`'s fingerprint stands for the
key and value that a causal model would keep there: it depends on everything up to and including token `i`, and, inside
a multimodal item, on the item's identity. The next token is drawn from the fingerprint of the last position.
"""

import functools

from harness.scenario import Image, Request, Scenario, Text

VOCABULARY = 1 << 15
PLACEHOLDER = 0
"""Token id at every position of a multimodal item, as vLLM's processors insert it."""
EOS = 1
STOP = 2
_FIRST = 3
"""First ordinary token id."""
_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15


def mix(state: int, value: int) -> int:
    """One step of the fingerprint (the finaliser of splitmix64 over both words); 64 bits in, 64 bits out."""
    z = (state * 0xBF58476D1CE4E5B9 + value + _SEED) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@functools.cache
def stream_token(stream: int, index: int) -> int:
    """Token `index` of a shared stream."""
    return _FIRST + mix(mix(_SEED, stream), index) % (VOCABULARY - _FIRST)


def wrong_token(token: int) -> int:
    """A token that is certainly not `token`, nor one with a special meaning."""
    return _FIRST + (token - _FIRST + 1) % (VOCABULARY - _FIRST) if token >= _FIRST else _FIRST


class Reference:
    """What one request's tokens and KV contents are when nothing goes wrong, at every position, lazily extended.

    Positions count from the first prompt token; outputs follow the prompt. The model does not stop by itself: stopping
    is the scheduler's part, and `expected_output` says where it must.
    """

    def __init__(self, scenario: Scenario, index: int) -> None:
        request: Request = scenario.requests[index]
        self.request = request
        self.max_model_len = scenario.engine.max_model_len
        self.items: list[tuple[int, int, int]] = []
        """Multimodal items as (offset, length, identity), in prompt order."""
        self.tokens: list[int] = []
        self.contents: list[int] = []
        """Fingerprint at each position."""
        self._state = _SEED
        for part in request.prompt:
            if isinstance(part, Image):
                length = scenario.images[part.identity]
                self.items.append((len(self.tokens), length, part.identity))
                for at in range(length):
                    self._extend(PLACEHOLDER, 1 + part.identity * 4096 + at)
            else:
                self._extend_text(part)
        self.prompt_length = len(self.tokens)

    def _extend_text(self, part: Text) -> None:
        for at in range(part.start, part.start + part.length):
            self._extend(stream_token(part.stream, at), 0)

    def _extend(self, token: int, item: int) -> None:
        self._state = mix(mix(self._state, token), item)
        self.tokens.append(token)
        self.contents.append(self._state)

    def token(self, position: int) -> int:
        """The true token at a position, prompt or output."""
        while position >= len(self.tokens):
            output = len(self.tokens) - self.prompt_length
            if output == self.request.eos_at:
                token = EOS
            elif output == self.request.stop_at:
                token = STOP
            else:
                token = _FIRST + mix(self._state, 0) % (VOCABULARY - _FIRST)
            self._extend(token, 0)
        return self.tokens[position]

    def content(self, position: int) -> int:
        """The true fingerprint at a position."""
        self.token(position)
        return self.contents[position]

    def expected_output(self) -> tuple[list[int], str]:
        """The tokens that the client must receive, and the finish reason in vLLM's words (`stop` or `length`)."""
        request = self.request
        outputs: list[int] = []
        while True:
            token = self.token(self.prompt_length + len(outputs))
            outputs.append(token)
            if (token == EOS and not request.ignore_eos) or token == STOP:
                return outputs, "stop"
            if len(outputs) >= request.max_tokens or self.prompt_length + len(outputs) >= self.max_model_len:
                return outputs, "length"
