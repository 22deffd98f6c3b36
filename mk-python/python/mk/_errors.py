"""What mk raises. Tracebacks name the package, not this file."""

from __future__ import annotations

__name__ = "mk"  # what a class takes for its module


class Error(Exception):
    """Any failure of mk. The other classes derive from it."""


class PipelineError(Error, ValueError):
    """The text is no pipeline. The message shows every mistake with its place and a way out.

    ``diagnostics`` has them as tuples: line, column (both from 1), message, help.
    """

    diagnostics: list[tuple[int, int, str, str]] = []


class ArgumentError(Error, ValueError):
    """A tensor, a shape or an option that does not fit. Nothing was launched."""


class UnsupportedError(Error):
    """The pipeline is sound, and this version has no kernel for it. The message says what works instead."""


class CompileError(Error):
    """The kernel was not compiled: NVRTC is missing, or refuses it."""


class DeviceError(Error):
    """No GPU that can run it: no driver, no peer access, out of memory, another architecture."""


class RendezvousError(Error):
    """The ranks did not find each other, or one did not take part in a collective call."""


class FaultError(Error):
    """A kernel gave up: a wait did not end within its limit. The function is unusable; compile a new one on every rank.

    The message names rank, role, edge and counters. ``rank`` wrote the record, ``peer`` is the rank it waited for,
    ``edge`` the plan's edge, ``role`` the role; each is None where it is not known.
    """

    rank: int | None = None
    peer: int | None = None
    edge: int | None = None
    role: str | None = None
