"""Kv read mismatch position that the request computed.

vLLM 0.24.0: step 4: r0 attends to position 7 in block 4 of group 1, which holds other content.

The promise that it breaks: every position that a query attends to holds the key and value of
exactly that prefix.

Fingerprint: O2-kv-read-mismatch-295046e4
Oracle: O2 (kv-read-mismatch)
Found on: vLLM 0.24.0
"""

from harness.testing import assert_absent

FINGERPRINT = "O2-kv-read-mismatch-295046e4"
SCENARIO = """\
{
 "format": 1,
 "engine": {
  "max_model_len": 11,
  "block_size": 4,
  "async_scheduling": true,
  "sliding_window": 2,
  "speculative": {}
 },
 "requests": [
  {"prompt": [["text", 0, 0, 4]], "max_tokens": 6, "acceptance": [0, 1]},
  {"prompt": [["text", 0, 0, 4]]}
 ],
 "timeline": [{"event": "arrive", "request": 0}, {"event": "arrive", "request": 1, "delay": 4}]
}
"""


def test_kv_read_mismatch_position_that_the_request_computed() -> None:
    assert_absent(SCENARIO, FINGERPRINT)
