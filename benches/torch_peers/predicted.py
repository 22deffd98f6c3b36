"""Predictions of mk's cost model beside what was measured. Needs neither torch nor a GPU."""

import sys

# A prediction that is farther off is a fault of the cost model, by which settings are chosen.
MISSED = 0.3


def missed(measured):
    """A line for each ``(what, ms, predicted ms)`` that was predicted wrongly. Without a prediction there is nothing to miss."""
    return [
        f"PREDICTION: {what} takes {ms:.4f} ms, and {predicted:.4f} were predicted"
        for what, ms, predicted in measured
        if predicted is not None and abs(predicted / ms - 1) > MISSED
    ]


def of(plans):
    """Milliseconds that are predicted for all kernels of these plans, one after the other; None where one has no prediction."""
    each = [plan.predicted_ms for plan in plans]
    return None if None in each or not each else sum(each)


def status(rows, wrong):
    """None, or why a run fails, which ends with that when its rows are written. A row has ``mk_ms`` and ``predicted_ms`` where both are known."""
    found = missed((row.get("shape") or row["row"], row["mk_ms"], row["predicted_ms"]) for row in rows if "predicted_ms" in row)
    for line in found:
        print(line, file=sys.stderr, flush=True)
    faults = [f"{wrong} results are wrong"] * bool(wrong) + [f"{len(found)} predictions are off by 30 %"] * bool(found)
    return "; ".join(faults) or None
