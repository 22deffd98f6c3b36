//! Every fixture, under every schedule and several seeds, gives the numbers of the dense reference.

use crate::{
    compare::{self, Reference},
    dense,
    harness::{Data, MakeTable, no_tables, plan, run},
};
use mk_codegen::{
    ir::Plan,
    sim::{Options, RunReport, Schedule},
};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};

/// Relative errors that two roundings to bf16 explain: of the whole, and of a tile.
pub const WHOLE: f64 = 5e-3;
pub const TILE: f64 = 1.2e-2;

/// A fixture with its reference.
pub struct Case {
    pub name: &'static str,
    pub output: &'static str,
    pub reference: Box<Reference>,
}

pub fn cases() -> Vec<Case> {
    let case = |name, output, reference| Case { name, output, reference };
    vec![
        case(
            "gather_gemm",
            "c",
            Box::new(|d: &Data, e, r| dense::gather_gemm(d, e, r, 3)) as Box<Reference>,
        ),
        case(
            "gemm_reduce_scatter",
            "out",
            Box::new(|d, e, r| dense::gemm_reduce_scatter(d, e, r, 3, 67)),
        ),
        case("moe_dispatch", "out", Box::new(|d, e, r| dense::moe(d, e, r, 128, 64, true))),
        case(
            "moe_dispatch_capacity",
            "out",
            Box::new(|d, e, r| dense::moe(d, e, r, 64, 32, false)),
        ),
        case("ring_attention_registers", "o", Box::new(|d, e, r| dense::attention(d, e, r, 4))),
        case("ring_attention_scratch", "o", Box::new(|d, e, r| dense::attention(d, e, r, 4))),
        case("two_nodes_nic", "c", Box::new(|d, e, r| dense::gather_gemm(d, e, r, 4))),
    ]
}

pub fn case(name: &str) -> Case {
    cases().into_iter().find(|c| c.name == name).expect("a case")
}

/// How tokens go to experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Each token to one random expert of each rank, or to none.
    Random,
    /// The first expert of every rank gets nothing.
    Empty,
    /// The last expert of every rank gets all tokens of all ranks.
    AllOnOne,
    /// Rank 0 gets nothing, so that no row holds it back: it runs as far ahead as the plan lets it.
    NothingToRank0,
    /// Another of the first three in each epoch.
    Mixed,
}

/// Tables of the MoE fixtures: 3 ranks of 20 tokens, 2 experts with 64 entries each.
pub fn route(routing: Routing, epoch: i64, rank: usize, name: &str) -> Vec<i32> {
    let routing = match (routing, epoch % 3) {
        (Routing::Mixed, 0) => Routing::Random,
        (Routing::Mixed, 1) => Routing::AllOnOne,
        (Routing::Mixed, _) => Routing::Empty,
        (other, _) => other,
    };
    let mut rng = SmallRng::seed_from_u64((epoch * 100) as u64 + rank as u64);
    let mut rows: [Vec<(i32, i32)>; 2] = Default::default();
    for from in 0..3 {
        for token in 0..20 {
            let expert = match routing {
                Routing::Random => rng.random_range(0..3),
                Routing::Empty => rng.random_range(1..3),
                Routing::NothingToRank0 if rank == 0 => 2,
                Routing::NothingToRank0 => rng.random_range(0..3),
                _ => 1,
            };
            if let Some(list) = rows.get_mut(expert) {
                list.push((from, token));
            }
        }
    }
    rows.iter_mut().for_each(|list| list.shuffle(&mut rng));
    if name == "total" {
        return rows.iter().map(|list| list.len() as i32).collect();
    }
    let of = |list: &Vec<(i32, i32)>| {
        let column = |x: &(i32, i32)| if name == "src_rank" { x.0 } else { x.1 };
        let mut values: Vec<i32> = list.iter().map(column).collect();
        // What is behind the last row must not matter.
        values.resize(64, 1);
        values
    };
    rows.iter().flat_map(of).collect()
}

/// Runs a plan and compares.
pub fn outcome(
    case: &Case,
    plan: &Plan,
    tables: &MakeTable,
    options: &Options,
) -> Result<RunReport, String> {
    let (report, data) = run(plan, tables, options);
    let report = report.map_err(|e| e.to_string())?;
    let launches = options.launches as usize * plan.mesh.size() as usize;
    assert_eq!(data.outputs.len(), launches, "every launch of every rank has its output read");
    compare::check(&data, case.output, &*case.reference, WHOLE, TILE)?;
    Ok(report)
}

pub fn schedules(plan: &Plan) -> Vec<Schedule> {
    Schedule::all(plan.mesh.size() as usize)
}

fn right_under_every_schedule(name: &str, tables: &MakeTable, seeds: u64) {
    let (case, plan) = (case(name), plan(name));
    let (mut runs, mut steps, mut drift) = (0, 0, 0);
    for schedule in schedules(&plan) {
        for seed in 0..seeds {
            let options = Options { schedule, seed, ..Options::default() };
            let report = outcome(&case, &plan, tables, &options)
                .unwrap_or_else(|e| panic!("{name} under {schedule}, seed {seed}: {e}"));
            runs += 1;
            steps += report.steps;
            drift = drift.max(report.max_drift);
        }
    }
    println!("{name}: {runs} runs, {steps} steps, ranks up to {drift} epochs apart");
}

#[test]
fn gather_gemm() {
    right_under_every_schedule("gather_gemm", &no_tables, 2);
}

#[test]
fn gemm_reduce_scatter() {
    right_under_every_schedule("gemm_reduce_scatter", &no_tables, 5);
}

#[test]
fn moe_dispatch() {
    for routing in [
        Routing::Random,
        Routing::Empty,
        Routing::AllOnOne,
        Routing::NothingToRank0,
        Routing::Mixed,
    ] {
        let tables = move |e, r, n: &str| route(routing, e, r, n);
        right_under_every_schedule("moe_dispatch", &tables, 3);
        right_under_every_schedule("moe_dispatch_capacity", &tables, 3);
    }
}

#[test]
fn ring_attention_registers() {
    right_under_every_schedule("ring_attention_registers", &no_tables, 4);
}

#[test]
fn ring_attention_scratch() {
    right_under_every_schedule("ring_attention_scratch", &no_tables, 4);
}

#[test]
fn two_nodes_nic() {
    right_under_every_schedule("two_nodes_nic", &no_tables, 5);
}

#[test]
fn one_seed_is_one_run() {
    let plan = plan("two_nodes_nic");
    for schedule in schedules(&plan) {
        let options = Options { schedule, seed: 7, ..Options::default() };
        let (first, a) = run(&plan, &no_tables, &options);
        let (second, b) = run(&plan, &no_tables, &options);
        assert_eq!(first, second, "{schedule}");
        for (key, tensor) in &a.outputs {
            assert_eq!(tensor.values, b.outputs[key].values, "{schedule}");
        }
    }
}

#[test]
fn every_schedule_gives_the_same_bits() {
    let plan = plan("gemm_reduce_scatter");
    let reference = run(&plan, &no_tables, &Options::default()).1;
    for schedule in schedules(&plan) {
        let options = Options { schedule, seed: 3, ..Options::default() };
        let (_, data) = run(&plan, &no_tables, &options);
        for (key, tensor) in &reference.outputs {
            assert_eq!(tensor.values, data.outputs[key].values, "{schedule}");
        }
    }
}
