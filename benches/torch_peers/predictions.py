"""What the cost model says of the published rows on more GPUs than were at hand, so that a later measurement has something to contradict. Needs mk,
and neither torch nor a GPU; takes minutes:

    python3 benches/torch_peers/predictions.py     # writes docs/peers/predicted.json; then tables.py
"""

import datetime
import json
import pathlib

import report
import rows as table

from mk import _mk

FILE = pathlib.Path(__file__).parents[2] / "docs/peers/predicted.json"
GPU, RANKS = "h200", (4, 8)


def predict(row, ranks):
    """Milliseconds with the settings that a function would choose, and the settings."""
    kernel = row.kernel(ranks)
    us, settings, *_ = _mk._predict(kernel.pipeline, ranks=ranks, shapes=kernel.shapes, dims={}, gpu=GPU)
    return us / 1e3, settings


def main():
    found = []
    for ranks in RANKS:
        for row in table.select(world=ranks):
            ms, settings = predict(row, ranks)
            found.append(report.rounded({"key": row.key, "ranks": ranks, "ms": ms, "settings": settings}))
            print(f"{ranks} {row.key} {report.digits(ms)} ms", flush=True)
    result = {"format": 1, "gpu": GPU, "date": datetime.date.today().isoformat(), "rows": found}
    FILE.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
