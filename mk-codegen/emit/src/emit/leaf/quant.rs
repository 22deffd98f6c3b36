//! Rows in eight bits, with factors: by ordinary loads and stores of all computing threads.

use super::{
    norm::{place, whole_rows},
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Agent, Expr, Leaf, Operand, Point, QuantTile, Var};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "norm_rows",
    "quant_tasks",
    "Dtype::@{ dtype }@, Dtype::@{ narrow }@, @{ back }@, 2 * kWarpgroupThreads, 2, @{ name }@Edges"
);

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::QuantTile(leaf) = &f.leaf else {
        return Err(EmitError::internal("emit/leaf/quant.rs", format!("{id} quantises nothing")));
    };
    let wide = if leaf.back { Operand::Dst } else { Operand::Src };
    let narrow = if leaf.back { Operand::Src } else { Operand::Dst };
    let (dtype, narrow) = (e.one_dtype(id, |o| o == wide)?, e.one_dtype(id, |o| o == narrow)?);
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_>>()?;
    let hooks = context! { task => "QuantTask" };
    let call = context! { dtype, narrow, back => leaf.back.to_string() };
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

/// Where the factor of the first row's first block lies: a row of factors for each block, of all blocks.
fn factors(e: &Emitter<'_>, f: &mk_plan::Family) -> Result<Value> {
    let a = e.access(f, Operand::E0)?;
    let own = a.each.is_none() && a.rank == Expr::Var(Var::RANK);
    let [blocks, (row, _)] = a.region.as_slice() else {
        return EmitError::refuse(&f.name, "factors are `[blocks, rows]`");
    };
    if !own || *blocks != (Expr::Const(0), e.extent(a.buffer, 0)) {
        let what = "factors are of all blocks of rows, on the own rank";
        return EmitError::refuse(&f.name, what);
    }
    let (base, pitch) = (e.base(a.buffer, "params.header.rank"), e.own_pitch_bytes(a.buffer));
    let address = format!("{base} + static_cast<u64>({}) * 4", e.c(f, None, row));
    Ok(context! { name => "factors", address, pitch })
}

fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let places =
        vec![place(e, f, "x", Operand::Src)?, place(e, f, "out", Operand::Dst)?, factors(e, f)?];
    let made = whole_rows(e, f, Operand::Dst)?;
    for rank in 0..e.plan.mesh.size() as usize {
        let (columns, blocks) = (
            e.points.shape(made.buffer, rank)?.last().copied().unwrap_or(0),
            e.points.shape(e.access(f, Operand::E0)?.buffer, rank)?.first().copied().unwrap_or(0),
        );
        let block = i64::from(QuantTile::BLOCK);
        if columns % VECTOR != 0 || blocks != (columns + block - 1) / block {
            let what =
                format!("{columns} columns are of {blocks} blocks, or no multiple of {VECTOR}");
            return EmitError::refuse(&f.name, what);
        }
    }
    let [rows, columns] = [2, 1].map(|d| &made.region[made.region.len() - d].1);
    let read = e.access(f, Operand::Src)?;
    let all = e.c(f, None, rows);
    let rows = match e.plan.buffers[read.buffer].own_rows {
        false => all,
        true => {
            let first = e.c(f, None, &read.region[0].0);
            format!("min_i({all}, static_cast<int>(params.header.own_rows) - ({first}))")
        }
    };
    Ok(context! {
        places,
        rows,
        columns => e.c(f, None, columns),
        weight => Option::<String>::None,
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}

/// Elements of eight bits that 16 bytes hold.
const VECTOR: i64 = 16;
