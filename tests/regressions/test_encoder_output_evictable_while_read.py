"""Encoder output evictable while read.

vLLM 0.19.0: the pass that scheduled step 0 left image-0 evictable, though the step reads it for r0.

The promise that it breaks: what a step reads or writes stays owned from the pass that schedules it.

Fingerprint: O3-encoder-evictable-while-read-1412f49d
Oracle: O3 (encoder-evictable-while-read)
Found on: vLLM 0.19.0
Known as: 38907
"""

from harness.testing import assert_absent

FINGERPRINT = "O3-encoder-evictable-while-read-1412f49d"
SCENARIO = """\
{
 "format": 1,
 "engine": {"encoder": {}},
 "images": [1],
 "requests": [{"prompt": [["image", 0]]}],
 "timeline": [{"event": "arrive", "request": 0}]
}
"""


def test_encoder_output_evictable_while_read() -> None:
    assert_absent(SCENARIO, FINGERPRINT)
