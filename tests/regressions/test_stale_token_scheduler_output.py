"""Stale token scheduler output.

vLLM 0.18.1: step 2: r0 is fed token 200 at position 1.

The promise that it breaks: every SchedulerOutput says what the model runner needs, once, and
nothing that is not so.

Fingerprint: O13-stale-token-6441eb63
Oracle: O13 (stale-token)
Found on: vLLM 0.18.1
"""

from harness.testing import assert_absent

FINGERPRINT = "O13-stale-token-6441eb63"
SCENARIO = """\
{
 "format": 1,
 "engine": {"async_scheduling": true, "speculative": {}},
 "requests": [{"prompt": [["text", 0, 0, 1]], "max_tokens": 3, "acceptance": [0]}],
 "timeline": [{"event": "arrive", "request": 0}],
 "step_delays": [0]
}
"""


def test_stale_token_scheduler_output() -> None:
    assert_absent(SCENARIO, FINGERPRINT)
