"""All oracles, in the order in which they are fed."""

from harness.oracles.answers import OtherAnswers
from harness.oracles.base import Oracle
from harness.oracles.block_pool import BlockAccounting
from harness.oracles.connector import ConnectorProtocol
from harness.oracles.contract import Contract
from harness.oracles.counters import Counters
from harness.oracles.drain import Drain
from harness.oracles.encoder_accounting import EncoderAccounting
from harness.oracles.encoder_presence import EncoderPresence
from harness.oracles.exceptions import Exceptions
from harness.oracles.fences import Fences
from harness.oracles.grammar import GrammarMasks
from harness.oracles.kv_content import KvContent
from harness.oracles.kv_events import KvEvents
from harness.oracles.limits import Limits
from harness.oracles.outputs import Outputs
from harness.oracles.preemption import Preemption
from harness.oracles.prefix_cache import PrefixCache
from harness.oracles.progress import Progress
from harness.oracles.queues import Queues
from harness.oracles.starvation import Starvation

ALL: tuple[type[Oracle], ...] = (
    Exceptions,
    KvContent,
    Fences,
    EncoderPresence,
    EncoderAccounting,
    BlockAccounting,
    PrefixCache,
    Progress,
    Outputs,
    OtherAnswers,
    Limits,
    Counters,
    Queues,
    Drain,
    Contract,
    GrammarMasks,
    KvEvents,
    Preemption,
    Starvation,
    ConnectorProtocol,
)

VISIBLE: tuple[type[Oracle], ...] = (Exceptions, Progress, Outputs, OtherAnswers)
"""What a client can see of a real worker: the engine dies, hangs, or answers wrongly."""

__all__ = ["ALL", "VISIBLE", "Oracle"]
