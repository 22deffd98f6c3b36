//! Copies of rows that are each looked up, through registers, by all computing threads.

use super::record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups};
use crate::emit::{context::Emitter, error::EmitError, types::Slice};
use crate::ir::{Access, Agent, BinOp, Expr, Operand, Point, Var};
use minijinja::{Value, context};

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "gather_rows",
    texts: &[
        ("gather_rows", include_str!("../../../../templates/leaf/gather_rows.cu.j2")),
        ("schedule", include_str!("../../../../templates/leaf/schedule.cu.j2")),
    ],
    warpgroups: Warpgroups::MOVING,
    ring: None,
    agents: &[AgentEmission {
        agent: Agent::Copier,
        seat: Seat::Computing,
        state: &[],
        function: "gather_rows",
        arguments: "<2 * kWarpgroupThreads, 2, @{ name }@Edges>(ctx, @{ name }@Hooks{params}, threadIdx.x - kWarpgroupThreads);",
    }],
    spills: Spills::NONE,
    prepare,
};

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared, EmitError> {
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_, EmitError>>()?;
    let (hooks, call) = (context! {}, context! {});
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// Single rows of the own rank, one for each of the first values of `each`, to rows one behind the other.
fn family(e: &Emitter<'_>, s: Slice) -> Result<Value, EmitError> {
    let f = &e.plan.families[s.id];
    let refuse = |what: &str| Err(EmitError::unsupported(f.name.clone(), what));
    let mut sources = f.accesses.iter().filter(|a| a.operand == Operand::Src);
    let (Some(src), None) = (sources.next(), sources.next()) else {
        return refuse("a copy gathers rows of one tensor");
    };
    let dst = e.access(f, Operand::Dst)?;
    let own = |a: &Access| a.rank == Expr::Var(Var::RANK) && a.region.len() == 2;
    let Some(each) = src.each.as_ref().filter(|_| own(src) && own(dst) && dst.each.is_none())
    else {
        return refuse("a copy gathers rows of matrices on its own rank");
    };
    let whole = |a: &Access| a.region[1] == (Expr::Const(0), e.extent(a.buffer, 1));
    let width = &src.region[1].1;
    if src.region[0].1 != Expr::Const(1) || *width != dst.region[1].1 || !whole(src) || !whole(dst)
    {
        return refuse("a copy gathers whole rows, one at a time");
    }
    if !first_ones(src, &dst.region[0].1) {
        return refuse("a copy gathers as many rows as it stores: the first ones");
    }
    if f.waits.iter().any(|w| e.plan.wait_names_stored(w)) {
        return refuse("a copy that gathers waits for no word that it looks up");
    }
    e.check_dtypes(f, src, dst)?;
    let size = e.plan.buffers[src.buffer].dtype.size_bytes();
    let at = |a: &Access, pitch: &str| {
        let each = a.each.as_ref();
        let base = e.base(a.buffer, "params.header.rank");
        format!("{base} + static_cast<u64>({}) * {pitch}", e.c(f, each, &a.region[0].0))
    };
    let (from, to) = (e.own_pitch_bytes(src.buffer), e.own_pitch_bytes(dst.buffer));
    Ok(context! {
        rows => e.c(f, None, &dst.region[0].1),
        row_bytes => format!("bytes_of({}, {size})", e.c(f, None, width)),
        source => at(src, &from),
        destination => at(dst, &to),
        destination_pitch => to,
        each => each.var.clone(),
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}

/// Whether a source is there for the first values of its `each`, as many as `rows`: `first + each < count`, and
/// `max(min(count - first, extent), 0)`.
fn first_ones(src: &Access, rows: &Expr) -> bool {
    let (Some(each), Some(Expr::Bin(BinOp::Lt, at, count))) = (&src.each, &src.when) else {
        return false;
    };
    let Expr::Bin(BinOp::Add, first, last) = &**at else { return false };
    let left = (**count).clone() - (**first).clone();
    **last == Expr::Var(Var::EACH)
        && !first.mentions(Var::EACH)
        && !count.mentions(Var::EACH)
        && *rows == left.min(each.extent.clone()).max(0)
}
