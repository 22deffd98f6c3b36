//! Mutants of accesses: at another point of the task, or fewer of them; and of the reach of ranks.

use super::{Kind, Maker, Mutant};
use mk_codegen::plan::{
    Agent, Completion, CopyTile, CopyVia, Expr, FamId, Leaf, Mode, Operand, Plan, Point, Proxy,
};

/// Accesses at other points, and reads that add less to a result.
pub fn of_operands(plan: &Plan) -> Vec<Mutant> {
    let mut m = Maker::new(plan);
    for id in plan.families.keys() {
        moved(&mut m, id);
        fewer(&mut m, id);
    }
    m.out.retain(|x| x.plan != *plan);
    m.out
}

fn moved(m: &mut Maker<'_>, id: FamId) {
    let x = &m.plan.families[id];
    for (i, a) in x.accesses.iter().enumerate() {
        for at in [Point::Start, Point::Inner, Point::End] {
            if at != Point::Inner || x.inner.is_some() {
                let name = format!("{id}, access {} ({i}) at {}", a.operand, at.name());
                m.add(Kind::AccessMoved, name, |p| p.families[id].accesses[i].at = at);
            }
        }
    }
}

fn fewer(m: &mut Maker<'_>, id: FamId) {
    let x = &m.plan.families[id];
    for (i, a) in x.accesses.iter().enumerate().filter(|(_, a)| a.mode == Mode::Read) {
        let Some(each) = &a.each else { continue };
        for extent in [Expr::Const(0), Expr::Const(1), each.extent.clone() - 1] {
            let name = format!("{id}, access {} ({i}) each in {extent:?}", a.operand);
            m.add(Kind::Contributions, name, |p| {
                if let Some(each) = &mut p.families[id].accesses[i].each {
                    each.extent = extent;
                }
            });
        }
    }
    // An epilogue that adds, or saves, is nothing without its operand; so is a result without factors.
    for (i, a) in x.accesses.iter().enumerate().filter(|(_, a)| a.mode == Mode::Read) {
        let name = format!("{id}, access {} ({i}) never", a.operand);
        m.add(Kind::Contributions, name, |p| {
            p.families[id].accesses[i].when = Some(Expr::Const(0));
        });
    }
    if x.inner.is_some() {
        m.add(Kind::Contributions, format!("{id}, no iteration of the inner loop"), |p| {
            if let Some((_, extent)) = &mut p.families[id].inner {
                *extent = Expr::Const(0);
            }
        });
    }
}

/// Sends over the network as copies, which reach no other node.
pub fn of_reach(plan: &Plan) -> Vec<Mutant> {
    let mut m = Maker::new(plan);
    for (id, x) in plan.families.iter().filter(|(_, x)| x.leaf == Leaf::NicSend) {
        m.add(Kind::NodeReach, format!("{id} {:?} is a copy", x.name), |p| {
            let x = &mut p.families[id];
            x.leaf = Leaf::CopyTile(CopyTile { via: CopyVia::Ldst, stages: 1 });
            x.edges.clear();
            for w in &mut x.waits {
                (w.by, w.proxy) = (Agent::Copier, Proxy::Generic);
            }
            for p in &mut x.posts {
                (p.by, p.after) = (Agent::Copier, Completion::ProgramOrder);
            }
        });
        let away = |a: &mk_codegen::plan::Access| a.operand == Operand::Dst;
        let to = x.accesses.iter().find(|a| away(a)).map(|a| a.rank.clone());
        // What GPUs raise does not leave the node either.
        for (other, y) in plan.families.iter().filter(|(_, y)| y.leaf != Leaf::NicSend) {
            for (i, post) in y.posts.iter().enumerate() {
                let Some(to) = to.clone() else { continue };
                let name = format!("{other} raises {} where {id} sends", post.edge);
                m.add(Kind::NodeReach, name, |p| p.families[other].posts[i].rank = to);
            }
        }
    }
    m.out
}
