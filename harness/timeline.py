"""What may happen in which order: the part of `repair` that is about a scenario's timeline. Pure."""

from msgspec.structs import replace

from harness.scenario import (
    MAX_EVENTS,
    Abort,
    Arrive,
    Close,
    Continue,
    Event,
    Pause,
    Request,
    RequestEvent,
    Reset,
    Resume,
)


def repair_timeline(timeline: tuple[Event, ...], requests: tuple[Request, ...]) -> tuple[Event, ...]:
    """What `_Legal` lets through; delays are handed on; who has paused resumes, and who has opened a session closes
    it.
    """
    legal = _Legal(requests)
    kept: list[Event] = []
    carried = 0
    for event in timeline if requests else ():
        event = _nearest(event, len(requests))
        if not legal.accepts(event, MAX_EVENTS - len(kept)):
            carried = min(64, carried + event.delay)
            continue
        kept.append(replace(event, delay=min(64, event.delay + carried)))
        carried = 0
    if legal.paused:
        kept.append(Resume())
    return (*kept, *(Close(request) for request in sorted(legal.open)))


def _nearest(event: Event, num_requests: int) -> Event:
    if isinstance(event, RequestEvent):
        return replace(event, request=event.request % num_requests)
    if isinstance(event, Reset) and event.cache == "encoder":
        return replace(event, reset_running_requests=False)
    return event


class _Legal:
    """Each request arrives at most once, and is aborted at most once, after it arrived. Pauses do not nest. A session's
    client sends each chunk once, and nothing after its end or its abort. Pauses and sessions leave room in the timeline
    for their ends. An id is used again after an abort: AsyncLLM refuses an id that it knows, and forgets it then; it
    sends both in this order.
    """

    def __init__(self, requests: tuple[Request, ...]) -> None:
        self.paused = False
        self.open: dict[int, int] = {}
        """Sessions, and how many chunks each has left to send."""
        self._requests = requests
        self._arrived: set[int] = set()
        self._aborted: set[int] = set()
        self._holders: dict[int, int] = {}
        """Who has had an id last, by the request whose own it is."""

    def accepts(self, event: Event, room: int) -> bool:
        """Whether the event is legal here; what it changes is remembered then."""
        if not self._possible(event) or room - 1 < self.paused + len(self.open) + self._adds(event):
            return False
        if isinstance(event, Resume | Pause):
            self.paused = isinstance(event, Pause)
        elif isinstance(event, Arrive):
            self._arrived.add(event.request)
            self._holders[self._owner(event.request)] = event.request
            chunks = self._requests[event.request].chunks
            if chunks is not None:
                self.open[event.request] = len(chunks)
        elif isinstance(event, Abort):
            self._aborted.add(event.request)
            if not event.in_step:
                self._holders.pop(self._owner(event.request), None)
            self.open.pop(event.request, None)
        elif isinstance(event, Continue):
            self.open[event.request] -= 1
        elif isinstance(event, Close):
            del self.open[event.request]
        return True

    def _possible(self, event: Event) -> bool:
        match event:
            case Resume():
                return self.paused
            case Pause():
                return not self.paused
            case Arrive():
                return event.request not in self._arrived and self._owner(event.request) not in self._holders
            case Abort():
                return event.request in self._arrived and event.request not in self._aborted
            case Continue():
                return self.open.get(event.request, 0) > 0
            case Close():
                return event.request in self.open
        return True

    def _owner(self, request: int) -> int:
        first = self._requests[request].same_id_as
        return request if first is None else first

    def _adds(self, event: Event) -> int:
        """Events that this one makes necessary, less those that it makes unnecessary."""
        if isinstance(event, Arrive):
            return self._requests[event.request].chunks is not None
        if isinstance(event, Resume):
            return -1
        if isinstance(event, Abort | Close):
            return -(event.request in self.open)
        return isinstance(event, Pause)
