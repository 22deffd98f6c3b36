//! Plans with one thing changed that no rule of the verifier is about: where a task reads, what it reads, and what it does to it.

use mk_codegen::plan::{
    ALayout, Access, AttendGradTile, AttendTile, BLayout, EpilogueOp, Expr, FamId, Leaf, MmaTile,
    Mode, Plan, ReduceTile, Var, gated,
};
use mk_syntax::Curve;

/// A plan with one thing changed.
pub struct Mutant {
    pub name: String,
    pub plan: Plan,
}

/// All mutants of a plan that are plans.
pub fn mutants(plan: &Plan) -> Vec<Mutant> {
    let mut out = Vec::new();
    for (id, family) in plan.families.iter() {
        for (i, a) in family.accesses.iter().enumerate() {
            access(plan, id, i, a, &mut out);
        }
        leaf(plan, id, &family.leaf, &mut out);
        swapped(plan, id, &family.accesses, &mut out);
    }
    out.retain(|m| m.plan != *plan && m.plan.check_structure().is_ok());
    out
}

fn access(plan: &Plan, id: FamId, i: usize, a: &Access, out: &mut Vec<Mutant>) {
    let mut change = |what: String, f: &dyn Fn(&mut Access)| {
        let mut plan = plan.clone();
        f(&mut plan.families[id].accesses[i]);
        out.push(Mutant { name: format!("{id} {}: {what}", a.operand), plan });
    };
    let ranks = plan.mesh.size() as i32;
    change("of the next rank".into(), &|a| a.rank = (a.rank.clone() + 1) % ranks);
    change("of the own rank".into(), &|a| a.rank = Var::RANK.into());
    for d in 0..a.region.len() {
        for by in [-128, -64, -8, -1, 1, 8, 64, 128] {
            change(format!("dimension {d} by {by}"), &|a| {
                a.region[d].0 = a.region[d].0.clone() + by;
            });
        }
        // As far as there is something, so that it stays in bounds.
        let extent = plan.buffers[a.buffer].shape[d].clone();
        change(format!("dimension {d} one further, or at the end"), &|a| {
            let (base, len) = a.region[d].clone();
            a.region[d].0 = (base + 1).min(extent.clone() - len);
        });
        change(format!("dimension {d} at the beginning"), &|a| a.region[d].0 = 0.into());
        change(format!("dimension {d} the next one around"), &|a| {
            let (base, len) = a.region[d].clone();
            if len == Expr::Const(1) {
                a.region[d].0 = (base + 1) % extent_of(&extent);
            }
        });
        change(format!("dimension {d} by what it is long, around"), &|a| {
            let (base, len) = a.region[d].clone();
            let next = base + len.clone();
            a.region[d].0 = (next.clone() + len).le(extent.clone()).select(next, 0);
        });
    }
    if a.mode == Mode::Read {
        for (other, b) in plan.buffers.iter() {
            if other != a.buffer && b.shape.len() == a.region.len() {
                change(format!("from {other}"), &|a| a.buffer = other);
            }
        }
    }
    if let Some(each) = &a.each {
        for n in [each.extent.clone() - 1, 1.into(), 0.into()] {
            change("other repetitions".into(), &|a| {
                if let Some(each) = &mut a.each {
                    each.extent = n.clone();
                }
            });
        }
    }
    if let Some(when) = &a.when {
        change("when it should not".into(), &|a| a.when = Some(when.clone().equals(0)));
        change("always".into(), &|a| a.when = None);
    }
}

fn extent_of(e: &Expr) -> Expr {
    match e {
        Expr::Const(n) => Expr::Const((*n).max(1)),
        other => other.clone(),
    }
}

fn leaf(plan: &Plan, id: FamId, leaf: &Leaf, out: &mut Vec<Mutant>) {
    let mut change = |what: String, leaf: Leaf| {
        let mut plan = plan.clone();
        plan.families[id].leaf = leaf;
        out.push(Mutant { name: format!("{id}: {what}"), plan });
    };
    let epilogue = leaf.epilogue();
    let with = |epilogue: Vec<EpilogueOp>| {
        let mut leaf = leaf.clone();
        if let Leaf::MmaTile(MmaTile { epilogue: e, .. })
        | Leaf::ReduceTile(ReduceTile { epilogue: e }) = &mut leaf
        {
            *e = epilogue;
        }
        leaf
    };
    for (i, op) in epilogue.iter().enumerate() {
        let mut instead = Vec::new();
        match op {
            EpilogueOp::Curve(Curve::Gelu) => {
                instead.extend([EpilogueOp::Curve(Curve::Silu), EpilogueOp::Curve(Curve::Relu)])
            }
            EpilogueOp::Curve(Curve::Silu) => {
                instead.extend([EpilogueOp::Curve(Curve::Gelu), EpilogueOp::Curve(Curve::Relu)])
            }
            EpilogueOp::Curve(Curve::Relu) => instead.push(EpilogueOp::Curve(Curve::Gelu)),
            EpilogueOp::Add => instead.push(EpilogueOp::Mul),
            EpilogueOp::Mul => instead.push(EpilogueOp::Add),
            EpilogueOp::Scale(bits) => {
                instead.push(EpilogueOp::Scale((f32::from_bits(*bits) * 2.0).to_bits()));
            }
            _ => {}
        }
        for other in instead {
            let mut list = epilogue.to_vec();
            list[i] = other;
            change(format!("{other:?} for {op:?}"), with(list));
        }
        if op.operand().is_none() && !matches!(op, EpilogueOp::Carry) {
            let mut list = epilogue.to_vec();
            list.remove(i);
            change(format!("without {op:?}"), with(list));
        }
        if i > 0 {
            let mut list = epilogue.to_vec();
            list.swap(i - 1, i);
            change(format!("{op:?} earlier"), with(list));
        }
    }
    let twice = |scale: u32| (f32::from_bits(scale) * 2.0).to_bits();
    let mut other = leaf.clone();
    if let Leaf::AttendTile(AttendTile { scale, .. })
    | Leaf::AttendGradTile(AttendGradTile { scale, .. }) = &mut other
    {
        *scale = twice(*scale);
        change("twice the factor".into(), other);
    }
    if !matches!(leaf, Leaf::MmaTile(_) | Leaf::ReduceTile(_)) {
        return;
    }
    if !gated(epilogue) {
        for op in [EpilogueOp::Curve(Curve::Relu), EpilogueOp::Scale(2f32.to_bits())] {
            change(format!("{op:?} first"), with([&[op], epilogue].concat()));
        }
    }
    if let Leaf::MmaTile(MmaTile { a_layout, b_layout, .. }) = leaf {
        let (mut a, mut b) = (leaf.clone(), leaf.clone());
        if let Leaf::MmaTile(MmaTile { a_layout: layout, .. }) = &mut a {
            *layout = if *a_layout == ALayout::Mk { ALayout::Km } else { ALayout::Mk };
        }
        if let Leaf::MmaTile(MmaTile { b_layout: layout, .. }) = &mut b {
            *layout = if *b_layout == BLayout::Kn { BLayout::Nk } else { BLayout::Kn };
        }
        change("`a` the other way round".into(), a);
        change("`b` the other way round".into(), b);
    }
}

/// Two operands trade places.
fn swapped(plan: &Plan, id: FamId, accesses: &[Access], out: &mut Vec<Mutant>) {
    for (i, j) in (0..accesses.len()).flat_map(|j| (0..j).map(move |i| (i, j))) {
        if accesses[i].mode != accesses[j].mode {
            continue;
        }
        let mut plan = plan.clone();
        let list = &mut plan.families[id].accesses;
        let (x, y) = (list[i].operand, list[j].operand);
        (list[i].operand, list[j].operand) = (y, x);
        out.push(Mutant { name: format!("{id}: {x} and {y} trade places"), plan });
    }
}
