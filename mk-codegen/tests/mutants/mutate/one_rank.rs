//! Mutants of one rank: the plan is no longer the same from every rank, and only one of them is wrong.

use super::{Kind, Maker, Mutant};
use mk_codegen::plan::{Expr, Plan, Var};

/// Waits and posts that one rank leaves out, and accesses that it makes to another rank's memory.
pub fn of_one_rank(plan: &Plan, rank: u32) -> Vec<Mutant> {
    let mut m = Maker::new(plan);
    let ranks = plan.mesh.size() as i32;
    let here = || Expr::from(Var::RANK).equals(rank as i32);
    let elsewhere = |when: &Option<Expr>| here().select(0, when.clone().unwrap_or(1.into()));
    for (id, x) in plan.families.iter() {
        for (i, w) in x.waits.iter().enumerate() {
            m.add(Kind::OneRankWait, format!("{} dropped on rank {rank}", w.edge), |p| {
                p.families[id].waits[i].when = Some(elsewhere(&w.when));
            });
        }
        for (i, post) in x.posts.iter().enumerate() {
            m.add(Kind::OneRankPost, format!("{} dropped on rank {rank}", post.edge), |p| {
                p.families[id].posts[i].when = Some(elsewhere(&post.when));
            });
        }
        for (i, a) in x.accesses.iter().enumerate() {
            let name = format!("{id}, access {} ({i}) to the next rank, on rank {rank}", a.operand);
            m.add(Kind::OneRankAccess, name, |p| {
                p.families[id].accesses[i].rank = (a.rank.clone() + here()) % ranks;
            });
        }
    }
    m.out
}
