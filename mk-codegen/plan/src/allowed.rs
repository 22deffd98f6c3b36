//! Accesses, waits and posts stand at points that their leaf allows
//! ([`Record::allowed`](super::leaf::Record::allowed)): the one list that verifier, executor and emitter read.
//!
//! A template has a place in its code for each of these, and for no other. What is read comes before the result that is
//! made of it, so that no result of a plan that passes [`Plan::check_points`] is written before it is made: an
//! accumulator is written at the end, a sum at the end of what it adds.

use super::{
    check::StructureError,
    names::{Agent, Point},
    plan::{Access, Family, Plan},
};

impl Plan {
    /// Checks that every access, wait and post stands at a point that its leaf allows. For plans that are well formed.
    ///
    /// # Errors
    /// All lines that stand elsewhere, and inner loops of leaves that have none, in the order of the text.
    pub fn check_points(&self) -> Result<(), Vec<StructureError>> {
        let mut errors = Vec::new();
        for (id, x) in self.families.iter() {
            let place = format!("{id} {:?}", x.name);
            errors.extend(misplaced(x).into_iter().map(|message| StructureError {
                place: place.clone(),
                message,
                too_large: false,
            }));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

fn misplaced(x: &Family) -> Vec<String> {
    let (allowed, leaf) = (x.leaf.allowed(x.inner.is_some()), x.leaf.name());
    let mut out = Vec::new();
    if x.inner.is_some() && !allowed.inner {
        out.push(format!("{leaf} has no inner loop"));
    }
    let touches = |a: &&Access| {
        let points = allowed.operands.iter().find(|(operand, _)| *operand == a.operand);
        !points.is_some_and(|(_, points)| points.contains(&a.at))
    };
    for a in x.accesses.iter().filter(touches) {
        out.push(format!("{leaf} does not touch `{}` at {}", a.operand, a.at.name()));
    }
    let list = |points: &[(Agent, Point)]| -> String {
        let say = |(by, at): &(Agent, Point)| format!("by {by} at {}", at.name());
        match points {
            [] => "nowhere".into(),
            points => points.iter().map(say).collect::<Vec<_>>().join(", "),
        }
    };
    for w in x.waits.iter().filter(|w| !allowed.waits.contains(&(w.by, w.at))) {
        let (at, by, where_) = (w.at.name(), w.by, list(&allowed.waits));
        out.push(format!("{} waits at {at}, by {by}: {leaf} waits {where_}", w.edge));
    }
    for p in x.posts.iter().filter(|p| !allowed.posts.contains(&(p.by, p.at))) {
        let (at, by, where_) = (p.at.name(), p.by, list(&allowed.posts));
        out.push(format!("{} posts at {at}, by {by}: {leaf} posts {where_}", p.edge));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;

    /// Every operand of every leaf of the fixtures has a point, and every agent that is named is one of the leaf's.
    #[test]
    fn contracts_and_points_name_the_same() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/plans");
        let mut leaves = 0;
        for entry in std::fs::read_dir(dir).expect("tests/plans") {
            let path = entry.expect("an entry").path();
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let plan: Plan = text.parse().expect("a plan");
            assert_eq!(plan.check_points(), Ok(()), "{}", path.display());
            for x in plan.families.values() {
                let (contract, allowed) = (x.leaf.contract(), x.leaf.allowed(x.inner.is_some()));
                for o in &contract.operands {
                    let points = allowed.operands.iter().find(|p| p.0 == o.operand);
                    assert!(
                        points.is_some_and(|p| !p.1.is_empty()),
                        "{} {}",
                        x.leaf.name(),
                        o.operand
                    );
                }
                for (agent, _) in allowed.waits.iter().chain(&allowed.posts) {
                    assert!(contract.agents.contains(agent), "{} {agent}", x.leaf.name());
                }
                leaves += 1;
            }
        }
        assert!(leaves > 10, "{leaves}");
    }

    #[test]
    fn a_result_does_not_come_before_it_is_made() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/plans/gather_gemm.plan");
        let text = std::fs::read_to_string(path).expect("a fixture");
        let mut plan: Plan = text.parse().expect("a plan");
        for (_, x) in plan.families.iter_mut() {
            x.accesses
                .iter_mut()
                .filter(|a| a.operand == Operand::C)
                .for_each(|a| a.at = Point::Start);
        }
        let errors = plan.check_points().expect_err("results at the start");
        assert!(errors.len() == 2, "{errors:?}");
        assert_eq!(errors[0].message, "mma_tile does not touch `c` at start");
    }
}
