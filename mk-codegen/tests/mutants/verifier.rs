//! Every mutant is rejected by the verifier, or shown by the explorer to be as good as the original.

use crate::{
    cases::{self, Case},
    drawn,
    explorer::{Verdict, explore},
    few, in_parallel,
    mutate::{Kind, Mutant, mutants},
};
use mk_codegen::valid;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// What the two say of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Rejected, and a run goes wrong.
    Caught,
    /// Rejected, though no run goes wrong: the verifier asks for more than the machine.
    Strict,
    /// Accepted, and no run goes wrong.
    Equivalent,
    /// Accepted, though a run goes wrong.
    Missed,
}

pub struct Judged {
    pub case: String,
    pub kind: Kind,
    pub name: String,
    pub outcome: Outcome,
    /// The first rule that rejects it.
    rule: Option<u8>,
    /// All rules that do.
    rules: BTreeSet<u8>,
    /// What the verifier or the explorer says.
    pub says: String,
    /// Time of the verifier and of the explorer.
    took: [Duration; 2],
}

/// A proof without the waits it has used: where several paths order a pair, a search takes the one that it finds first, and ranks
/// are searched in another order.
fn without_waits(proof: valid::Proof) -> valid::Proof {
    valid::Proof { waits_used: Vec::new(), waits_unused: Vec::new(), ..proof }
}

pub fn judge(case: &Case, mutant: &Mutant) -> Option<Judged> {
    // Not a plan at all: there is nothing to explore.
    if mutant.plan.check_structure().is_err() {
        return None;
    }
    let begin = Instant::now();
    // The proof of order rests on no list of points: these mutants wait and post at any.
    let verified = valid::verify_anywhere(&mutant.plan);
    let middle = Instant::now();
    // Folded or not, the verdict is the same.
    if let Ok(proof) = verified.clone()
        && proof.folded
    {
        let each = valid::verify_each_rank(&mutant.plan).map(without_waits);
        let folded = valid::Proof { folded: false, ..without_waits(proof) };
        assert_eq!(each, Ok(folded), "{}, {}", case.name, mutant.name);
    }
    let explored = explore(&mutant.plan);
    let took = [middle - begin, middle.elapsed()];
    let outcome = match (&verified, &explored) {
        (Err(_), Verdict::Wrong(_)) => Outcome::Caught,
        (Err(_), Verdict::Fine { .. }) => Outcome::Strict,
        (Ok(_), Verdict::Fine { .. }) => Outcome::Equivalent,
        (Ok(_), Verdict::Wrong(_)) => Outcome::Missed,
    };
    let rules: BTreeSet<u8> = verified
        .as_ref()
        .err()
        .iter()
        .flat_map(|e| e.violations.iter().map(|v| v.rule()))
        .collect();
    let rule = verified.as_ref().err().and_then(|e| e.violations.first()).map(|v| v.rule());
    let says = match (verified, explored) {
        (Err(e), Verdict::Fine { .. }) => e.to_string(),
        (_, e) => format!("{e:?}"),
    };
    let (case, name) = (case.name.clone(), mutant.name.clone());
    Some(Judged { case, kind: mutant.kind, name, outcome, rule, rules, says, took })
}

/// Judges every so-manieth mutant of the plans.
fn judge_some(cases: &[Case], stride: usize) -> Vec<Judged> {
    let all = cases.iter().flat_map(|c| mutants(&c.plan).into_iter().map(move |m| (c, m)));
    let all: Vec<(&Case, Mutant)> = drawn::some(all, stride).collect();
    in_parallel(&all, |(case, mutant)| judge(case, mutant)).into_iter().flatten().collect()
}

fn cases() -> Vec<Case> {
    let mut all = cases::fixtures();
    all.extend(cases::pipelines(few()));
    all
}

pub fn table(judged: &[Judged]) -> String {
    let mut by_kind: BTreeMap<Kind, [usize; 4]> = BTreeMap::new();
    for j in judged {
        by_kind.entry(j.kind).or_default()[j.outcome as usize] += 1;
    }
    let mut out = String::from(
        "| mutation | mutants | rejected, wrong | rejected, no run goes wrong | accepted, equivalent | missed |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let mut sum = [0; 4];
    let mut line = |name: &str, n: &[usize; 4]| {
        let all: usize = n.iter().sum();
        out += &format!("| {name} | {all} | {} | {} | {} | {} |\n", n[0], n[1], n[2], n[3]);
    };
    for (kind, n) in &by_kind {
        line(kind.name(), n);
        sum.iter_mut().zip(n).for_each(|(s, n)| *s += n);
    }
    line("all", &sum);
    out
}

/// Prints what is said of mutants that are not simply wrong, if asked to.
fn say(judged: &[Judged]) {
    if std::env::var_os("MK_MUTANTS_SAY").is_some() {
        for j in
            judged.iter().filter(|j| matches!(j.outcome, Outcome::Strict | Outcome::Equivalent))
        {
            println!("{:?}: {}, {}: {}", j.outcome, j.case, j.name, j.says.replace('\n', " "));
        }
    }
}

#[test]
fn every_mutant_is_rejected_or_equivalent() {
    let cases: Vec<Case> = drawn::some(cases(), 2).collect();
    for case in &cases {
        let verdict = explore(&case.plan);
        assert!(
            matches!(verdict, Verdict::Fine { .. }),
            "{}: {verdict:?}\n{}",
            case.name,
            case.plan
        );
        valid::verify(&case.plan).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    }
    let judged = judge_some(&cases, 6);
    println!("{} plans\n{}", cases.len(), table(&judged));
    let mut rules: BTreeMap<Option<u8>, usize> = BTreeMap::new();
    judged.iter().for_each(|j| *rules.entry(j.rule).or_default() += 1);
    println!("by the first rule that rejects: {rules:?}");
    let mut time: BTreeMap<&str, [Duration; 2]> = BTreeMap::new();
    for j in &judged {
        let t = time.entry(&j.case).or_default();
        (t[0], t[1]) = (t[0] + j.took[0], t[1] + j.took[1]);
    }
    time.iter().for_each(|(case, t)| println!("{case}: verifier {:?}, explorer {:?}", t[0], t[1]));
    say(&judged);
    // Without any of these rules, the verifier would miss mutants, and this test would fail.
    let caught = |rule: u8| {
        let only = judged.iter().filter(|j| j.outcome == Outcome::Caught);
        only.filter(|j| j.rules.len() == 1 && j.rules.contains(&rule)).count()
    };
    for rule in 1..=5 {
        println!("rule {rule} alone rejects {} mutants that go wrong", caught(rule));
        assert!(few() || caught(rule) > 0, "rule {rule}");
    }
    let missed: Vec<_> = judged
        .iter()
        .filter(|j| j.outcome == Outcome::Missed)
        .map(|j| format!("{}, {}: {}", j.case, j.name, j.says))
        .collect();
    assert!(missed.is_empty(), "accepted, but a run goes wrong:\n{}", missed.join("\n"));
}

/// Attention, nodes and experts: the same as of products.
#[test]
fn every_mutant_of_attention_nodes_meshes_and_experts_is_rejected_or_equivalent() {
    let mut cases = cases::attention(few());
    cases.extend(cases::nodes(few()));
    cases.extend(cases::meshes(few()));
    cases.extend(cases::experts(few()));
    for case in &cases {
        let begin = Instant::now();
        let verdict = explore(&case.plan);
        assert!(matches!(verdict, Verdict::Fine { .. }), "{}: {verdict:?}", case.name);
        println!("{}: explored in {:?}", case.name, begin.elapsed());
        valid::verify(&case.plan).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    }
    let judged = judge_some(&cases, 200);
    println!("{} plans\n{}", cases.len(), table(&judged));
    say(&judged);
    let missed = judged.iter().filter(|j| j.outcome == Outcome::Missed);
    let missed: Vec<_> = missed.map(|j| format!("{}, {}: {}", j.case, j.name, j.says)).collect();
    assert!(missed.is_empty(), "accepted, but a run goes wrong:\n{}", missed.join("\n"));
    let caught = judged.iter().filter(|j| j.outcome == Outcome::Caught).count();
    assert!(caught > if few() { 0 } else { 20 }, "{caught}");
}

const TABLES: &str = "what tables are made of is no matter of order";

/// Broken plans that the verifier refuses although no run of the explorer's machine goes wrong, and why.
const STRICT: &[(&str, &str)] = &[
    (
        "rule1_shifted_in_one_task",
        "an agent of the machine has read all before it writes; a template goes over a region piece by piece",
    ),
    (
        "rule2_the_host_waits",
        "no order of the fifo blocks this plan; the verifier does not look for one",
    ),
    (
        "rule2_behind_an_empty_tile",
        "an empty tile takes no stage in the machine; the executor, and some templates, hand it on",
    ),
    ("rule2_too_many_ctas", "SMs are not part of the machine"),
    (
        "rule3_a_word_for_all_ranks",
        "all ranks wait for the word in every launch, so that none can be two ahead; that is a proof about sums",
    ),
    ("rule3_a_count_that_wraps", "words of the machine count without end"),
    (
        "rule5_two_groups_for_a_word",
        "that is a matter of tables which are not among those that it tries",
    ),
    (
        "rule5_products_of_some_tokens",
        "rows of an output that nobody writes are no matter of order",
    ),
    (
        "rule5_elements_of_some_tokens",
        "rows of an output that nobody writes are no matter of order",
    ),
    ("rule6_gates_without_ups", "what a leaf makes of regions is the executor's business"),
    ("rule6_two_elements_picked", "what a leaf makes of regions is the executor's business"),
    ("rule6_weights_of_two_slots", "what a leaf makes of regions is the executor's business"),
    ("rule6_a_row_of_a_block", "what a leaf makes of regions is the executor's business"),
    ("rule6_counts_up_to_39", TABLES),
    ("rule6_lists_of_19_tokens", TABLES),
    ("rule6_places_by_a_peers_list", TABLES),
    ("rule6_wanted_of_19_tokens", TABLES),
    ("rule6_epoch_times_a_number", "it goes wrong in the eighth epoch"),
    ("rule6_factors_of_other_depths", "what a leaf makes of regions is the executor's business"),
    ("rule6_looked_up", "whether a task reads the entries that it looks up is no matter of order"),
    ("rule6_no_fifo", "capacities are not part of the machine"),
    ("rule6_pitch_below_a_row", "memory of the machine has elements, and no addresses"),
    ("rule6_shared_memory", "capacities are not part of the machine"),
];

#[test]
fn broken_plans_go_wrong() {
    let broken = cases::folder("broken");
    assert!(!broken.is_empty());
    let mut unlike = Vec::new();
    for case in broken.iter().filter(|c| c.plan.check_structure().is_ok()) {
        let wrong = matches!(explore(&case.plan), Verdict::Wrong(_));
        println!("{}: {}", case.name, if wrong { "goes wrong" } else { "no run goes wrong" });
        let strict = STRICT.iter().find(|s| s.0 == case.name);
        if wrong != strict.is_none() {
            unlike.push(format!("{}: {strict:?}", case.name));
        }
    }
    assert!(unlike.is_empty(), "{}", unlike.join("\n"));
}
