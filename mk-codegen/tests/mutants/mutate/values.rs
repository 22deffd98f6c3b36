//! Mutants of one value of a run-time dimension: a wait, a post or an access that is not there with it.

use super::{Kind, Maker, Mutant};
use mk_codegen::plan::{Expr, Plan};

/// Each line left out with one of some values, and that value.
pub fn of_values(plan: &Plan) -> Vec<(i32, Mutant)> {
    let Some((dim, max)) = plan.runtime_dim() else { return Vec::new() };
    let mut values = vec![max, max - 1, max / 2 + 1, 1];
    values.retain(|v| (1..=max).contains(v));
    values.sort_unstable();
    values.dedup();
    let mut out = Vec::new();
    for value in values {
        let mut m = Maker::new(plan);
        let other = |when: &Option<Expr>| {
            Expr::Dim(dim).equals(value).select(0, when.clone().unwrap_or(1.into()))
        };
        for (id, x) in plan.families.iter() {
            for (i, w) in x.waits.iter().enumerate() {
                m.add(Kind::ValueWait, format!("{} not there with {value}", w.edge), |p| {
                    p.families[id].waits[i].when = Some(other(&w.when));
                });
            }
            for (i, post) in x.posts.iter().enumerate() {
                m.add(Kind::ValuePost, format!("{} not there with {value}", post.edge), |p| {
                    p.families[id].posts[i].when = Some(other(&post.when));
                });
            }
            for (i, a) in x.accesses.iter().enumerate() {
                let name = format!("{id}, access {} ({i}) not there with {value}", a.operand);
                m.add(Kind::ValueAccess, name, |p| {
                    p.families[id].accesses[i].when = Some(other(&a.when));
                });
            }
        }
        out.extend(m.out.into_iter().map(|m| (value, m)));
    }
    out
}
