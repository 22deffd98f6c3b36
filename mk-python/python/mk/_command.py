"""The `mk` command: that of `cargo install --path mk-cli`, in this process."""

from __future__ import annotations

import signal
import sys

from ._mk import _command


def main(words=None):
    """Runs the command with ``words``, by default those of this process, and returns its exit status."""
    # It ends at Ctrl-C as any program does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _command(list(sys.argv[1:] if words is None else words))
