//! Heads of rows, turned: by ordinary loads and stores of all computing threads.

use super::{
    norm::{place, whole_rows},
    record::{Group, LeafEmission, Prepared, by_all_threads},
};
use crate::emit::{EmitError, Result, context::Emitter, types::Slice};
use minijinja::{Value, context};
use mk_plan::{Agent, Leaf, Operand, Point};

pub(in crate::emit) const EMISSION: LeafEmission = by_all_threads!(
    "norm_rows",
    "rope_tasks",
    "Dtype::@{ dtype }@, @{ back }@, 2 * kWarpgroupThreads, 2, @{ name }@Edges"
);

/// Elements of a head that a lane takes: 16 bytes of each half.
const PAIRS: i64 = 16;

fn prepare(e: &mut Emitter<'_>, g: &Group) -> Result<Prepared> {
    let (id, f) = (g.slices[0].id, g.head(e));
    let Leaf::RopeTile(leaf) = &f.leaf else {
        return Err(EmitError::internal("emit/leaf/rope.rs", format!("{id} turns nothing")));
    };
    let dtype = e.one_dtype(id, |o| o != Operand::E0)?;
    let families = g.slices.iter().map(|s| family(e, *s)).collect::<Result<_>>()?;
    let hooks = context! { task => "RopeTask" };
    let call = context! { dtype, back => leaf.back.to_string() };
    Ok(Prepared { families, hooks, call, workers: g.ctas, choices: vec![] })
}

fn family(e: &Emitter<'_>, s: Slice) -> Result<Value> {
    let f = &e.plan.families[s.id];
    let places = [("x", Operand::Src), ("angles", Operand::E0), ("out", Operand::Dst)]
        .map(|(name, operand)| place(e, f, name, operand));
    let places = places.into_iter().collect::<Result<Vec<_>>>()?;
    let (angles, made) = (whole_rows(e, f, Operand::E0)?, whole_rows(e, f, Operand::Dst)?);
    for rank in 0..e.plan.mesh.size() as usize {
        let head = e.points.shape(angles.buffer, rank)?.last().copied().unwrap_or(0);
        if head % PAIRS != 0 {
            let what = format!("heads are of multiples of {PAIRS} elements, not of {head}");
            return EmitError::refuse(&f.name, what);
        }
    }
    let [rows, columns] = [2, 1].map(|d| &made.region[made.region.len() - d].1);
    Ok(context! {
        places,
        rows => e.c(f, None, rows),
        columns => e.c(f, None, columns),
        weight => Option::<String>::None,
        head => e.c(f, None, &angles.region[angles.region.len() - 1].1),
        load_waits => e.waits(f, Agent::Copier, Point::Start)?,
        posts => e.posts(f),
        ..e.slice(s)
    })
}
