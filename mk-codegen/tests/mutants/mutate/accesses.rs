//! Mutants of accesses and tables: another base, extent, rank, buffer, dtype, index, flag or condition, in one place of one expression.

use super::{Kind, Maker, Mutant};
use mk_abi::DType;
use mk_codegen::plan::{
    Access, BinOp, BufId, Expr, FamId, Leaf, Mode, Operand, Plan, RoutePart, TableSource, Tabulate,
    Tabulation, Var,
};

/// All mutants of the accesses, tables and leaves of tables of a plan that are plans.
pub fn of_accesses(plan: &Plan) -> Vec<Mutant> {
    let mut m = Maker::new(plan);
    all(&mut m);
    m.out.retain(|x| x.plan != *plan && x.plan.check_structure().is_ok());
    m.out
}

pub(super) fn all(m: &mut Maker<'_>) {
    for (id, x) in m.plan.families.iter() {
        for i in 0..x.accesses.len() {
            expressions(m, id, i);
            places(m, id, i);
        }
        tabulation(m, id);
        traded(m, id);
    }
    dtypes(m);
    tables(m);
}

/// An expression of an access: what it is, and where.
type Part = (Kind, String, fn(&mut Access, usize) -> Option<&mut Expr>, usize);

fn parts(a: &Access) -> Vec<Part> {
    let mut out: Vec<Part> = vec![(Kind::OtherRank, "rank".into(), |a, _| Some(&mut a.rank), 0)];
    for d in 0..a.region.len() {
        out.push((
            Kind::Base,
            format!("base {d}"),
            |a, d| a.region.get_mut(d).map(|r| &mut r.0),
            d,
        ));
        out.push((
            Kind::Extent,
            format!("length {d}"),
            |a, d| a.region.get_mut(d).map(|r| &mut r.1),
            d,
        ));
    }
    out.push((Kind::Base, "version".into(), |a, _| Some(&mut a.version), 0));
    if a.each.is_some() {
        out.push((Kind::Extent, "each".into(), |a, _| a.each.as_mut().map(|e| &mut e.extent), 0));
    }
    if a.when.is_some() {
        out.push((Kind::Condition, "when".into(), |a, _| a.when.as_mut(), 0));
    }
    out
}

/// One node of one expression is another one.
fn expressions(m: &mut Maker<'_>, id: FamId, i: usize) {
    let plan = m.plan;
    let a = &plan.families[id].accesses[i];
    for (kind, what, part, d) in parts(a) {
        let mut copy = a.clone();
        let Some(e) = part(&mut copy, d).cloned() else { continue };
        for (n, other) in others(plan, &e).into_iter().enumerate() {
            let looked_up = e.has_table() && kind != Kind::Condition;
            let kind = if looked_up { Kind::Index } else { kind };
            let name = format!(
                "{id} {:?}, {} ({i}), {what} #{n}: {}",
                plan.families[id].name,
                a.operand,
                plan.text(Some(&plan.families[id]), a.each.as_ref(), &other)
            );
            m.add(kind, name, |p| {
                if let Some(e) = part(&mut p.families[id].accesses[i], d) {
                    *e = other;
                }
            });
        }
    }
}

/// Expressions with one node changed.
fn others(plan: &Plan, e: &Expr) -> Vec<Expr> {
    let mut out = Vec::new();
    match e {
        Expr::Const(c) => {
            let near = [*c, c + 1, c - 1, c / 2, 0];
            out.extend(near[1..].iter().filter(|n| **n != *c).map(|n| Expr::Const(*n)));
        }
        Expr::Dim(_) => out.extend([e.clone() - 1, Expr::Const(1)]),
        Expr::Var(Var::RANK) => {
            let world = plan.mesh.size() as i32;
            out.extend([0.into(), (e.clone() + 1) % world]);
        }
        Expr::Var(_) => out.extend([e.clone() + 1, 0.into()]),
        Expr::Bin(op, a, b) => {
            out.extend([(**a).clone(), (**b).clone()]);
            let swapped = match op {
                BinOp::Div => Some(BinOp::Mod),
                BinOp::Mod => Some(BinOp::Div),
                BinOp::Min => Some(BinOp::Max),
                BinOp::Add => Some(BinOp::Sub),
                BinOp::Lt => Some(BinOp::Le),
                BinOp::Le => Some(BinOp::Lt),
                _ => None,
            };
            out.extend(swapped.map(|op| Expr::bin(op, (**a).clone(), (**b).clone())));
            out.extend(others(plan, a).into_iter().map(|a| Expr::bin(*op, a, (**b).clone())));
            out.extend(others(plan, b).into_iter().map(|b| Expr::bin(*op, (**a).clone(), b)));
        }
        Expr::Select(c) => {
            let [when, yes, no] = &**c;
            out.extend([yes.clone(), no.clone()]);
            out.push(Expr::Select(Box::new([when.clone(), no.clone(), yes.clone()])));
            for k in 0..3 {
                for other in others(plan, &c[k]) {
                    let mut c = c.clone();
                    c[k] = other;
                    out.push(Expr::Select(c));
                }
            }
        }
        Expr::Table(t, index) => {
            out.extend([Expr::Const(0), Expr::Const(1)]);
            for (other, o) in plan.tables.iter() {
                if other != *t && o.shape.len() == index.len() {
                    out.push(Expr::Table(other, index.clone()));
                }
            }
            for d in 0..index.len() {
                let n = plan.tables[*t].shape[d].max(1) as i32;
                // The next entry, around, and the one on the other side.
                let next = (index[d].clone() + 1) % n;
                let mirrored = Expr::Const(n - 1) - index[d].clone();
                for at in [next, mirrored].into_iter().chain(others(plan, &index[d])) {
                    let mut index = index.clone();
                    index[d] = at;
                    out.push(Expr::Table(*t, index));
                }
            }
        }
    }
    out
}

/// The access is elsewhere as a whole: in another buffer, on another rank, always, never.
fn places(m: &mut Maker<'_>, id: FamId, i: usize) {
    let plan = m.plan;
    let a = &plan.families[id].accesses[i];
    let mut change = |kind, what: String, f: &dyn Fn(&mut Access)| {
        let name = format!("{id} {:?}, {} ({i}), {what}", plan.families[id].name, a.operand);
        m.add(kind, name, |p| f(&mut p.families[id].accesses[i]));
    };
    for (other, b) in plan.buffers.iter() {
        if other != a.buffer && b.shape.len() == a.region.len() {
            let verb = if a.mode == Mode::Read { "from" } else { "to" };
            change(Kind::OtherBuffer, format!("{verb} {other}"), &|a| a.buffer = other);
        }
    }
    let ranks = plan.mesh.size() as i32;
    change(Kind::OtherRank, "of the next rank".into(), &|a| a.rank = (a.rank.clone() + 1) % ranks);
    change(Kind::OtherRank, "of the own rank".into(), &|a| a.rank = Var::RANK.into());
    for d in 0..a.region.len() {
        let extent = plan.buffers[a.buffer].shape[d].clone();
        change(Kind::Base, format!("base {d} by its length, around"), &|a| {
            let (base, len) = a.region[d].clone();
            let next = base + len.clone();
            a.region[d].0 = (next.clone() + len).le(extent.clone()).select(next, 0);
        });
        change(Kind::Extent, format!("length {d} up to the end"), &|a| {
            a.region[d].1 = extent.clone() - a.region[d].0.clone();
        });
    }
    if let Some(when) = &a.when {
        change(Kind::Condition, "when it should not".into(), &|a| {
            a.when = Some(when.clone().equals(0));
        });
        change(Kind::Condition, "always".into(), &|a| a.when = None);
    }
    change(Kind::Condition, "never".into(), &|a| a.when = Some(0.into()));
    // On one rank only.
    let only = Expr::from(Var::RANK).equals(ranks - 1);
    if let Some(base) = a.region.first().map(|r| r.0.clone()) {
        change(Kind::Base, "shifted on the last rank".into(), &|a| {
            a.region[0].0 = only.clone().select(base.clone() + 1, base.clone());
        });
    }
}

/// Settings of a leaf that fills a table.
fn tabulation(m: &mut Maker<'_>, id: FamId) {
    let Leaf::Tabulate(Tabulate { of }) = m.plan.families[id].leaf else { return };
    let mut set = |what: &str, of: Tabulation| {
        m.add(Kind::TableLeaf, format!("{id}: {what}"), |p| {
            p.families[id].leaf = Leaf::Tabulate(Tabulate { of });
        });
    };
    let Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local } = of else {
        return;
    };
    let route = |part, [experts, ranks, stride, rows, blocks, keep, local]: [u32; 7]| {
        Tabulation::Route { part, experts, ranks, stride, rows, blocks, keep, local }
    };
    let all = [experts, ranks, stride, rows, blocks, keep, local];
    let names = ["experts", "ranks", "stride", "rows", "blocks", "keep", "local"];
    for (i, name) in names.into_iter().enumerate() {
        for by in [1, u32::MAX] {
            let mut other = all;
            other[i] = other[i].wrapping_add(by);
            if other[i] < 1 << 20 {
                set(&format!("{name} {}", other[i]), route(part, other));
            }
        }
    }
    use RoutePart::*;
    for other in [Lists, Counts, Wanted, Sources, Places, Slots] {
        if other != part {
            set(&format!("makes {other}"), route(other, all));
        }
    }
}

/// Two operands of the same kind trade places, or their names.
fn traded(m: &mut Maker<'_>, id: FamId) {
    let list = &m.plan.families[id].accesses;
    for (i, j) in (0..list.len()).flat_map(|j| (0..j).map(move |i| (i, j))) {
        let (a, b) = (&list[i], &list[j]);
        if a.mode != b.mode || a.operand == Operand::Tab || b.operand == Operand::Tab {
            continue;
        }
        let name = format!("{id}: lines {i} and {j} trade places");
        m.add(Kind::Traded, name, |p| p.families[id].accesses.swap(i, j));
        let (x, y) = (a.operand, b.operand);
        let name = format!("{id}: {x} ({i}) and {y} ({j}) trade names");
        m.add(Kind::Traded, name, |p| {
            let list = &mut p.families[id].accesses;
            (list[i].operand, list[j].operand) = (y, x);
        });
    }
}

/// Buffers of another type.
fn dtypes(m: &mut Maker<'_>) {
    for (id, b) in m.plan.buffers.iter() {
        for dtype in [DType::Bf16, DType::F16, DType::F32, DType::I32, DType::I64] {
            if dtype != b.dtype {
                let name = format!("{id} {:?} is {}", b.name, dtype.name());
                m.add(Kind::OtherType, name, |p| p.buffers[id].dtype = dtype);
            }
        }
    }
}

/// What the lines of tables say.
fn tables(m: &mut Maker<'_>) {
    let plan = m.plan;
    for (id, t) in plan.tables.iter() {
        let mut change = |what: &str, f: &dyn Fn(&mut mk_codegen::plan::Table)| {
            m.add(Kind::TableLine, format!("{id} {:?}: {what}", t.name), |p| f(&mut p.tables[id]));
        };
        if let Some(r) = t.routed {
            let keep = [r.keep + 1, r.keep - 1, 128];
            for keep in keep {
                change(&format!("keeps {keep}"), &|t| {
                    t.routed.as_mut().expect("routed").keep = keep;
                });
            }
            for local in [r.local + 1, r.local.wrapping_sub(1)] {
                change(&format!("of nodes of {local}"), &|t| {
                    t.routed.as_mut().expect("routed").local = local;
                });
            }
            change("of other rows", &|t| t.routed.as_mut().expect("routed").rows /= 2);
            for part in [RoutePart::Wanted, RoutePart::Sources, RoutePart::Counts, RoutePart::Kept]
            {
                change(&format!("is {part}"), &|t| {
                    t.routed.as_mut().expect("routed").part = part;
                });
            }
            change("follows from no routing", &|t| t.routed = None);
            // Over ranks along another axis, and over all.
            let axes = plan.mesh.axes.iter().map(|(axis, _)| plan.mesh.axis(axis));
            for along in axes.chain([None]).filter(|_| plan.mesh.axes.len() > 1) {
                change("over others", &|t| t.routed.as_mut().expect("routed").along = along);
            }
        }
        if let TableSource::Runtime { min, max } = t.source {
            change("up to one more", &|t| t.source = TableSource::Runtime { min, max: max + 1 });
            change("up to one less", &|t| t.source = TableSource::Runtime { min, max: max - 1 });
        }
        let elsewhere = |b: &BufId| t.stored.is_some_and(|stored| stored != *b);
        for buffer in plan.buffers.keys().filter(elsewhere) {
            change(&format!("in {buffer}"), &|t| t.stored = Some(buffer));
        }
    }
}
