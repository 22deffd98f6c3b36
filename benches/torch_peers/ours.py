"""mk as a contestant: the whole row as one kernel, and, for chains, as several."""

import os
from concurrent.futures import ThreadPoolExecutor

import contestant
import mk

# What a config file may set, by mk.compile's keyword.
OPTIONS = "sms block consumers group_rows chunk_bytes k_slices gather all_reduce sums split_k tail tile_schedule".split()


def options(config, key):
    """Keyword arguments for a row, from a parsed config file: ``{"ROW": {"sms": {…}, …}}``. ValueError for others."""
    given = config.get(key, {})
    unknown = set(given) - set(OPTIONS)
    if unknown:
        raise ValueError(f"{key}: no option {', '.join(sorted(unknown))}; there are {', '.join(OPTIONS)}")
    return {name: tuple(value) if name == "block" else value for name, value in given.items()}


def compile_ahead(rows, rank, world, config):
    """Compiles this rank's share of all kernels into the disk cache, several at a time; binding then finds them there."""

    def one(kernel, given):
        try:
            plan = mk.compile(kernel.pipeline, mk.World.offline(world), **given).bind(shapes=kernel.shapes)
            plan.compile()
        except mk.Error:
            pass  # the row itself says what is wrong

    work = []
    for row in rows:
        work += [(kernel, {}) for kernel in row.separate(world)] + [(row.kernel(world), options(config, row.key))]
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // world))) as pool:
        list(pool.map(lambda item: one(*item), work[rank::world]))
    return len(work)


def fused(row, inputs, world, result, config):
    """The row as one kernel. Collective."""
    f = mk.compile(row.kernel(world.size).pipeline, world, fuse="always", **options(config, row.key))
    plan = f.bind(shapes=row.kernel(world.size).shapes)
    out = result()

    def run(i):
        return f(*inputs.sets[i], out=out)

    return contestant.Contestant("mk", contestant.OURS, run, [out], f.check, roles(plan)), [f]


def separate(row, inputs, world, result):
    """A chain as two kernels. Collective."""
    first, second = row.separate(world.size)
    f, g = (mk.compile(kernel.pipeline, world) for kernel in (first, second))
    plans = [f.bind(shapes=first.shapes), g.bind(shapes=second.shapes)]
    out = result()
    # The first kernel's result: all rows, and the columns that the second one's weight has rows.
    hidden = out.new_empty(row.m, inputs.sets[0][-1].shape[0])

    def run(i):
        first_arguments = inputs.sets[i][:-1]
        return g(f(*first_arguments, out=hidden), inputs.sets[i][-1], out=out)

    def after():
        f.check()
        g.check()

    note = "; ".join(roles(p) for p in plans)
    return contestant.Contestant("mk, two kernels", contestant.SEPARATE, run, [out, hidden], after, note), [f, g]


def roles(plan):
    """``compute 124, intra_comm 8``."""
    return ", ".join(f"{name} {ctas}" for name, ctas in plan.roles.items() if ctas)
