"""The reference language model: every token is a deterministic function of the whole prefix. Pure.

Position `i` of a sequence has a 64-bit key, made of the position, its token and, inside a multimodal item, the
item's identity and the place in it. The fingerprint of a prefix is the sum of its keys, and of what a LoRA
adapter adds. Position `i`'s fingerprint
stands for the key and value that a causal model would keep there: it depends on everything up to and including
token `i`. The next token is drawn from the fingerprint of the last position.

A sum, because the device worker's network computes the same function from keys that it finds in a real KV cache: exact
in integers, in any order of summation, on any device (`harness.worker.device.network`).
"""

import copy
import functools

from msgspec.structs import replace

from harness.scenario import Chunk, Image, Request, Scenario, Text, part_length

VOCABULARY = 1 << 15
PLACEHOLDER = 0
"""Token id at every position of a multimodal item, as vLLM's processors insert it."""
EOS = 1
STOP = 2
FIRST = 3
"""First ordinary token id."""
_MASK = (1 << 64) - 1
SEED = 0x9E3779B97F4A7C15


def mix(state: int, value: int) -> int:
    """One step of the fingerprint (the finaliser of splitmix64 over both words); 64 bits in, 64 bits out."""
    z = (state * 0xBF58476D1CE4E5B9 + value + SEED) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def key(position: int, token: int, item: int) -> int:
    """What one position adds to the fingerprint; `item` is 0 outside multimodal items (see `item_value`)."""
    return mix(mix(mix(SEED, position), token), item)


def item_value(identity: int, at: int) -> int:
    """What a multimodal item's embedding says at its `at`-th position; below 2**24, so that a float32 holds it."""
    return 1 + identity * 4096 + at


def adapter_value(lora: int) -> int:
    """What a LoRA adapter adds to the key of the first position, and again to every fingerprint; 0 for none.

    Twice, so that the answers depend on the adapter under which the context was computed, and on the step's own.
    """
    return mix(mix(SEED, lora), 11) if lora else 0


def drawn(fingerprint: int) -> int:
    """The ordinary token that follows a prefix."""
    return FIRST + (mix(fingerprint, 0) >> 33) % (VOCABULARY - FIRST)


@functools.cache
def stream_token(stream: int, index: int) -> int:
    """Token `index` of a shared stream."""
    return FIRST + mix(mix(SEED, stream), index) % (VOCABULARY - FIRST)


def wrong_token(token: int) -> int:
    """A token that is certainly not `token`, nor one with a special meaning."""
    return FIRST + (token - FIRST + 1) % (VOCABULARY - FIRST) if token >= FIRST else FIRST


class Reference:
    """What one request's tokens and KV contents are when nothing goes wrong, at every position, lazily extended.

    Positions count from the first prompt token; outputs follow the prompt. The model does not stop by itself: stopping
    is the scheduler's part, and `expected_output` says where it must.
    """

    def __init__(self, scenario: Scenario, index: int) -> None:
        request: Request = scenario.requests[index]
        self.request = request
        self.max_model_len = scenario.engine.max_model_len
        self.pools = scenario.engine.runner_type == "pooling"
        self.salt = mix(SEED, request.cache_salt) if request.cache_salt else 0
        """Belongs to the identity of KV contents, not to their values: no token depends on it."""
        self.items: list[tuple[int, int, int]] = []
        """Multimodal items as (offset, length, identity), in prompt order."""
        self.tokens: list[int] = []
        self.contents: list[int] = []
        """Fingerprint at each position."""
        self._state = 2 * adapter_value(request.lora) & _MASK
        self._forget_drafts()
        self._expected: tuple[list[int], str] | None = None
        """What `expected_output` has found."""
        for part in request.prompt:
            if isinstance(part, Image):
                length = part_length(part, scenario.images)
                self.items.append((len(self.tokens), length, part.identity))
                for at in range(length):
                    self._extend(PLACEHOLDER, item_value(part.identity, at))
            else:
                self._extend_text(part)
        self.prompt_length = len(self.tokens)

    def _forget_drafts(self) -> None:
        self._drafted, self._drafting_steps = 1, 0  # the first output is the prefill's, never a draft
        self._errors: set[int] = set()
        """Output positions, up to `_drafted`, at which the drafter errs."""

    def continued(self, chunk: Chunk) -> "Reference":
        """The truth of a session's turn after this one: all of its tokens but the last output, then the chunk."""
        turn = copy.copy(self)
        outputs, _ = self.expected_output()
        kept = self.prompt_length + len(outputs) - 1
        turn.tokens, turn.contents = self.tokens[:kept], self.contents[:kept]
        turn._state = self.contents[kept - 1]
        turn._forget_drafts()
        turn._expected = None
        said = {name: getattr(chunk, name) for name in Chunk.__struct_fields__}
        min_tokens = min(self.request.min_tokens, chunk.max_tokens)
        turn.request = replace(self.request, min_tokens=min_tokens, **said)
        for part in chunk.prompt:
            turn._extend_text(part)
        turn.prompt_length = len(turn.tokens)
        return turn

    def _extend_text(self, part: Text) -> None:
        for at in range(part.start, part.start + part.length):
            self._extend(stream_token(part.stream, at), 0)

    def _extend(self, token: int, item: int) -> None:
        self._state = (self._state + key(len(self.tokens), token, item)) & _MASK
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
                token = drawn(self._state)
            self._extend(token, 0)
        return self.tokens[position]

    def content(self, position: int) -> int:
        """The true fingerprint at a position."""
        self.token(position)
        return self.contents[position]

    @property
    def pooled(self) -> int:
        """A pooling model's answer: the fingerprint of the whole prompt."""
        return self.content(self.prompt_length - 1)

    def errs(self, position: int, num_speculative_tokens: int) -> bool:
        """Whether a drafter that has the true prefix proposes a wrong token for an output position.

        `acceptance` is laid along the outputs: a drafting step with `a` right drafts takes `a` positions, and one
        more for the token that the target adds; the position after the right drafts is where the drafter errs,
        unless all were right. A property of the position, not of the schedule: a request that is preempted, or runs
        beside others, meets the same answers; undisturbed, each drafting step has exactly the accepted count that
        the script says.
        """
        script = self.request.acceptance
        if not script:
            return False
        while self._drafted <= position - self.prompt_length:
            right = min(script[self._drafting_steps % len(script)], num_speculative_tokens)
            self._drafting_steps += 1
            if right < num_speculative_tokens:
                self._errors.add(self._drafted + right)
            self._drafted += right + 1
        return position - self.prompt_length in self._errors

    def drafts(self, position: int, num_speculative_tokens: int) -> list[int]:
        """What the drafter proposes for `position` and the positions after it, given the true tokens before."""
        drafts: list[int] = []
        state = self.content(position - 1)
        for at in range(position, position + num_speculative_tokens):
            if state != self.content(at - 1):
                token = drawn(state)  # after an error of its own it knows only its rule
            elif self.errs(at, num_speculative_tokens):
                token = wrong_token(self.token(at))
            else:
                token = self.token(at)
            drafts.append(token)
            # The V2 runner's drafter goes on at the last position; the V1 runner's stops before.
            state = (state + key(min(at, self.max_model_len), token, 0)) & _MASK
        return drafts

    def matched(self, position: int, num_speculative_tokens: int) -> list[int]:
        """`drafts` as an n-gram search makes them: nothing, or what is right and one wrong guess after it."""
        drafts = self.drafts(position, num_speculative_tokens)
        for right, draft in enumerate(drafts):
            if draft != self.token(position + right):
                return drafts[: right + 1] if right else []
        return drafts

    def expected_output(self) -> tuple[list[int], str]:
        """The tokens that the client must receive, and the finish reason in vLLM's words: `stop`, `length`, or `error`
        for a request whose grammar cannot be compiled.
        """
        if self._expected is None:
            self._expected = self._expect()
        return self._expected

    def _expect(self) -> tuple[list[int], str]:
        request = self.request
        if request.grammar is not None and request.grammar.fails:
            return [], "error"
        if self.pools:
            return [], "stop"
        outputs: list[int] = []
        while True:
            token = self.token(self.prompt_length + len(outputs))
            outputs.append(token)
            if (token == EOS and not request.ignore_eos) or token == STOP:
                return outputs, "stop"
            if len(outputs) >= request.max_tokens or self.prompt_length + len(outputs) >= self.max_model_len:
                return outputs, "length"
