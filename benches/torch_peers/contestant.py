"""What takes part in a row: a name, and something to call."""

from dataclasses import dataclass, field
from typing import Any, Callable

OURS = "ours"  # one kernel
SEPARATE = "ours, separate kernels"
PEER = "peer"  # computes the same by other means
ALONE = "alone"  # a part of it: compute, or communication


@dataclass
class Contestant:
    """``run(i)`` enqueues the work on set ``i`` of the inputs and returns the result, or None where it has none to judge."""

    name: str
    kind: str
    run: Callable[[int], Any]
    poison: list = field(default_factory=list)  # results to fill with NaN before each launch
    after: Callable[[], None] | None = None  # raises if a launch that has ended went wrong
    note: str = ""
    settings: list | None = None  # of mk: names to text, for each kernel
    predicted_ms: float | None = None  # of mk, by its cost model


@dataclass
class Missing:
    """A contestant that is not there, and why."""

    name: str
    reason: str
