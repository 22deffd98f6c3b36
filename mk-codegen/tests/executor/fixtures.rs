//! Every fixture, under every schedule and several seeds, gives the numbers of the dense reference.

use crate::{
    compare::{self, Reference},
    dense, drawn,
    harness::{Data, MakeTable, no_tables, plan, plan_text, run},
};
use mk_codegen::{
    plan::Plan,
    sim::{Options, RunReport, Schedule},
    valid,
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
    for schedule in drawn::some(schedules(&plan), 2) {
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

/// On a network that keeps order a word of the receiver's may travel behind its data: the sender posts it.
#[test]
fn two_nodes_with_flags_behind_the_data() {
    let text = plan_text("two_nodes_nic").replace("nic unordered", "nic in_order");
    for after in ["nic_posted", "nic_delivered", "nic_flushed"] {
        let by = format!("by sender after {after} scope sys at end");
        let flags = text.replace("by receiver after nic_flushed scope sys at end", &by);
        assert_ne!(flags, text);
        let plan: Plan = flags.parse().expect("a plan");
        valid::verify(&plan).expect("it verifies");
        let case = case("two_nodes_nic");
        for schedule in schedules(&plan) {
            for seed in 0..5 {
                let options = Options { schedule, seed, ..Options::default() };
                outcome(&case, &plan, &no_tables, &options)
                    .unwrap_or_else(|e| panic!("after {after}, {schedule}, seed {seed}: {e}"));
            }
        }
    }
}

/// Hosts raise the words of one epoch before those of the next: the sender, which waits for nobody, is launches ahead, and the
/// network brings the later command first.
#[test]
fn a_word_of_a_later_epoch_stands_for_no_earlier_one() {
    let plan: Plan = SLOTS.parse().expect("a plan");
    let mut drift = 0;
    for schedule in schedules(&plan) {
        for seed in 0..20 {
            let options =
                Options { schedule, seed, launches: 6, check: true, ..Options::default() };
            let report = run(&plan, &no_tables, &options).0;
            let report = report.unwrap_or_else(|e| panic!("{schedule}, seed {seed}: {e}"));
            drift = drift.max(report.max_drift);
        }
    }
    assert!(drift >= 1, "the sender runs ahead");
}

/// Rank 0 sends four rows to rank 1, each epoch into a slot of its own, as long as there are any: it waits for no hand-back.
const SLOTS: &str = r#"
plan "slots"
mesh world=2
target sm_90a
nic unordered fifo=4
buffer buf0 "a" in bf16[4, 8]
buffer buf1 "slots" workspace bf16[8, 4, 8]
buffer buf2 "out" out bf16[4, 8]
buffer buf3 "send" workspace bf16[8, 4, 8]
signal sig0 "arrived" [1]
signal sig1 "staged" [1]
role role0 intra_comm ctas 1
role role1 inter_send ctas 1

family fam0 "stage" role0 {
  leaf copy_tile via=bulk stages=2
  for i in 1
  edge e0 full
  edge e1 empty
  access src: read buf0 @ rank [0 : 4, 0 : 8] at start
  access dst: write buf3 @ rank [epoch % 8 : 1, 0 : 4, 0 : 8] at end
  post e3 sig1[0] @ rank += 1 by storer after global_write_done scope sys at end
}

family fam1 "send" role1 {
  leaf nic_send
  for i in 1 - rank
  edge e4 fifo
  edge e5 immediate
  access src: read buf3 @ rank [epoch % 8 : 1, 0 : 4, 0 : 8] at start
  access dst: write buf1 @ 1 [epoch % 8 : 1, 0 : 4, 0 : 8] at end
  wait e6 sig1[0] >= 1 by issuer for host scope sys at start
  post e9 sig0[0] @ 1 += 1 by receiver after nic_flushed scope sys at end
}

family fam2 "take" role0 {
  leaf copy_tile via=bulk stages=2
  for i in rank
  edge e10 full
  edge e11 empty
  access src: read buf1 @ rank [epoch % 8 : 1, 0 : 4, 0 : 8] at start
  access dst: write buf2 @ rank [0 : 4, 0 : 8] at end
  wait e12 sig0[0] >= 1 by loader for async scope sys at start
}

family fam3 "own" role0 {
  leaf copy_tile via=bulk stages=2
  for i in 1 - rank
  edge e14 full
  edge e15 empty
  access src: read buf0 @ rank [0 : 4, 0 : 8] at start
  access dst: write buf2 @ rank [0 : 4, 0 : 8] at end
}
"#;

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
