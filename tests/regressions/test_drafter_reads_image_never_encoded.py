"""Drafter reads image never encoded.

vLLM 0.20.2: step 0: the drafter gathers image-0 for r0, which was never encoded; the model runner
raises.

The promise that it breaks: every encoder output that the target or the drafter gathers is in the
worker's encoder cache.

Fingerprint: O4-drafter-read-miss-aea77521
Oracle: O4 (drafter-read-miss)
Found on: vLLM 0.20.2
"""

from harness.testing import assert_absent

FINGERPRINT = "O4-drafter-read-miss-aea77521"
SCENARIO = """\
{
 "format": 1,
 "engine": {"max_num_batched_tokens": 4, "speculative": {}, "encoder": {}},
 "images": [2],
 "requests": [{"prompt": [["text", 0, 0, 4], ["image", 0]]}],
 "timeline": [{"event": "arrive", "request": 0}]
}
"""


def test_drafter_reads_image_never_encoded() -> None:
    assert_absent(SCENARIO, FINGERPRINT)
