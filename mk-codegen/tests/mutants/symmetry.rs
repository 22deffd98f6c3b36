//! Ranks are folded where they are alike, and nowhere else.

use crate::{
    cases, few, in_parallel,
    mutate::{Mutant, of_one_rank},
    verifier::{Outcome, judge, table},
};
use mk_codegen::valid;

/// One rank leaves something out, or reaches where it should not: the plan is not its own image under rotations any more, so that
/// a proof about rank 0 alone would miss it.
#[test]
fn a_mistake_on_one_rank_is_found() {
    let mut cases = cases::fixtures();
    cases.extend(cases::pipelines(few()));
    let all: Vec<_> = cases
        .iter()
        .flat_map(|c| {
            let ranks = c.plan.mesh.size();
            // A rank in the middle, and the last one, by turns.
            let of = |r| of_one_rank(&c.plan, r).into_iter();
            let list: Vec<Mutant> = match few() {
                true => of(ranks - 1).step_by(3).collect(),
                false => (0..ranks).flat_map(of).collect(),
            };
            list.into_iter().map(move |m| (c, m))
        })
        .collect();
    let judged = in_parallel(&all, |(case, mutant)| judge(case, mutant));
    let judged: Vec<_> = judged.into_iter().flatten().collect();
    println!("{}", table(&judged));
    let missed = judged.iter().filter(|j| j.outcome == Outcome::Missed);
    let missed: Vec<_> = missed.map(|j| format!("{}, {}: {}", j.case, j.name, j.says)).collect();
    assert!(missed.is_empty(), "accepted, but a run goes wrong:\n{}", missed.join("\n"));
    let caught = judged.iter().filter(|j| j.outcome == Outcome::Caught).count();
    assert!(caught > 100, "{caught}");
}

/// What is proved of folded ranks is proved rank by rank, with the same figures.
#[test]
fn folded_ranks_are_proved_as_each_of_them() {
    let mut cases = cases::fixtures();
    cases.extend(cases::pipelines(true));
    cases.extend(cases::small(true));
    let mut folded = 0;
    for case in &cases {
        let proof = valid::verify(&case.plan).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let each =
            valid::verify_each_rank(&case.plan).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        folded += usize::from(proof.folded);
        assert_eq!(valid::Proof { folded: false, ..proof }, each, "{}", case.name);
    }
    println!("{folded} of {} plans are folded", cases.len());
    assert!(folded > cases.len() / 4, "{folded}");
}
