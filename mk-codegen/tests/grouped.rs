//! Products of ragged rows: their plans, proofs, what becomes of them without an edge, and numbers on the executor.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use mk_codegen::{
    emit::{self, library},
    passes::{self, LowerError, compile},
    plan::{BufId, FamId, Leaf, Plan, Space, TabId, Tabulate, Tabulation},
    settings::{self, Config},
    sim::{self, Callbacks, Options},
    valid,
};
use mk_syntax::{Bound, Program};
use proptest::prelude::*;
use std::collections::BTreeMap;

const ALONE: &str =
    "fn grouped(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
    ragged(x, counts) -> grouped_gemm(w)
}";
/// A vector for each expert.
const BIASED: &str =
    "fn biased(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), w: bf16[E, K, N] @ shard(0), b: bf16[E, N] @ shard(0)) {
    ragged(x, counts) -> grouped_gemm(w) -> bias(b) -> silu
}";
/// Vectors before gates, which are saved with them, and of results.
const GATE_BIAS: &str =
    "fn biased(x: bf16[R, K], counts: i32[E], w1: bf16[E, K, 2, F], b1: bf16[E, 2, F], w2: bf16[E, F, K], b2: bf16[E, K]) {
    let h = ragged(x, counts) -> grouped_gemm(w1) -> bias(b1);
    (h -> swiglu -> grouped_gemm(w2) -> bias(b2), h)
}";
/// Matrices that lie as `torch.nn.Linear` has them.
const TURNED: &str =
    "fn turned(x: bf16[R, K], counts: i32[E], w1: bf16[E, 2, F, K], w2: bf16[E, K, F]) {
    ragged(x, counts) -> grouped_gemm(w1.t) -> swiglu -> grouped_gemm(w2.t)
}";
const EXPERTS: &str =
    "fn experts(x: bf16[R, K], counts: i32[E], w1: bf16[E, K, 2, F], w2: bf16[E, F, K]) {
    ragged(x, counts) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2)
}";

fn bound(source: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

fn plan(source: &str, dims: &[(&str, u64)], ranks: u32, set: &str) -> Result<Plan, LowerError> {
    let (program, bound) = bound(source, dims);
    let mut config = Config { ranks, ..Config::default() };
    settings::read(&mut config, set).expect("settings");
    compile(&program, &bound, &config).map(|(plan, _)| plan)
}

const SMALL: &[(&str, u64)] = &[("R", 768), ("K", 72), ("E", 4), ("N", 136)];
const LAYER: &[(&str, u64)] = &[("R", 512), ("K", 72), ("E", 3), ("F", 136)];

#[test]
fn texts() {
    for (name, source, dims, ranks, set) in [
        ("grouped_alone", ALONE, SMALL, 2, ""),
        ("grouped_layer", EXPERTS, LAYER, 1, ""),
        ("grouped_bias", BIASED, SMALL, 2, ""),
        ("grouped_gate_bias", GATE_BIAS, LAYER, 1, ""),
        ("grouped_turned", TURNED, LAYER, 1, ""),
        ("grouped_small_tiles", ALONE, SMALL, 1, "block=64x128x64 group_m=2"),
    ] {
        let plan = plan(source, dims, ranks, set).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
        insta::assert_snapshot!(name, text);
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("cuda_{name}"), generated);
    }
}

/// A number for an element: small, and a multiple of a power of two, so that sums are exact.
fn number(seed: u64, i: usize) -> f32 {
    let mut x =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 31;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((x >> 40) % 17) as f32 / 8.0 - 1.0
}

/// Rows of each expert, of so many blocks: by turns even, all in one, few, and none.
fn counts(turn: usize, experts: usize, blocks: usize) -> Vec<i32> {
    let mut left = blocks;
    (0..experts)
        .map(|e| {
            let wanted = match turn % 5 {
                0 => blocks / experts * 128,
                1 if e == turn / 5 % experts => blocks * 128,
                1 | 4 => 0,
                2 => (37 * e + 1) % 128,
                _ => 131 * (e % 2),
            };
            let room = left * 128;
            let n = wanted.min(room);
            left -= n.div_ceil(128);
            n as i32
        })
        .collect()
}

/// Runs launches with counts that change, and compares all rows that experts have with sums in f64.
fn right(source: &str, dims: &[(&str, u64)], ranks: u32, set: &str) {
    let mut schedules = sim::Schedule::all(ranks as usize);
    // Ranks have nothing to do with each other.
    schedules.truncate(if ranks < 4 { schedules.len() } else { 2 });
    right_with(source, dims, ranks, set, &schedules, &|turn, experts, blocks| {
        counts(turn, experts, blocks)
    });
}

/// The same, with rows of experts of this form: by turn, experts, and blocks that there is room for.
fn right_with(
    source: &str,
    dims: &[(&str, u64)],
    ranks: u32,
    set: &str,
    schedules: &[sim::Schedule],
    counts: &dyn Fn(usize, usize, usize) -> Vec<i32>,
) {
    let plan = plan(source, dims, ranks, set).unwrap_or_else(|e| panic!("{source}: {e}"));
    let by_name = |name: &str| plan.buffers.iter().find(|(_, b)| b.name == name).map(|(id, _)| id);
    let seed = |epoch: i64, rank: usize, id: BufId| {
        (epoch as u64) << 32 ^ (rank as u64) << 16 ^ u64::from(id.to_string().as_bytes()[3])
    };
    let is_counts = |id: BufId| plan.tables.values().any(|t| t.stored == Some(id));
    let rows_of = |epoch: i64, rank: usize, experts: usize, blocks: usize| {
        counts(epoch as usize + 3 * rank, experts, blocks)
    };
    let out = plan.buffers.iter().find(|(_, b)| b.space == Space::Out).expect("a result").0;
    for schedule in schedules.iter().copied() {
        let mut given: BTreeMap<(i64, usize, BufId), Vec<f32>> = BTreeMap::new();
        let mut found = Vec::new();
        let blocks = dims[0].1 as usize / ranks as usize / 128;
        let input = |epoch: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
            let n = shape.iter().product();
            let values: Vec<f32> = match is_counts(id) {
                true => rows_of(epoch, rank, n, blocks).into_iter().map(|n| n as f32).collect(),
                false => (0..n).map(|i| number(seed(epoch, rank, id), i)).collect(),
            };
            given.insert((epoch, rank, id), values.clone());
            values
        };
        let table = |_: i64, _: usize, id: TabId| panic!("{id} is the caller's tensor");
        let output = |epoch: i64, rank: usize, id: BufId, shape: &[usize], values: &[f32]| {
            if id == out {
                found.push((epoch, rank, shape.to_vec(), values.to_vec()));
            }
        };
        let options = Options { schedule, seed: 7, launches: 4, check: true, ..Options::default() };
        sim::run(&plan, &mut Callbacks { input, table, output }, &options)
            .unwrap_or_else(|e| panic!("{source} under {schedule}: {e}"));
        assert_eq!(found.len(), 4 * ranks as usize);
        for (epoch, rank, shape, values) in found {
            let tensor = |name: &str| &given[&(epoch, rank, by_name(name).expect("a tensor"))];
            let rows = tensor("counts").iter().map(|n| *n as usize).collect::<Vec<_>>();
            let width = shape[1];
            let mut at = 0;
            let mut written = vec![false; shape[0]];
            for (e, n) in rows.iter().enumerate() {
                for row in at..at + n {
                    written[row] = true;
                    let want = expert(&tensor, e, row, width);
                    for (j, (want, size)) in want.into_iter().enumerate() {
                        let got = f64::from(values[row * width + j]);
                        let off = (got - want).abs();
                        assert!(off <= size / 256.0, "{row} {j}: {got}, not {want}");
                    }
                }
                at += n.div_ceil(128) * 128;
            }
            for (row, written) in written.into_iter().enumerate().filter(|(_, written)| !written) {
                let untouched = values[row * width..][..width].iter().all(|x| x.is_nan());
                assert!(untouched, "row {row} of nobody is written: {written}");
            }
        }
    }
}

/// A row through its expert, and for each sum that of its contributions' sizes.
fn expert<'t>(
    tensor: &impl Fn(&str) -> &'t Vec<f32>,
    e: usize,
    row: usize,
    width: usize,
) -> Vec<(f64, f64)> {
    let product = |x: &[f64], w: &[f32], columns: usize| -> Vec<(f64, f64)> {
        let at = |k: usize, j: usize| f64::from(w[(e * x.len() + k) * columns + j]);
        let sum = |j: usize| {
            let terms = x.iter().enumerate().map(|(k, x)| x * at(k, j));
            terms.fold((0.0, 0.0), |(sum, size), x: f64| (sum + x, size + x.abs()))
        };
        (0..columns).map(sum).collect()
    };
    let depth = 72;
    let x: Vec<f64> = tensor("x")[row * depth..][..depth].iter().map(|x| f64::from(*x)).collect();
    if width == 136 {
        return product(&x, tensor("w"), width);
    }
    let h = product(&x, tensor("w1"), 2 * 136);
    let (gate, up) = h.split_at(136);
    let gated = |((g, _), (u, _)): (&(f64, f64), &(f64, f64))| g / (1.0 + (-g).exp()) * u;
    let h: Vec<f64> = gate.iter().zip(up).map(gated).collect();
    product(&h, tensor("w2"), width)
}

#[test]
fn numbers() {
    for ranks in drawn::some([1, 2, 3, 4, 8], 3) {
        let (rows, experts) = if ranks < 4 { (768, 4) } else { (256, 2) };
        let (rows, experts) = (rows * u64::from(ranks), experts * u64::from(ranks));
        let dims = [("R", rows), ("K", 72), ("E", experts), ("N", 136)];
        right(ALONE, &dims, ranks, "");
    }
    right(ALONE, SMALL, 1, "block=64x128x64");
}

#[test]
fn two_products() {
    // Between the products rows are bf16.
    right(EXPERTS, LAYER, 1, "");
}

/// Every wait, and every post that somebody waits for, is needed; and so is what looks up a block before it.
#[test]
fn nothing_can_be_left_out() {
    let plan = plan(EXPERTS, LAYER, 1, "").expect("a plan");
    let mut n = 0;
    for (id, f) in plan.families.iter() {
        for i in 0..f.waits.len() {
            let mut less = plan.clone();
            less.families[id].waits.remove(i);
            assert!(valid::verify(&less).is_err(), "{}: wait {i}", f.name);
            n += 1;
        }
        for i in 0..f.posts.len() {
            let mut less = plan.clone();
            less.families[id].posts.remove(i);
            assert!(valid::verify(&less).is_err(), "{}: post {i}", f.name);
            n += 1;
        }
        for i in (0..f.accesses.len()).filter(|i| f.accesses[*i].operand.name() == "tab") {
            let mut less = plan.clone();
            less.families[id].accesses.remove(i);
            let failure = valid::verify(&less).expect_err("no look-up");
            assert!(failure.to_string().contains("no access `tab`"), "{failure}");
            let mut other = plan.clone();
            other.families[id].accesses[i].region[0].0 = 0.into();
            let failure = valid::verify(&other).expect_err("another entry");
            assert!(
                failure.to_string().contains("which no access `tab` of the task reads"),
                "{failure}"
            );
            n += 1;
        }
    }
    assert_eq!(n, 7);
}

/// A wait that looks something up comes behind the look-up, and cannot be what orders it.
#[test]
fn waits_that_look_up_order_no_look_up() {
    let mut plan = plan(ALONE, SMALL, 1, "").expect("a plan");
    let gemm = plan.families.iter().find(|(_, f)| f.name == "gemm").expect("gemm").0;
    let of_block =
        plan.families[gemm].accesses.iter().find(|a| a.operand.name() == "a").expect("a");
    let rows = of_block.region[0].1.clone();
    plan.families[gemm].waits[0].index[0] = rows.clone() - rows;
    let failure = valid::verify(&plan).expect_err("a look-up before its wait");
    assert!(failure.violations.iter().any(|v| v.rule() == 1), "{failure}");
}

#[test]
fn what_has_no_kernel_is_refused() {
    let says = |source: &str, dims: &[(&str, u64)], ranks: u32, set: &str| {
        plan(source, dims, ranks, set).map_or_else(|e| e.to_string(), |_| "a plan".into())
    };
    let with = |name: &str, n: u64| -> Vec<(&str, u64)> {
        SMALL.iter().map(|d| if d.0 == name { (d.0, n) } else { *d }).collect()
    };
    for (text, dims, ranks, set) in [
        ("whole blocks of 128", with("R", 700), 1, ""),
        ("whole blocks of 128", with("R", 896), 2, ""),
        ("4 experts over 3 ranks", with("R", 1152), 3, ""),
        ("multiples of 8", with("N", 131), 1, ""),
        ("ragged rows have no tiles of 256 x 128", SMALL.to_vec(), 1, "block=256x128x64"),
        ("ragged rows have no tiles of 128 x 96", SMALL.to_vec(), 1, "block=128x96x64"),
    ] {
        let said = says(ALONE, &dims, ranks, set);
        assert!(said.contains(text), "{said}");
    }
    let two = "fn f(x: bf16[R, K], c: i32[E], d: i32[E], w: bf16[E, K, K]) {
        let h = ragged(x, c) -> grouped_gemm(w);
        h -> ragged(d) -> grouped_gemm(w)
    }";
    let dims = [("R", 256), ("K", 64), ("E", 2)];
    let said = says(two, &dims, 1, "");
    assert!(said.contains("its rows are not those of the product before it"), "{said}");
}

/// Counts that a launch cannot have end a run with what is wrong.
#[test]
fn too_many_rows() {
    let plan = plan(ALONE, SMALL, 1, "").expect("a plan");
    for (each, says) in [(200.0, "take 8 blocks, and it has 6"), (-1.0, "is outside 0..=768")] {
        let input =
            |_: i64, _: usize, _: BufId, shape: &[usize]| vec![each; shape.iter().product()];
        let table = |_: i64, _: usize, _: TabId| Vec::new();
        let output = |_: i64, _: usize, _: BufId, _: &[usize], _: &[f32]| {};
        let error = sim::run(&plan, &mut Callbacks { input, table, output }, &Options::default());
        let error = error.expect_err("too many").to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Plan and proof of many rows and experts are made while somebody waits.
#[test]
fn many_experts() {
    let dims = [("R", 65536), ("K", 2048), ("E", 128), ("N", 1536)];
    let begin = std::time::Instant::now();
    let plan = plan(ALONE, &dims, 8, "").expect("a plan");
    let seconds = begin.elapsed().as_secs_f64();
    println!("{} families, {seconds:.2} s", plan.families.len());
    assert!(seconds < 20.0, "{seconds}");
}

/// Matrices that blocks share stay in the cache; where most experts have one block, what is read of them leaves first.
#[test]
fn matrices_that_blocks_share_stay_in_the_cache() {
    for (blocks, once) in [(16, true), (32, true), (33, false), (72, false)] {
        let dims = [("R", 128 * blocks), ("K", 2048), ("E", 16), ("N", 1024)];
        let plan = plan(ALONE, &dims, 1, "").expect("a plan");
        let kernel = emit::emit(&plan).expect("a kernel");
        let generated = kernel.cuda.split_once(library::END).expect("the library ends").1;
        assert_eq!(generated.contains(".b_evict_first = true"), once, "{blocks} blocks");
    }
}

/// Tiles of ragged rows are those of a rule: by the blocks that there is room for, of each expert.
#[test]
fn tiles_follow_a_rule() {
    const ROUTED: &str =
        "fn f(x: bf16[R, K] @ shard(0), ids: i32[R, S] @ shard(0), g: f32[R, S] @ shard(0),
        w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0)) -> bf16[R, K] @ shard(0) {
        dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(g)
    }";
    let default = Config::default();
    for (source, rows, block, group_m) in [
        (ALONE, 2048, [128, 128, 64], Some(1)),
        (ALONE, 4096, [128, 128, 64], Some(1)),
        (ALONE, 4224, default.block, default.group_m),
        (ROUTED, 128, [128, 256, 64], Some(1)),
        (ROUTED, 8192, default.block, default.group_m),
    ] {
        let all = [("R", rows), ("K", 512), ("E", 16), ("N", 768), ("S", 8)];
        let (program, bound) = bound(source, &all[..if source == ROUTED { 5 } else { 4 }]);
        let facts = passes::facts(&program, &bound, 1).expect("a kernel");
        let config = settings::of_ragged(&default, &facts).expect("ragged rows");
        assert_eq!((config.block, config.group_m), (block, group_m), "{rows} rows");
    }
    let (program, bound) = bound("fn f(a: bf16[M, M]) { gemm(a, a) }", &[("M", 512)]);
    let facts = passes::facts(&program, &bound, 1).unwrap_or_default();
    assert_eq!(settings::of_ragged(&default, &facts), None);
}

/// A table is filled from what its line says, and as a whole.
#[test]
fn what_fills_a_table_is_what_it_says() {
    let plan = plan(ALONE, SMALL, 1, "").expect("a plan");
    let blocks = plan.families.iter().find(|(_, f)| f.name == "blocks").expect("blocks").0;
    let changes: [fn(&mut Plan, FamId); 3] = [
        |p, f| p.families[f].accesses[0].when = Some(0.into()),
        |p, f| p.families[f].accesses[1].region[0].1 = 5.into(),
        |p, f| {
            p.families[f].leaf = Leaf::Tabulate(Tabulate { of: Tabulation::Blocks { rows: 64 } })
        },
    ];
    for change in changes {
        let mut other = plan.clone();
        change(&mut other, blocks);
        let errors = other.check_structure().expect_err("another table");
        assert!(errors[0].message.starts_with("fills a table of blocks"), "{errors:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Any rows of any experts, in any room.
    #[test]
    fn any_routing(
        ranks in 1u32..4,
        blocks in 1u64..5,
        experts in 1u64..6,
        wide in any::<bool>(),
        wanted in prop::collection::vec(0i32..400, 64),
    ) {
        let given = |turn: usize, experts: usize, blocks: usize| {
            let mut left = blocks;
            let of = |e: usize| {
                let n = wanted[(turn * 5 + e) % wanted.len()] as usize;
                let n = n.saturating_sub(100).min(left * 128);
                left -= n.div_ceil(128);
                n as i32
            };
            (0..experts).map(of).collect::<Vec<_>>()
        };
        let world = u64::from(ranks);
        let dims = [("R", blocks * 128 * world), ("K", 72), ("E", experts * world), ("N", 136)];
        let set = if wide { "" } else { "block=64x128x64 group_m=2" };
        right_with(ALONE, &dims, ranks, set, &[sim::Schedule::Random, sim::Schedule::Reversed], &given);
    }
}
