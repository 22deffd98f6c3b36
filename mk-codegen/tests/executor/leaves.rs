//! Leaves and idioms that no fixture has: epilogues, a split k loop, in-place reads of a caller's tensor, the copy engine,
//! accumulation, repeated copies, an ordered network.

use crate::{
    compare::{self, Reference},
    drawn,
    fixtures::{TILE, WHOLE, case, outcome, schedules},
    harness::{Data, MakeTable, no_tables, plan, plan_with, plan_without, run},
};
use mk_codegen::{
    plan::Plan,
    sim::{Options, Schedule},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// The first failure of a plan, of 6 seeds under each of these schedules.
fn failure(
    plan: &Plan,
    output: &str,
    reference: &Reference,
    schedules: impl IntoIterator<Item = Schedule>,
) -> Option<String> {
    failure_with(plan, &no_tables, &[(output, reference)], schedules)
}

fn failure_with(
    plan: &Plan,
    tables: &MakeTable,
    outputs: &[(&str, &Reference)],
    schedules: impl IntoIterator<Item = Schedule>,
) -> Option<String> {
    for schedule in schedules {
        for seed in 0..6 {
            let options = Options { schedule, seed, launches: 4, ..Options::default() };
            let (report, data) = run(plan, tables, &options);
            let compared = match report {
                Ok(_) => outputs.iter().try_for_each(|(output, reference)| {
                    let checked = compare::check(&data, output, *reference, WHOLE, TILE);
                    checked.map_err(|e| format!("{output}: {e}"))
                }),
                Err(e) => Err(e.to_string()),
            };
            if let Err(e) = compared {
                return Some(format!("{schedule}, seed {seed}: {e}"));
            }
        }
    }
    None
}

fn right(text: &str, output: &str, reference: &Reference) {
    let plan: Plan = text.parse().expect("a plan");
    let some = drawn::some(schedules(&plan), 2);
    assert_eq!(failure(&plan, output, reference, some), None);
}

fn values(data: &Data, epoch: i64, rank: usize, name: &str) -> Vec<f64> {
    data.input(epoch, rank, name).values.iter().map(|x| f64::from(*x)).collect()
}

const EPILOGUE: &str = r#"
plan "epilogue"
mesh world=1
target sm_90a
dim dim0 M = 70
dim dim1 K = 80
dim dim2 N = 24
buffer buf0 "a" in bf16[M, K]
buffer buf1 "b" in bf16[N, K]
buffer buf2 "bias" in bf16[N]
buffer buf3 "y" in bf16[M, N]
buffer buf4 "z" in bf16[M, N]
buffer buf5 "out" out f32[M, N]
role role0 compute ctas 2

family fam0 "gemm" role0 {
  leaf mma_tile block=64x64x32 stages=2 b=nk store=direct epilogue=EPILOGUE
  for i in 2
  inner k in 3
  edge e0 full
  edge e1 empty
  edge e2 staged
  edge e3 drained
  access a: read buf0 @ rank [i * 64 : min(64, M - i * 64), k * 32 : min(32, K - k * 32)] at inner
  access b: read buf1 @ rank [0 : N, k * 32 : min(32, K - k * 32)] at inner
OPERANDS
  access c: write buf5 @ rank [i * 64 : min(64, M - i * 64), 0 : N] at end
}
"#;

/// Checks an epilogue against a function of (product, bias, y, z).
fn epilogue(ops: &str, operands: &[&str], f: fn(f64, f64, f64, f64) -> f64) {
    let lines: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(i, buffer)| {
            let region =
                if *buffer == "buf2" { "0 : N" } else { "i * 64 : min(64, M - i * 64), 0 : N" };
            format!("  access e{i}: read {buffer} @ rank [{region}] at end")
        })
        .collect();
    let text =
        EPILOGUE.replace("=EPILOGUE", &format!("={ops}")).replace("OPERANDS", &lines.join("\n"));
    let reference = move |d: &Data, e: i64, r: usize| {
        let [a, b, bias, y, z] = ["a", "b", "bias", "y", "z"].map(|name| values(d, e, r, name));
        let product = |i: usize, j: usize| (0..80).map(|l| a[i * 80 + l] * b[j * 80 + l]).sum();
        let one = |at: usize| f(product(at / 24, at % 24), bias[at % 24], y[at], z[at]);
        (0..70 * 24).map(|at| Some(one(at))).collect()
    };
    right(&text, "out", &reference);
}

/// By midpoint integration: nothing in common with the executor's series.
fn normal(x: f64) -> f64 {
    let n = 2000;
    let h = x / f64::from(n);
    let sum: f64 = (0..n).map(|i| (-((f64::from(i) + 0.5) * h).powi(2) / 2.0).exp()).sum();
    0.5 + sum * h / std::f64::consts::TAU.sqrt()
}

#[test]
fn epilogues() {
    epilogue("bias,gelu", &["buf2"], |c, bias, _, _| (c + bias) * normal(c + bias));
    epilogue("silu,mul", &["buf3"], |c, _, y, _| c / (1.0 + (-c).exp()) * y);
    epilogue("scale:0x3f000000,add,mul", &["buf3", "buf4"], |c, _, y, z| (0.5 * c + y) * z);
    epilogue("bias,round_bf16,relu,round_f16", &["buf2"], |c, bias, _, _| (c + bias).max(0.0));
}

const IN_PLACE: &str = r#"
plan "in_place"
mesh world=3
target sm_90a
buffer buf0 "a" in shared bf16[8, 16]
buffer buf1 "out" out bf16[24, 16]
signal sig0 "entered" [3]
signal sig1 "read" [3]
role role0 prologue ctas 0
role role1 intra_comm ctas 2
role role2 epilogue ctas 0

family fam0 "enter" role0 {
  leaf enter
  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 3
}

family fam1 "pull" role1 {
  leaf copy_tile via=ldst stages=1
  for p in 3
  access src: read buf0 @ p [0 : 8, 0 : 16] at start
  access dst: write buf1 @ rank [p * 8 : 8, 0 : 16] at end
  wait e1 sig0[p] >= 1 by copier for generic scope sys at start
  post e2 sig1[rank] @ p += 1 by copier after program_order scope sys at end
}

family fam2 "leave" role2 {
  leaf signal
  wait e3 sig1[p] >= 1 by lead for generic scope sys at start each p in 3
}
"#;

#[test]
fn a_kernel_whose_input_peers_read_leaves_last() {
    let all = |d: &Data, e: i64, _: usize| {
        (0..3).flat_map(|p| values(d, e, p, "a")).map(Some).collect::<Vec<_>>()
    };
    right(IN_PLACE, "out", &all);
    for line in ["wait e1", "wait e3"] {
        let text: Vec<_> = IN_PLACE.lines().filter(|l| !l.contains(line)).collect();
        let plan: Plan = text.join("\n").parse().expect("a plan");
        let found = failure(&plan, "out", &all, schedules(&plan))
            .unwrap_or_else(|| panic!("without {line}: nothing shows"));
        println!("in_place, without {line}: {found}");
    }
}

const ENGINE: &str = r#"
plan "engine"
mesh world=2
target sm_90a
buffer buf0 "a" in f32[8, 16]
buffer buf1 "b" in f32[8, 16]
buffer buf2 "got" workspace f32[2, 8, 16]
buffer buf3 "sum" scratch f32[8, 16]
buffer buf4 "out" out f32[24, 16]
signal sig0 "entered" [2]
signal sig1 "arrived" [2]
signal sig2 "added" [2]
role role0 prologue ctas 0
role role1 compute ctas 2
role role2 copy_engine ctas 0

family fam0 "enter" role0 {
  leaf enter
  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 2
}

family fam1 "send" role2 {
  leaf host_copy
  for p in 2
  access src: read buf0 @ rank [0 : 8, 0 : 16] at start
  access dst: write buf2 @ p [rank : 1, 0 : 8, 0 : 16] at end
  wait e1 sig0[p] >= 1 by engine for host scope sys at start
  post e2 sig1[rank] @ p += 1 by engine after program_order scope sys at end
}

// The sum of both ranks, in order of ranks.
family fam2 "sum" role1 {
  leaf reduce_tile
  access src: read buf2 @ rank [s : 1, 0 : 8, 0 : 16] at start each s in 2
  access dst: write buf3 @ rank [0 : 8, 0 : 16] at end
  wait e3 sig1[s] >= 1 by copier for generic scope sys at start each s in 2
  post e4 sig2[0] @ rank += 1 by copier after program_order scope gpu at end
}

family fam3 "add" role1 {
  leaf copy_tile via=bulk stages=1
  edge e5 full
  edge e6 empty
  access src: read buf1 @ rank [0 : 8, 0 : 16] at start
  access dst: accumulate buf3 @ rank [0 : 8, 0 : 16] at end
  wait e7 sig2[0] >= 1 by storer for async scope gpu at start
  post e8 sig2[1] @ rank += 1 by storer after global_write_done scope gpu at end
}

family fam4 "out" role1 {
  leaf copy_tile via=ldst stages=1
  access src: read buf3 @ rank [0 : 8, 0 : 16] at start
  access dst: write buf4 @ rank [0 : 8, 0 : 16] at end
  wait e9 sig2[1] >= 1 by copier for generic scope gpu at start
}

// Rows in reverse: source and destination repeat together.
family fam5 "reverse" role1 {
  leaf copy_tile via=ldst stages=1
  access src: read buf1 @ rank [q : 1, 0 : 16] at start each q in 8
  access dst: write buf4 @ rank [15 - q : 1, 0 : 16] at end each q in 8
}

// Rows together: only the source repeats.
family fam6 "collect" role1 {
  leaf copy_tile via=ldst stages=1
  access src: read buf0 @ rank [7 - q : 1, 0 : 16] at start each q in 8
  access dst: write buf4 @ rank [16 : 8, 0 : 16] at end
}
"#;

#[test]
fn copy_engine_sums_and_repeated_copies() {
    right(ENGINE, "out", &|d, e, r| {
        let (a, b) = (values(d, e, r, "a"), values(d, e, r, "b"));
        let [a0, a1] = [0, 1].map(|p| values(d, e, p, "a"));
        let sum = (0..128).map(|i| a0[i] + a1[i] + b[i]);
        let turned = |x: &[f64]| x.chunks(16).rev().collect::<Vec<_>>().concat();
        sum.chain(turned(&b)).chain(turned(&a)).map(Some).collect()
    });
}

#[test]
fn an_ordered_network() {
    let plan = plan_with("two_nodes_nic", "nic unordered fifo=2", "nic in_order fifo=1");
    for seed in 0..5 {
        for schedule in [Schedule::Random, Schedule::Srd, Schedule::Reversed] {
            let options = Options { schedule, seed, ..Options::default() };
            outcome(&case("two_nodes_nic"), &plan, &no_tables, &options).expect("right");
        }
    }
}

/// Counts that fit into two blocks, and which rows are whose.
fn of_slots(epoch: i64, rank: usize, name: &str) -> Vec<i32> {
    let mut rng = SmallRng::seed_from_u64((epoch * 16) as u64 + rank as u64);
    let mut below = |n: i32, of: usize| (0..of).map(|_| rng.random_range(0..n)).collect();
    match name {
        "counts" => {
            let turns = [[5, 128], [200, 0], [0, 37], [256, 0], [0, 0]];
            turns[(epoch as usize + 2 * rank) % turns.len()].to_vec()
        }
        "tokens" => below(10, 256),
        "place" => below(256, 20),
        "slots" => below(2, 256),
        _ => below(2, 20),
    }
}

/// Results of a row with its weight: gradients of gates and ups, what the activation makes, and the weight's gradient.
fn gated_row(d: &Data, e: i64, r: usize, row: usize) -> Option<([Vec<f64>; 2], f64)> {
    let blocks = d.table(e, r, "counts").iter().flat_map(|n| {
        let n = *n as usize;
        (0..n.div_ceil(128)).map(move |b| (n - b * 128).min(128))
    });
    blocks.into_iter().nth(row / 128).filter(|n| row % 128 < *n)?;
    let [u, h, gate] = ["u", "h", "gate"].map(|name| values(d, e, r, name));
    let slot = |name: &str| d.table(e, r, name)[row] as usize;
    let g = gate[slot("tokens") * 2 + slot("slots")];
    let (u, h) = (&u[row * 24..][..24], &h[row * 48..][..48]);
    let s = |x: f64| 1.0 / (1.0 + (-x).exp());
    let of = |f: &dyn Fn(f64, f64, f64) -> f64| -> Vec<f64> {
        (0..24).map(|j| f(u[j], h[j], h[24 + j])).collect()
    };
    let of_gates = of(&|u, x, up| g * u * up * s(x) * (1.0 + x * (1.0 - s(x))));
    let of_ups = of(&|u, x, _| g * u * x * s(x));
    let weighted = of(&|_, x, up| g * x * s(x) * up);
    Some(([[of_gates, of_ups].concat(), weighted], of(&|u, x, up| u * x * s(x) * up).iter().sum()))
}

#[test]
fn gated_rows_and_elements_alone() {
    let rows = |of: usize, columns: usize| {
        move |d: &Data, e: i64, r: usize| {
            let row = |row| match gated_row(d, e, r, row) {
                Some((made, _)) => made[of].iter().copied().map(Some).collect(),
                None => vec![None; columns],
            };
            (0..256).flat_map(row).collect::<Vec<_>>()
        }
    };
    let picked = |d: &Data, e: i64, r: usize| {
        let slot = |i: usize, name: &str| d.table(e, r, name)[i] as usize;
        let one = |i| match slot(i, "kept") {
            0 => 0.0,
            _ => gated_row(d, e, slot(i, "from"), slot(i, "place")).map_or(0.0, |row| row.1),
        };
        (0..20).map(|i| Some(one(i))).collect::<Vec<_>>()
    };
    let (of_gates, weighted) = (rows(0, 48), rows(1, 24));
    let outputs: [(&str, &Reference); 3] =
        [("dh", &of_gates), ("weighted", &weighted), ("dgate", &picked)];
    let whole = plan("swiglu_grad");
    let some = drawn::some(schedules(&whole), 2);
    assert_eq!(failure_with(&whole, &of_slots, &outputs, some), None);
    for line in ["wait e2", "wait e4", "wait e6", "wait e8", "post e3", "post e7"] {
        let plan = plan_without("swiglu_grad", line);
        let found = failure_with(&plan, &of_slots, &outputs, schedules(&plan))
            .unwrap_or_else(|| panic!("without {line}: nothing shows"));
        println!("swiglu_grad, without {line}: {}", found.lines().next().unwrap_or(""));
    }
}
