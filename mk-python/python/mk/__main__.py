"""``python -m mk``: the `mk` command."""

import sys

from ._command import main

sys.exit(main())
