//! Whatever a plan says, a run ends with a result or a typed error: fixtures with random numbers and lines changed.

use crate::{
    drawn,
    fixtures::{Routing, cases, route},
    harness::{plan_text, run},
};
use mk_codegen::{
    plan::Plan,
    sim::{Options, SimError},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

const NUMBERS: &[&str] = &["0", "1", "2", "3", "7", "63", "300", "65536", "2147483647"];

/// Changes one number, or drops one line, after the header.
fn mutate(text: &str, rng: &mut SmallRng) -> String {
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let first = lines.iter().position(|l| l.starts_with("dim") || l.starts_with("buffer"));
    let at = rng.random_range(first.unwrap_or(0)..lines.len());
    let line = lines[at].clone();
    let digit = |i: &usize| {
        let before = line[..*i].chars().next_back();
        line[*i..].starts_with(|c: char| c.is_ascii_digit())
            && !before.is_some_and(|c| c.is_ascii_alphanumeric())
    };
    let numbers: Vec<usize> =
        (0..line.len()).filter(|i| line.is_char_boundary(*i)).filter(digit).collect();
    if numbers.is_empty() || rng.random_ratio(1, 6) {
        lines.remove(at);
        return lines.join("\n");
    }
    let start = numbers[rng.random_range(0..numbers.len())];
    let len = line[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len() - start);
    let number = NUMBERS[rng.random_range(0..NUMBERS.len())];
    lines[at] = format!("{}{number}{}", &line[..start], &line[start + len..]);
    lines.join("\n")
}

#[test]
fn mutants_end_with_a_result_or_an_error() {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for text in cases().into_iter().map(|case| plan_text(case.name)) {
        for seed in 0..if drawn::whole() { 60 } else { 20 } {
            let mut mutant = text.clone();
            for _ in 0..rng.random_range(1..4) {
                mutant = mutate(&mutant, &mut rng);
            }
            let Ok(plan) = mutant.parse::<Plan>() else { continue };
            let options = Options { seed, launches: 2, max_steps: 30_000, ..Options::default() };
            let tables = |e, r, n: &str| route(Routing::Mixed, e, r, n);
            let end = match run(&plan, &tables, &options).0 {
                Ok(_) => "a result",
                Err(SimError::Structure(_)) => "not well formed",
                Err(SimError::Deadlock(_)) => "deadlock",
                Err(SimError::Steps { .. }) => "too many steps",
                Err(SimError::TooLarge { .. }) => "too large",
                Err(SimError::OutOfBounds { .. } | SimError::NoSuchWord { .. }) => "outside",
                Err(SimError::Operands { .. }) => "operands do not fit",
                Err(_) => "another error",
            };
            *ends.entry(end).or_default() += 1;
        }
    }
    println!("{ends:?}");
    assert!(ends.len() > 5, "{ends:?}");
}
