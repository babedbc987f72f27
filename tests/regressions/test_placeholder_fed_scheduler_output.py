"""Placeholder fed scheduler output.

vLLM 0.24.0: step 3: r0 is fed a placeholder (-1), which no embedding has.

The promise that it breaks: every SchedulerOutput says what the model runner needs, once, and
nothing that is not so.

Fingerprint: O13-placeholder-fed-d34d05f4
Oracle: O13 (placeholder-fed)
Found on: vLLM 0.24.0
Known as: 40768
"""

from harness.testing import assert_absent

FINGERPRINT = "O13-placeholder-fed-d34d05f4"
SCENARIO = """\
{
 "format": 1,
 "engine": {"max_model_len": 5, "async_scheduling": true, "speculative": {"num_speculative_tokens": 2}},
 "requests": [{"prompt": [["text", 0, 0, 1]], "max_tokens": 3, "acceptance": [0]}],
 "timeline": [{"event": "arrive", "request": 0}]
}
"""


def test_placeholder_fed_scheduler_output() -> None:
    assert_absent(SCENARIO, FINGERPRINT)
