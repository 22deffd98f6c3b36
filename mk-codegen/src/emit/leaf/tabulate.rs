//! Tables that a kernel fills: by ordinary loads and stores of all computing threads.

use super::record::{AgentEmission, Group, LeafEmission, Prepared, Seat, Spills, Warpgroups};
use crate::emit::{context::Emitter, error::EmitError, types::Slice};
use crate::ir::{Agent, Expr, Leaf, Operand, Point, Tabulation, Var};
use minijinja::{Value, context};
use mk_abi::DType;

pub(in crate::emit) const EMISSION: LeafEmission = LeafEmission {
    template: "tabulate",
    texts: &[
        ("tabulate", include_str!("../../../../templates/leaf/tabulate.cu.j2")),
        ("schedule", include_str!("../../../../templates/leaf/schedule.cu.j2")),
    ],
    warpgroups: Warpgroups::MOVING,
    ring: None,
    agents: &[AgentEmission {
        agent: Agent::Copier,
        seat: Seat::Computing,
        state: &[],
        function: "tabulate_tasks",
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

/// Rows of groups, and blocks of them: each a whole buffer of the own rank.
fn family(e: &Emitter<'_>, s: Slice) -> Result<Value, EmitError> {
    let f = &e.plan.families[s.id];
    let Leaf::Tabulate { of: Tabulation::Blocks { rows } } = f.leaf else {
        return Err(EmitError::internal("emit/leaf/tabulate.rs", format!("{} is no table", s.id)));
    };
    let (counts, blocks) = (e.access(f, Operand::Src)?, e.access(f, Operand::Dst)?);
    for (a, dims) in [(counts, 1), (blocks, 2)] {
        let own = a.rank == Expr::Var(Var::RANK) && a.each.is_none();
        let integers = e.plan.buffers[a.buffer].dtype == DType::I32;
        let starts = a.region.iter().all(|(base, _)| *base == Expr::Const(0));
        if !own || !integers || !starts || a.region.len() != dims {
            let what = "rows of groups, and blocks of them, are whole buffers of integers";
            return Err(EmitError::unsupported(f.name.clone(), what));
        }
    }
    if blocks.region[1].1 != Expr::Const(2) {
        return Err(EmitError::unsupported(f.name.clone(), "a block has a group and rows"));
    }
    Ok(context! {
        source => e.base(counts.buffer, "params.header.rank"),
        groups => e.c(f, None, &counts.region[0].1),
        destination => e.base(blocks.buffer, "params.header.rank"),
        blocks => e.c(f, None, &blocks.region[0].1),
        rows,
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
