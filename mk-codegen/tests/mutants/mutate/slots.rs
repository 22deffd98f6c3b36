//! Slot sets with one slot fewer: everything that names a slot names it modulo the smaller number.

use super::{Kind, Maker};
use mk_codegen::plan::{BufId, Expr, Space, Var};

/// Every dimension of shared or scratch memory along which accesses take one slot at a time.
pub fn shrink(m: &mut Maker<'_>) {
    let plan = m.plan;
    let memory = |s| matches!(s, Space::Workspace | Space::Scratch);
    for (id, b) in plan.buffers.iter().filter(|b| memory(b.1.space)) {
        for (d, extent) in b.shape.iter().enumerate() {
            let Expr::Const(n) = *extent else { continue };
            let mut lens = plan.families.values().flat_map(|x| &x.accesses);
            let by_slot = lens.all(|a| a.buffer != id || a.region[d].1 == Expr::Const(1));
            if n < 2 || !by_slot {
                continue;
            }
            let name = format!("{id} has {} slots in dimension {d}", n - 1);
            m.add(Kind::ShrinkSlots, name, |p| {
                p.buffers[id].shape[d] = Expr::Const(n - 1);
                rename(p, id, d, &|base| base % (n - 1));
            });
            early(m, id, d);
        }
    }
}

/// Slots that alternate by epoch do not: an epoch writes where the one before it is still read.
fn early(m: &mut Maker<'_>, id: BufId, d: usize) {
    let by_epoch =
        |a: &mk_codegen::plan::Access| a.buffer == id && a.region[d].0.mentions(Var::EPOCH);
    if m.plan.families.values().flat_map(|x| &x.accesses).any(by_epoch) {
        m.add(Kind::SlotEarly, format!("{id} does not alternate"), |p| {
            rename(p, id, d, &|base| without_epoch(&base));
        });
    }
}

fn rename(p: &mut mk_codegen::plan::Plan, id: BufId, d: usize, f: &dyn Fn(Expr) -> Expr) {
    for (_, x) in p.families.iter_mut() {
        for a in x.accesses.iter_mut().filter(|a| a.buffer == id) {
            a.region[d].0 = f(a.region[d].0.clone());
        }
    }
}

fn without_epoch(e: &Expr) -> Expr {
    match e {
        Expr::Var(v) if *v == Var::EPOCH => Expr::Const(0),
        Expr::Bin(op, a, b) => {
            let (a, b) = (without_epoch(a), without_epoch(b));
            Expr::bin(*op, a, b)
        }
        other => other.clone(),
    }
}
