//! Pipelines of experts at one size: planned, proved, evaluated, emitted, and run on the executor beside f64.

use mk_codegen::{emit, passes::compile, plan::Plan, settings::Config};
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

/// A size: tokens of all ranks, slots of each.
#[derive(Clone, Copy)]
pub struct Size {
    pub ranks: u64,
    pub tokens: u64,
    pub slots: u64,
}

/// A pipeline at a size, its plan, and what messages call it.
struct Compiled {
    program: Program,
    bound: Bound,
    plan: Plan,
    what: String,
    ranks: usize,
}

/// `R`, where the text has it, has room for every routing, or where it counts dropped rows, for a block of each expert.
fn compiled(name: &str, source: &str, size: Size) -> Compiled {
    let Size { ranks, tokens, slots } = size;
    // Each rank has up to as many.
    let tokens = if source.contains(": own") { tokens.next_multiple_of(ranks) } else { tokens };
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{name}: {e}"));
    // Experts that ranks do not divide where there are many, and room for a block of each.
    let experts = if ranks == 3 { 5.max(slots) } else { (2 * ranks).max(slots) };
    let own = experts.div_ceil(ranks);
    let more = (tokens * slots.min(own)).div_ceil(128);
    let rows = ranks * 128 * if source.contains("dropped") { own } else { own + more };
    // Gates and ups that a product sums over are whole steps.
    let columns = if source.contains("(w1.t)") && source.contains("2, I]") { 64 } else { 24 };
    let sizes =
        [("T", tokens), ("H", 16), ("I", columns), ("E", experts), ("K", slots), ("R", rows)];
    let sizes = sizes.map(|(name, n)| (name.to_string(), n)).into_iter();
    let dims: BTreeMap<_, _> = sizes.filter(|(n, _)| program.symbol(n).is_some()).collect();
    let what = format!("{name}, {ranks} ranks, {dims:?}");
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bound = bound.on(&program, ranks as u32).unwrap_or_else(|e| panic!("{what}: {e}"));
    let config = Config { ranks: ranks as u32, block: [128, 128, 64], ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{what}: {e}"));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{what}: {e}"));
    Compiled { program, bound, plan, what, ranks: ranks as usize }
}

impl Compiled {
    /// Elements that were judged, of two launches under a routing.
    fn run(&self, bound: &Bound, routing: Routing, seed: u64) -> u64 {
        let Compiled { program, plan, what, ranks, .. } = self;
        let case = Case { program, bound, ranks: *ranks };
        let options = CpuOptions { seed, launches: 2, routing, ..CpuOptions::default() };
        let run = run_on_cpu(case, plan, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        // Of a rank, or a launch, without rows there is nothing to judge; of all of them there is.
        let mut elements = 0;
        for (rank, judged) in run.judged.iter().flat_map(|launch| launch.iter().enumerate()) {
            let right = judged.passes() || judged.judged == 0;
            assert!(right, "{what}, {:?}, {routing:?}, rank {rank}: {judged}", bound.sizes());
            elements += judged.judged;
        }
        elements
    }
}

/// Runs a pipeline at a size under three routings.
pub fn right(name: &str, source: &str, size: Size, seed: u64) {
    let made = compiled(name, source, size);
    let routings = [Routing::Random, Routing::One, Routing::Padded];
    let elements = routings.map(|routing| made.run(&made.bound, routing, seed));
    assert!(elements.iter().any(|n| *n > 0), "{}", made.what);
}

/// Runs one plan of a pipeline with every number of tokens up to that of the size.
#[allow(dead_code, reason = "a test runs it")]
pub fn any_number(name: &str, source: &str, size: Size, seed: u64) {
    let made = compiled(name, source, size);
    let may_be_zero = made.program.symbol("T").is_some_and(|t| made.program.may_be_zero(t));
    for tokens in u64::from(!may_be_zero)..=size.tokens {
        let launch = BTreeMap::from([("T".to_string(), tokens)]);
        let bound = made.program.rebind(&made.bound, &launch);
        let bound = bound.unwrap_or_else(|e| panic!("{}: {e}", made.what));
        let routing = if tokens % 2 == 0 { Routing::Random } else { Routing::One };
        let elements = made.run(&bound, routing, seed + tokens);
        assert!(elements > 0 || tokens == 0, "{}, {tokens} tokens", made.what);
    }
}
