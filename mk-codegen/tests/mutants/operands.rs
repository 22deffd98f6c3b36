//! Results that are written before they are made, or made of less: mutants of accesses, which the executor judges by numbers.
//!
//! They synchronise as the plan does, so that the explorer has nothing to say of most of them. A mutant is *wrong* if some schedule
//! of the executor fails it, or leaves other outputs than the plan itself does, bit by bit. (The executor runs them at points that
//! leaves do not allow.)

use crate::{
    cases::{self, Case},
    drawn, few, in_parallel,
    mutate::{Kind, Mutant, of_operands, of_reach},
};
use mk_codegen::{
    plan::{BufId, Plan, TabId, TableSet},
    sim::{self, Callbacks, Options, Schedule, SimError},
    valid,
};
use std::collections::BTreeMap;

type Outputs = BTreeMap<(i64, usize, BufId), Vec<u32>>;

/// A number that depends on everything, of few bits, so that sums are exact in any order.
fn number(epoch: i64, rank: usize, buffer: BufId, i: usize) -> f32 {
    let seed = (epoch as u64) << 48
        ^ (rank as u64) << 40
        ^ u64::from(format!("{buffer}")[3..].parse::<u32>().unwrap_or(0)) << 32;
    let mixed =
        (seed ^ i as u64).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    f32::from(((mixed >> 40) % 5) as i8 - 2) / 2.0
}

/// The outputs of two launches.
pub fn outputs(plan: &Plan, set: &[TableSet], schedule: Schedule) -> Result<Outputs, SimError> {
    let input = |epoch: i64, rank: usize, buffer: BufId, shape: &[usize]| match plan
        .tables
        .iter()
        .find(|(_, t)| t.stored == Some(buffer))
    {
        Some((id, _)) => {
            let values = set[epoch as usize % set.len()].values(rank, id);
            values.iter().map(|n| *n as f32).collect()
        }
        None => (0..shape.iter().product()).map(|i| number(epoch, rank, buffer, i)).collect(),
    };
    let table = |epoch: i64, rank: usize, id: TabId| {
        set[epoch as usize % set.len()].values(rank, id).to_vec()
    };
    let mut found = Outputs::new();
    let output = |epoch: i64, rank: usize, buffer: BufId, _: &[usize], values: &[f32]| {
        found.insert((epoch, rank, buffer), values.iter().map(|v| v.to_bits()).collect());
    };
    let options = Options { schedule, launches: 2, anywhere: true, ..Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options)?;
    Ok(found)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Caught,
    Strict,
    Equivalent,
    Missed,
}

const ORDERS: [Schedule; 3] = [Schedule::Random, Schedule::Reversed, Schedule::EpochApart];

/// A plan, and its outputs under each order.
struct Original<'a> {
    case: &'a Case,
    set: Vec<TableSet>,
    right: [Outputs; 3],
}

impl<'a> Original<'a> {
    fn new(case: &'a Case) -> Self {
        let set = crate::explorer::tables(&case.plan).swap_remove(0);
        let right = ORDERS.map(|o| outputs(&case.plan, &set, o).expect("the plan itself runs"));
        Original { case, set, right }
    }
}

/// What the verifier says against what the executor does; nothing of what is no plan at all.
fn judge(original: &Original<'_>, mutant: &Mutant) -> Option<(Kind, Outcome, String)> {
    if mutant.plan.check_structure().is_err() {
        return None;
    }
    let case = original.case;
    let verified = valid::verify(&mutant.plan);
    let differs = |(schedule, right): (&Schedule, &Outputs)| {
        outputs(&mutant.plan, &original.set, *schedule).map_or(true, |found| found != *right)
    };
    let wrong = ORDERS.iter().zip(&original.right).any(differs);
    let outcome = match (&verified, wrong) {
        (Err(_), true) => Outcome::Caught,
        (Err(_), false) => Outcome::Strict,
        (Ok(_), false) => Outcome::Equivalent,
        (Ok(_), true) => Outcome::Missed,
    };
    let says = verified.err().map_or(String::new(), |e| e.to_string());
    Some((mutant.kind, outcome, format!("{}, {}: {says}", case.name, mutant.name)))
}

#[test]
fn no_result_is_written_before_it_is_made_or_made_of_less() {
    let mut cases = cases::fixtures();
    cases.extend(cases::small(few()));
    let cases = in_parallel(&cases.iter().collect::<Vec<_>>(), |case| Original::new(case));
    let all = cases.iter().flat_map(|c| of_operands(&c.case.plan).into_iter().map(move |m| (c, m)));
    let list: Vec<(&Original<'_>, Mutant)> = drawn::some(all, 6).collect();
    let judged = in_parallel(&list, |(case, mutant)| judge(case, mutant));
    let mut table: BTreeMap<Kind, [usize; 4]> = BTreeMap::new();
    let mut missed = Vec::new();
    for (kind, outcome, says) in judged.into_iter().flatten() {
        table.entry(kind).or_default()[outcome as usize] += 1;
        if outcome == Outcome::Missed {
            missed.push(says);
        } else if std::env::var_os("MK_MUTANTS_SAY").is_some() && outcome == Outcome::Strict {
            println!("{outcome:?}: {}", says.replace('\n', " "));
        }
    }
    for (kind, n) in &table {
        let sum: usize = n.iter().sum();
        println!("| {} | {sum} | {} | {} | {} | {} |", kind.name(), n[0], n[1], n[2], n[3]);
    }
    assert!(missed.is_empty(), "accepted, but with other results:\n{}", missed.join("\n"));
    for (kind, least) in [(Kind::AccessMoved, 10), (Kind::Contributions, 100)] {
        // A draw may have few that go wrong.
        let enough =
            |n: &[usize; 4]| if few() { n.iter().sum::<usize>() >= 10 } else { n[0] > least };
        assert!(table.get(&kind).is_some_and(enough), "{kind:?}: {table:?}");
    }
}

/// Ranks of other nodes are reached by sends alone.
#[test]
fn only_sends_leave_a_node() {
    let mut n = 0;
    for case in &cases::fixtures() {
        for mutant in of_reach(&case.plan) {
            if mutant.plan.check_structure().is_ok() {
                let failure = valid::verify(&mutant.plan);
                assert!(failure.is_err(), "{}, {}", case.name, mutant.name);
                n += 1;
            }
        }
    }
    assert!(n >= 10, "{n}");
}
