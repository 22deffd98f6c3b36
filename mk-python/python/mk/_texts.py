"""Texts of pipelines made of others."""

from __future__ import annotations

import re

from . import _mk
from ._errors import PipelineError

_PLACEMENT = r"(?: @ \w+(?:\([^)]*\))?)"


def turned(program, i):
    """The text of a described pipeline that takes parameter ``i``, a matrix, as its transpose; None if it is none, or not products alone read it."""
    value = program["values"][i]
    readers = [v for v in program["values"] if i in v["inputs"]]
    if len(value["dims"]) != 2 or any(v["op"] != "gemm" for v in readers) or any(i == r for _, r in program["results"]):
        return None
    name, (rows, columns) = re.escape(value["name"]), value["dims"]
    # Axes as the text names them: not where there is one that has no name.
    named = program["axes"] != ["world"]
    words = {axis: [str(1 - dim)] if kind == "shard" else [] for axis, (kind, dim) in value["placements"].items()}
    said = [(kind, words[axis] + [axis] * named) for axis, (kind, _) in value["placements"].items()]
    place = " ".join(f"@ {kind}({', '.join(list)})" if list else f"@ {kind}" for kind, list in said)
    head, brace, body = program["text"].partition("{")
    head = re.sub(rf"\b{name}: (\w+)\[[^\]]*\]{_PLACEMENT}*", rf"{value['name']}: \1[{columns}, {rows}] {place}", head, count=1)
    body = re.sub(rf"(?<![\w.]){name}(\.t)?(?!\w)", lambda m: value["name"] if m.group(1) else f"{value['name']}.t", body)
    return head + brace + body


def on_one_rank(text):
    """The text of a pipeline without collectives, which move nothing there and yet have SMs of their own; None if nothing else is left."""
    program = _mk._describe(text)
    head, brace, body = program["text"].partition("{")
    if not re.search(r"\b(gather|reduce_scatter|all_reduce)\b", body) or "@ partial" in head:
        return None
    head = re.sub(_PLACEMENT, "", head)
    # One that another name stands for, then those that chains begin with and go through.
    for name, operand in re.findall(r"let (\w+) = gather\((\w+)[^)]*\);", body):
        body = re.sub(rf"let {name} = gather\([^)]*\);", "", body)
        body = re.sub(rf"\b{name}\b", operand, body)
    body = re.sub(r"\bgather\((\w+)[^)]*\)", r"\1", body)
    body = re.sub(r" -> (?:gather|reduce_scatter|all_reduce)\b(?:\([^)]*\))?", "", body)
    try:
        found = _mk._describe(head + brace + body)
    except PipelineError:
        return None
    value = lambda p, i: (p["values"][i]["dims"], p["values"][i]["dtype"])
    same = [value(program, i) for _, i in program["results"]] == [value(found, i) for _, i in found["results"]]
    made = all(found["values"][i]["op"] != "parameter" for _, i in found["results"])
    return found["text"] if same and made else None
