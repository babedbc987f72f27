"""What model runners of different releases do differently, as far as a stub must do the same."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Traits:
    """The V1 runner's contract in one release, read off its code by `harness.compat`; the defaults are the newest's."""

    drafter_falls_back: bool = True
    """Whether the drafter's look-ahead may meet an image that is not encoded (from 0.24), or raises on it."""
    drafts_without_room: Literal["zeros", "zeros if async", "none"] = "zeros"
    """Drafts of a step whose longest sequence leaves the drafter no room."""
    placeholders_are_clamped: bool = True
    """Whether a placeholder (-1) that nothing has replaced is embedded as token 0 (from 0.25), or raises."""
    drops_drafts: bool = False
    """Up to 0.13: with asynchronous scheduling rows lose their drafts if the worker has none; and nobody writes the
    drafts of a row that comes back into its line."""
    returning_drafts_are_counted: bool = True
    """Whether, with asynchronous scheduling, drafts that a row comes back with are taken back by the next step as far
    as they were rejected (from 0.14), or are forgotten, so that the scheduler's count stands."""
    counts_are_optimistic: bool = True
    """Whether, with asynchronous scheduling, the host takes all drafts for accepted until the step is over (from 0.19),
    or waits for the count of the step before."""
    resumed_states_are_forgotten: bool = True
    """Whether the place of a request's Mamba state is forgotten when it resumes (from 0.17), or if it was told to be
    preempted only."""
    masks_are_strided: bool = True
    """Whether a grammar bitmask has the same number of rows for every request (from 0.33), or one a draft scheduled."""
    rows_keep_prompt_logprobs: bool = True
    """Whether what is known of a prompt's logprobs stays while the request is not in the batch (from 0.21), or is
    lost."""

    one_embedding_spreads: bool = True
    """Whether a single embedding is written to all placeholders of a step (from 0.20), or raises if they are more."""


NEWEST = Traits()


@dataclass(frozen=True, slots=True)
class TraitsV2:
    """The V2 runner's contract in one release; the defaults are the newest's."""

    drafter_falls_back: bool = True
    """As the V1 runner's; also from 0.24."""
    tables_are_bounded: bool = True
    """Whether a block table that outgrows its row raises (from 0.29), or goes on in the next request's."""
    masks_are_strided: bool = True
    """As the V1 runner's; also from 0.33."""
    drafts_are_bounded: bool = True
    """Whether a step raises if drafts leave a request no token of its own (from 0.29), or samples another one's logits.
    No release looks whether there are more drafts than the drafter makes."""

    one_embedding_spreads: bool = True
    """As the V1 runner's."""


NEWEST_V2 = TraitsV2()
