"""mk under ``torch.compile``: collectives around GEMMs become pipelines, without an edit of the model.

    mk.inductor.enable(world_of=world)
    step = torch.compile(model)        # a table says what was taken, what was not, and why

A pass over Inductor's graphs, forward and backward, before its own. docs/inductor.md.
"""

from __future__ import annotations

import hashlib
import operator
import pathlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from . import _function, _mk, _worlds
from ._errors import ArgumentError, Error, UnsupportedError
from ._fx import Unknown, activation, collective, emit, is_call, is_whole, product, shape_of, sizes, stored, unreshaped, value

__all__ = ["Pass", "Row", "disable", "enable"]
aten = torch.ops.aten
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
# What a copy takes beside what memory allows, and memory's rate, where the cost model knows no such kernel.
_COPY_US, _BYTES_PER_US = 2.0, 3.0e6
_library = torch.library.Library("mk", "FRAGMENT")
_library.define("pipeline(Tensor[] inputs, str world, str text) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
# By world and text. Graphs name them, in this process and in others that find compiled graphs in a cache.
_functions: dict[tuple[str, str], _function.Function] = {}


def _found(world, text):
    function = _functions.get((world, text))
    if function is None:
        function = _functions[world, text] = _function.compile(text, _worlds.find(world))
        if _active is not None:
            _active._met(world, text)
    return function


def _run(inputs, world, text):
    with torch.no_grad():
        made = _found(world, text)(*inputs)
    return list(made) if isinstance(made, tuple) else [made]


_library.impl("pipeline", _run, "CPU")
_library.impl("pipeline", _run, "CUDA")
torch.library.register_fake("mk::pipeline", lambda inputs, world, text: _found(world, text)._runner.fake(torch, inputs), lib=_library)


@dataclass
class Row:
    """One pattern of one graph. Times are predicted microseconds: of separate kernels, and of mk's; None where there is none."""

    graph: str
    pattern: str
    shapes: str
    before_us: float | None
    after_us: float | None
    taken: bool
    why: str
    text: str = field(default="", repr=False)
    # False of a collective with no product beside it, which is no miss.
    beside: bool = True


class _Miss(Exception):
    """Why a pattern is left alone."""


@lru_cache(maxsize=4096)
def _predicted(text, ranks, dims, gpu):
    """Predicted microseconds of separate kernels and of one, each None where it is not known."""
    whole, _, parts, _ = _mk._predict(text, ranks=ranks, dims=dict(dims), gpu=gpu)
    apart = [us for _, us in parts]
    return (sum(apart) if apart and None not in apart else None), whole


class _Text:
    """A pipeline that is being written: parameters with the nodes that they are, lines, results with what they stand for."""

    def __init__(self, name, dtype):
        self.name, self.dtype, self.parameters, self.lines, self.results, self.dims = name, dtype, [], [], [], {}

    def add(self, name, dims, place, node, rows=False):
        at = f" @ {place}" if place else ""
        self.parameters.append((f"{name}: {self.dtype}[{', '.join(dims)}]{at}", node, rows))
        return name

    def matrix(self, name, operand, dims, columns):
        """A weight ``dims``, of which ranks share dimension ``columns``, as it is stored: how ``gemm`` reads it."""
        node, turned = stored(operand)
        if not is_whole(value(node)) and is_whole(value(node).t()):
            node, turned = ("t", node), not turned
        dims, place = (dims[::-1], 1 - columns) if turned else (dims, columns)
        self.add(name, dims, f"shard({place})", node)
        return f"{name}.t" if turned else name

    def __str__(self):
        head = ", ".join(p for p, _, _ in self.parameters)
        names = [name for name, _ in self.results]
        last = names[0] if len(names) == 1 else f"({', '.join(names)})"
        lines = "".join(f"    {line};\n" for line in self.lines)
        return f"fn {self.name}({head}) {{\n{lines}    {last}\n}}"


@dataclass
class _Region:
    """What a pipeline stands for: ``replaced`` are the nodes that its results replace, ``inside`` all nodes that it computes."""

    pattern: str
    text: _Text
    world: object
    inside: list
    rows: tuple | None
    shapes: str
    copies: int = 0
    saved: int = 0


class Pass(CustomGraphPass):
    """Made by ``enable``. ``rows`` are what it found, in the order of graphs; ``str()`` is the table."""

    def __init__(self, world_of, strict, report, gpu, then):
        self._world_of, self.strict, self.report, self._gpu, self._then = world_of, strict, report, gpu, then
        self.rows, self._graphs, self._known = [], 0, set()

    def uuid(self):
        files = [pathlib.Path(__file__), pathlib.Path(__file__).with_name("_fx.py")]
        said = b"".join(f.read_bytes() for f in files)
        # The compiler's file: what its cost model chose is in the graphs.
        built = pathlib.Path(_mk.__file__).stat()
        options = repr((_mk.__version__, built.st_size, built.st_mtime_ns, self.strict, self._gpu, sorted(_worlds._worlds.keys())))
        other = self._then.uuid() if self._then is not None else b""
        return None if other is None else hashlib.sha256(said + options.encode() + repr(other).encode()).digest()

    def world(self, group):
        """The world of a process group, given by name or as it is, or None."""
        given = self._world_of
        if isinstance(group, str):
            group = torch.distributed.distributed_c10d._resolve_process_group(group)
        if isinstance(given, _mk.World):
            same = given.size == torch.distributed.get_world_size(group) and torch.distributed.get_rank(group) in given.ranks
            return given if same else None
        world = given.get(group, given.get(getattr(group, "group_name", None))) if isinstance(given, Mapping) else given(group)
        if world is not None and not isinstance(world, _mk.World):
            raise ArgumentError(f"world_of gives a {type(world).__name__} for group {group.group_name}, and must give an mk.World or None")
        return world

    def gpu(self, world):
        if self._gpu is not None:
            return self._gpu
        return torch.cuda.get_device_name(world.devices[0]) if world.devices and torch.cuda.is_available() else "h200"

    def __call__(self, graph):
        if self._then is not None:
            self._then(graph)
        self._graphs += 1
        before, name = len(self.rows), f"{self._graphs}"
        _Graph(self, graph, name).run()
        new = self.rows[before:]
        if self.report and new and not self._quiet(new):
            print(_table(new), file=sys.stderr)
        missed = [r for r in new if not r.taken and r.beside]
        if self.strict and missed:
            raise UnsupportedError("strict: not every collective beside a product became a pipeline\n" + _table(missed))

    def _quiet(self, rows):
        dist = torch.distributed
        return dist.is_available() and dist.is_initialized() and dist.get_rank() != 0

    def _met(self, world, text):
        """A graph that a cache had calls a pipeline that no pass of this process wrote."""
        if (world, text) not in self._known:
            self._known.add((world, text))
            self.rows.append(Row("cached", text.split("(")[0].removeprefix("fn "), "", None, None, True, "in a compiled graph of the cache", text))

    def __str__(self):
        return _table(self.rows)


def _table(rows):
    us = lambda x: "–" if x is None else f"{x:.1f}"
    cells = [("graph", "pattern", "shapes", "before us", "after us", "taken")]
    cells += [(r.graph, r.pattern, r.shapes, us(r.before_us), us(r.after_us), "yes" if r.taken else f"no: {r.why}") for r in rows]
    wide = [max(len(c[i]) for c in cells) for i in range(5)]
    line = lambda c: "  ".join([*(t.ljust(w) if i < 3 else t.rjust(w) for i, (t, w) in enumerate(zip(c, wide))), c[5]])
    return "\n".join(map(line, cells))


class _Graph:
    """One run over one graph."""

    def __init__(self, owner, graph, name):
        self.owner, self.graph, self.name = owner, graph, name
        self.changed = False

    def run(self):
        found = [c for c in map(collective, self.graph.nodes) if c is not None]
        self.order = {node: i for i, node in enumerate(self.graph.nodes)}
        heads = {c.node: c for c in found if c.kind == "gather"}
        done = set()
        # The longest first: a chain from one collective to another.
        for end in found:
            region, head = self._chain_to(end, heads) if end.kind != "gather" else (None, None)
            if region is not None and head.node not in done and self._take(region, quiet=True):
                done |= {end.node, head.node}
        for c in found:
            if c.node in done:
                continue
            try:
                region = self._gather(c) if c.kind == "gather" else self._sum(c)
            except _Miss as miss:
                self._say(c, str(miss))
                continue
            except Unknown:
                self._say(c, "a size is not known before the program runs")
                continue
            if region is not None:
                self._take(region)
            elif self.owner.world(c.group) is not None:
                self._say(c, "no product beside it", beside=False)
        if self.changed:
            from torch._inductor.pattern_matcher import stable_topological_sort

            stable_topological_sort(self.graph)

    def _say(self, c, why, **more):
        self.owner.rows.append(Row(self.name, c.kind, "x".join(map(str, value(c.source).shape)), None, None, False, why, **more))

    # What there is.

    def _world(self, c):
        world = self.owner.world(c.group)
        if world is None:
            raise _Miss("its group has no world")
        return world

    def _dtype(self, *nodes):
        kinds = {value(n).dtype for n in nodes}
        if len(kinds) != 1 or not kinds <= set(_DTYPES):
            raise _Miss(f"operands are {', '.join(sorted(str(k).removeprefix('torch.') for k in kinds))}, and products take bfloat16 or float16")
        return _DTYPES[kinds.pop()]

    def _rows(self, c):
        """How rows lie: None as they are; ``(B, S)``, where ranks share the second of two dimensions of rows and B is not 1."""
        shape = sizes(c.source)
        if len(shape) < 2:
            raise _Miss(f"it moves a tensor of {len(shape)} dimension")
        if c.dim == 0:
            return None
        if c.dim == len(shape) - 1:
            raise _Miss("it moves columns, and pipelines move rows")
        if len(shape) != 3 or c.dim != 1:
            raise _Miss(f"it moves dimension {c.dim} of {len(shape)}")
        if not isinstance(value(c.source).shape[0], int):
            raise _Miss("the number of batches is symbolic, and ranks share the second dimension")
        return None if shape[0] == 1 else (shape[0], -1)

    def _products_of(self, g):
        """Products whose operand A is the rows of a node, not transposed."""
        seen, todo, made = set(), [g], []
        while todo:
            for user in todo.pop().users:
                if user in seen:
                    continue
                seen.add(user)
                if is_call(user, aten.reshape.default, aten.view.default, aten._unsafe_view.default) and unreshaped(user) is not user:
                    todo.append(user)
                    continue
                p = product(user)
                if p is not None and unreshaped(p.left) is g:
                    made.append(p)
        return sorted(made, key=lambda p: self.order.get(p.node, 0))

    def _gemm(self, text, p, at, k, source):
        """The line of a product of gathered rows; its name and its columns' symbol."""
        n, name = f"N{at}", f"h{at}"
        line = f"let {name} = {source} -> gemm({text.matrix(f'w{at}', p.right, (k, n), 1)})"
        text.dims[n] = sizes(p.right)[1]
        if p.bias is not None:
            line += f" -> bias({text.add(f'c{at}', (n,), 'shard(0)', p.bias)})"
        return line, name, n

    def _start(self, name, c, world, *operands):
        text = _Text(name, self._dtype(c.source, *operands))
        shape = sizes(c.source)
        rows = 1
        for n in shape[:-1]:
            rows *= n
        text.dims = {"M": rows * world.size, "K": shape[-1]}
        text.add("x", ("M", "K"), "shard(0)", c.source, rows=True)
        text.lines.append("let g = gather(x)")
        return text

    def _gather(self, c):
        """A gather with all products of its rows; activations of them that are easily taken along stay Inductor's."""
        products = self._products_of(c.node)
        if not products:
            return None
        world, layout = self._world(c), self._rows(c)
        text = self._start("gather_gemm", c, world, *(x for p in products for x in (p.right, p.bias) if x is not None))
        inside = list(c.parts)
        for at, p in enumerate(products):
            line, name, n = self._gemm(text, p, at, "K", "g")
            text.lines.append(line)
            text.results.append((name, p.node))
            text.dims[n] *= world.size
            inside.append(p.node)
        if self._read_elsewhere(c.node, products):
            text.results.append(("g", c.node))
        what = "gather -> " + (f"{len(products)} gemm" if len(products) > 1 else "gemm") + (" -> bias" if any(p.bias for p in products) else "")
        copies = [c.source, *(p.node for p in products)] if layout else []
        return self._region(what, text, world, inside, layout, copies, [c.node] if c.dim else [])

    def _read_elsewhere(self, g, products):
        """Whether the gathered rows themselves are wanted."""
        own = {p.node for p in products}
        todo = [g]
        while todo:
            for user in todo.pop().users:
                if user in own and product(user) is not None and not self._reads(stored(product(user).right)[0], g):
                    continue
                if is_call(user, aten.reshape.default, aten.view.default, aten._unsafe_view.default) and unreshaped(user) is not user:
                    todo.append(user)
                    continue
                return True
        return False

    def _reads(self, node, g):
        return unreshaped(node) is g

    def _summed(self, c):
        """The product whose sum over ranks a collective is, and what is added to it before, or None."""
        top = unreshaped(c.source)
        p = product(top)
        if not self._only(top, c.parts):
            return None
        if p is not None:
            return p, None, []
        if is_call(top, aten.add.Tensor) and len(top.args) == 2 and not top.kwargs:
            # The later one goes on in the sum.
            pairs = [(one, other) for one, other in (top.args, top.args[::-1]) if value(one) is not None and value(other) is not None]
            for one, other in sorted(pairs, key=lambda pair: -self.order.get(pair[0], 0)):
                p = product(unreshaped(one))
                if p is not None and self._only(p.node, [top]) and sizes(other) == sizes(one):
                    return p, other, [top]
        return None

    def _only(self, node, readers):
        """Whether nobody else reads a node, or views of it."""
        views = aten.reshape.default, aten.view.default, aten._unsafe_view.default
        return all(u in readers or is_call(u, aten.sym_size.int) or is_call(u, *views) and self._only(u, readers) for u in node.users)

    def _reduction(self, c, world):
        stage = c.kind
        return f"{stage} -> scale({1 / world.size!r})" if c.mean else stage

    def _sum(self, c):
        found = self._summed(c)
        if found is None:
            return None
        p, other, more = found
        world, layout = self._world(c), self._rows(c)
        if p.bias is not None:
            raise _Miss("a bias is added before the sum, on every rank")
        operands = [p.left, p.right] + ([other] if other is not None else [])
        text = _Text(f"gemm_{c.kind}", self._dtype(*operands))
        left, turned = stored(p.left)
        if turned and layout is None and value(left).dim() == 2:
            # The depth is what ranks share: rows of a gradient's columns.
            rows, depth = sizes(p.left)
            text.add("a", ("K", "M"), "shard(0)", left)
            first = "gemm(a.t, "
        else:
            text.add("a", ("M", "K"), "shard(1)", p.left, rows=True)
            rows, depth = _flat(sizes(p.left))
            first = "gemm(a, "
        text.dims = {"M": rows, "K": depth * world.size, "N": sizes(p.right)[1]}
        line = f"let y = {first}{text.matrix('w', p.right, ('K', 'N'), 0)})"
        if other is not None:
            line += f" -> add({text.add('z', ('M', 'N'), 'partial', other, rows=True)})"
        if c.kind == "reduce_scatter" and rows % world.size:
            raise _Miss(f"{rows} rows, and {world.size} ranks have no equal parts of them")
        text.lines.append(f"{line} -> {self._reduction(c, world)}")
        text.results.append(("y", c.node))
        what = "gemm" + (" -> add" if other is not None else "") + f" -> {c.kind}"
        copies = [p.left, c.node] + ([other] if other is not None else []) if layout else []
        return self._region(what, text, world, [p.node, *more, *c.parts], layout, copies, [c.source] if c.dim else [])

    def _chain_to(self, end, heads):
        """Gather -> gemm -> activation -> gemm -> sum, where a sum ends one, and its gather; or None, None."""
        try:
            found = self._summed(end)
            if found is None or found[1] is not None or found[0].bias is not None:
                return None, None
            middle = unreshaped(found[0].left)
            name, products, nodes = self._gated(middle) or self._activated(middle) or (None, [], [])
            sources = {unreshaped(q.left) for q in products}
            head = heads.get(sources.pop()) if len(sources) == 1 else None
            if head is None:
                return None, None
            world = self._world(head)
            if world is not self._world(end) or self._rows(head) != self._rows(end):
                return None, None
            return self._chain(head, end, world, found[0], middle, name, products, nodes), head
        except (_Miss, Unknown):
            return None, None

    def _activated(self, node):
        """An activation of a product: its name, the product, its nodes."""
        found = activation(node)
        made = product(found[1]) if found is not None else None
        return (found[0], [made], found[2]) if made is not None else None

    def _gated(self, node):
        """``silu(x W1) * (y W3)``."""
        if not is_call(node, aten.mul.Tensor):
            return None
        for one, other in (node.args, node.args[::-1]):
            if value(one) is None or value(other) is None:
                continue
            act, up = activation(unreshaped(one)), product(unreshaped(other))
            gate = product(act[1]) if act is not None and act[0] == "silu" else None
            if gate is not None and up is not None and gate.bias is None is up.bias:
                return "swiglu", [gate, up], [*act[2], node]
        return None

    def _chain(self, head, end, world, p, middle, name, products, nodes):
        first = products[0]
        operands = [x for q in products for x in (q.right, q.bias) if x is not None]
        text = self._start("mlp", head, world, p.right, *operands)
        layout = self._rows(head)
        saved = []
        inside = [*head.parts, *(q.node for q in products), *nodes, p.node, *end.parts]
        if name == "swiglu":
            gate, up = (stored(q.right) for q in products)
            text.add("w", ("K", "2", "F"), "shard(2)", ("stack", products[0].right, products[1].right))
            text.lines.append("let h = g -> gemm(w)")
            text.dims["F"] = sizes(first.right)[1] * world.size
            saved += [products[0].right, products[1].right]
            wanted = [q for q in products if any(u not in inside and u not in self._views_inside(q.node, inside) for u in q.node.users)]
            if wanted:
                text.results.append(("h", ("halves", wanted, products)))
                saved += [q.node for q in wanted]
        else:
            line, h, n = self._gemm(text, first, 0, "K", "g")
            text.lines.append(line)
            text.dims[n] *= world.size
            text.lines.append(f"let b = {h} -> {name}")
            if any(u not in self._views_inside(first.node, inside) for u in first.node.users):
                text.results.append((h, first.node))
        columns = "F" if name == "swiglu" else "N0"
        source = "b"
        if name == "swiglu":
            text.lines.append("let b = h -> swiglu")
        if any(u is not p.node and u not in self._views_inside(middle, [p.node]) for u in middle.users) or self._kept(middle, p.node):
            text.results.append(("b", middle))
        text.dims["P"] = sizes(p.right)[1]
        text.lines.append(f"let y = {source} -> gemm({text.matrix('v', p.right, (columns, 'P'), 0)}) -> {self._reduction(end, world)}")
        text.results.insert(0, ("y", end.node))
        if self._read_elsewhere(head.node, products):
            text.results.append(("g", head.node))
        copies = [head.source, end.node] if layout else []
        what = f"gather -> gemm -> {name} -> gemm -> {end.kind}"
        return self._region(what, text, world, inside, layout, copies + saved, [head.node, end.source] if head.dim else [])

    def _views_inside(self, node, inside):
        """Users of a node that are views which only ``inside`` reads."""
        found = set(inside)
        for user in node.users:
            if is_call(user, aten.reshape.default, aten.view.default, aten._unsafe_view.default) and all(
                    u in found or u in self._views_inside(user, inside) for u in user.users):
                found.add(user)
        return found

    def _kept(self, node, reader):
        """Whether views of a node go elsewhere, too."""
        views = [u for u in node.users if is_call(u, aten.reshape.default, aten.view.default, aten._unsafe_view.default)]
        return any(u is not reader and u not in views for v in views for u in v.users)

    def _region(self, what, text, world, inside, layout, copies, copied_before):
        size = lambda n: value(n).dtype.itemsize * torch.Size(sizes(n)).numel()
        shown = "x".join(str(text.dims[d]) for d in text.dims)
        cost = lambda nodes: sum(_COPY_US + 2 * size(n) / _BYTES_PER_US for n in nodes)
        region = _Region(what, text, world, inside, layout, f"{shown} on {world.size}")
        region.copies, region.saved = cost(copies), cost(copied_before)
        return region

    # What is done with it.

    def _take(self, region, quiet=False):
        owner, text = self.owner, str(region.text)
        row = Row(self.name, region.pattern, region.shapes, None, None, False, "", text)
        try:
            before, after = _predicted(text, region.world.size, tuple(sorted(region.text.dims.items())), owner.gpu(region.world))
            if after is None:
                raise _Miss("no single kernel holds it")
            row.after_us = after + region.copies
            row.before_us = before + region.saved if before is not None else None
            if region.world.size > 1 and before is None:
                raise _Miss("the cost model does not know its parts")
            if row.before_us is not None and row.after_us >= row.before_us:
                raise _Miss("predicted to be slower")
            self._check(region)
        except (_Miss, Error) as why:
            row.why = str(why).split("\n")[0]
            if not quiet:
                owner.rows.append(row)
            return False
        self._resize(region)
        self._replace(region, text)
        row.taken = True
        owner.rows.append(row)
        return True

    def _check(self, region):
        """That no input depends on what the pipeline makes, and that shapes can be written."""
        inside = set(region.inside)
        inputs = [n for n in self._inputs(region) if n not in inside]
        seen, todo = set(), list(inputs)
        while todo:
            node = todo.pop()
            if node in inside:
                raise _Miss("an operand is made of what it makes")
            if node not in seen:
                seen.add(node)
                todo += node.all_input_nodes
        if any(found is None for _, found in self._sizes_of(region)):
            raise _Miss("a symbolic size of it is wanted, and no operand has it")
        for _, replaced in region.text.results:
            if isinstance(replaced, torch.fx.Node) and shape_of(self.graph, replaced) is None:
                raise _Miss("two sizes of a result are symbolic, and no input has them")

    def _sizes_of(self, region):
        """Nodes that ask for a symbolic size of what is inside, each with the input that has it, its dimension and a factor."""
        inputs = [n for n in self._inputs(region) if value(n) is not None]
        for node in region.inside:
            for user in node.users:
                if is_call(user, aten.sym_size.int):
                    want = value(node).shape[user.args[1]]
                    found = ((n, d, k) for n in inputs for d in range(value(n).dim()) for k in (1, region.world.size)
                             if str(k * value(n).shape[d]) == str(want))
                    yield user, next(found, None)

    def _resize(self, region):
        """Sizes that are asked of what is inside are asked of inputs."""
        for user, (node, dim, factor) in list(self._sizes_of(region)):
            with self.graph.inserting_before(user):
                new = self.graph.call_function(aten.sym_size.int, (node, dim))
                new.meta["val"] = value(node).shape[dim]
                if factor != 1:
                    new = self.graph.call_function(operator.mul, (new, factor))
            new.meta["val"] = user.meta["val"]
            user.replace_all_uses_with(new)
            self.graph.erase_node(user)

    def _inputs(self, region):
        for _, node, _ in region.text.parameters:
            if isinstance(node, tuple):
                yield from node[1:]
            else:
                yield node

    def _replace(self, region, text):
        graph, layout = self.graph, region.rows
        order = {node: i for i, node in enumerate(graph.nodes)}
        last = max(self._inputs(region), key=lambda n: order[n])
        with graph.inserting_after(last):
            # Behind placeholders, all of which come first.
            while last.next.op == "placeholder":
                last = last.next
        world = _worlds.name(region.world)
        self.owner._known.add((world, text))
        with graph.inserting_after(last):
            anchor = graph.call_function(operator.getitem, ([0], 0))
        with graph.inserting_before(anchor):
            inputs = [self._operand(node, rows, layout) for _, node, rows in region.text.parameters]
            call = emit(graph, torch.ops.mk.pipeline.default, inputs, world, text)
            for i, (_, replaced) in enumerate(region.text.results):
                item = graph.call_function(operator.getitem, (call, i))
                item.meta["val"] = call.meta["val"][i]
                if isinstance(replaced, tuple):
                    _, wanted, products = replaced
                    for q in wanted:
                        half = emit(graph, aten.select.int, item, 1, products.index(q))
                        half = emit(graph, aten.clone.default, half)
                        self._put(q.node, self._result(half, q.node, layout))
                else:
                    self._put(replaced, self._result(item, replaced, layout))
        graph.erase_node(anchor)
        self._sweep(region.inside)
        self.changed = True

    def _put(self, old, new):
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    def _sweep(self, nodes):
        """Takes away what nobody reads any more, and views of it."""
        todo = list(nodes)
        changed = True
        while changed:
            changed = False
            for node in list(todo):
                for user in list(node.users):
                    if not user.users and is_call(user, aten.reshape.default, aten.view.default, aten._unsafe_view.default):
                        self.graph.erase_node(user)
                        todo = [n for n in todo if n is not user]
                        changed = True
                if not node.users:
                    todo.remove(node)
                    self.graph.erase_node(node)
                    changed = True

    def _operand(self, node, rows, layout):
        graph = self.graph
        if isinstance(node, tuple) and node[0] == "t":
            return emit(graph, aten.permute.default, node[1], [1, 0])
        if isinstance(node, tuple):
            one, other = (emit(graph, aten.unsqueeze.default, n, 1) for n in node[1:])
            return emit(graph, aten.cat.default, [one, other], 1)
        if rows and layout:
            wide = value(node).shape[-1]
            node = emit(graph, aten.reshape.default, node, [layout[0], -1, wide])
            node = emit(graph, aten.permute.default, node, [1, 0, 2])
            node = _contiguous(graph, node)
            return emit(graph, aten.reshape.default, node, [-1, wide])
        if not is_whole(value(node)):
            node = _contiguous(graph, node)
        if rows and value(node).dim() > 2:
            node = emit(graph, aten.reshape.default, node, [-1, value(node).shape[-1]])
        return node

    def _result(self, item, replaced, layout):
        graph = self.graph
        if layout and value(replaced).dim() >= 2:
            wide = value(item).shape[-1]
            item = emit(graph, aten.reshape.default, item, [-1, layout[0], wide])
            item = emit(graph, aten.permute.default, item, [1, 0, 2])
            item = _contiguous(graph, item)
        if value(item).dim() != value(replaced).dim() or layout:
            item = emit(graph, aten.reshape.default, item, shape_of(graph, replaced))
        return item


def _flat(shape):
    rows = 1
    for n in shape[:-1]:
        rows *= n
    return rows, shape[-1]


def _contiguous(graph, node):
    node = emit(graph, aten.clone.default, node)
    with node.meta["val"].fake_mode:
        node.meta["val"] = node.meta["val"].contiguous()
    node.kwargs = {"memory_format": torch.contiguous_format}
    return node


_active: Pass | None = None


def enable(world_of, *, strict=False, report=True, gpu=None):
    """Has ``torch.compile`` make pipelines of collectives around GEMMs, in what it compiles from here on. Returns the ``Pass``, which
    keeps what was found.

    ``world_of`` says in which world a process group's ranks are: a World, for its group; a mapping of groups, or their names, to Worlds; or a
    function of a group, which gives a World or None. Collectives of other groups are left alone.

    With ``report`` rank 0 prints a table for each graph. With ``strict`` a pattern that is not taken is an UnsupportedError with the reason.
    Nothing is taken that the cost model predicts to be slower than separate kernels: on this GPU, or on ``gpu``: "h100", "h200", or a GPU's name.
    """
    global _active
    if not isinstance(world_of, (_mk.World, Mapping)) and not callable(world_of):
        raise TypeError(f"world_of is a {type(world_of).__name__}, and must be an mk.World, a mapping of groups to worlds, or a function")
    if gpu is not None:
        _predicted("gemm(a, b)", 1, (("a_0", 128), ("a_1", 128), ("b_1", 128)), gpu)
    disable()
    config = torch._inductor.config
    _active = Pass(world_of, strict, report, gpu, config.post_grad_custom_pre_pass)
    config.post_grad_custom_pre_pass = _active
    return _active


def disable():
    """Takes the pass out of what is compiled from here on."""
    global _active
    config = torch._inductor.config
    if _active is not None and config.post_grad_custom_pre_pass is _active:
        config.post_grad_custom_pre_pass = _active._then
    _active = None
