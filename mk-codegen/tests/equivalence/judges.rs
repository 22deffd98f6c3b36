//! The executor beside the field: what either says of mutants that the verifier accepts.

use crate::drawn;
use crate::mutate::{Mutant, mutants};
use mk_abi::DType;
use mk_codegen::{
    equivalence::{self, FieldError, Options},
    passes::lower,
    plan::{BufId, Plan, TabId},
    settings::{AllReduce, Config, Consumers, Gather, LastWave, NicOrdering, Reduction},
    sim::{self, Callbacks},
    valid,
};
use mk_syntax::{Bound, Placement, Program};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

/// A pipeline with small tensors, of which some tiles are square, and a strategy for it.
pub struct Small {
    pub name: &'static str,
    pub source: &'static str,
    pub ranks: u32,
    pub shapes: &'static [(&'static str, &'static [u64])],
    pub set: fn(&mut Config),
}

const fn small(
    name: &'static str,
    source: &'static str,
    ranks: u32,
    shapes: &'static [(&'static str, &'static [u64])],
    set: fn(&mut Config),
) -> Small {
    Small { name, source, ranks, shapes, set }
}

const AB: &[(&str, &[u64])] = &[("a", &[300, 128]), ("b", &[128, 256])];
const MLP: &[(&str, &[u64])] = &[("x", &[150, 64]), ("w1", &[64, 256]), ("w2", &[256, 128])];

pub const SMALL: &[Small] = &[
    small("gather_gemm", "gather(a) -> gemm(b) -> bias(c) -> gelu", 3, &[("a", &[300, 128]), ("b", &[128, 256]), ("c", &[256])], |_| ()),
    small("scatter", "gemm(a, b) -> scale(0.5) -> reduce_scatter", 2, AB, |_| ()),
    small("all", "gemm(a, b) -> all_reduce", 3, AB, |_| ()),
    small("one_shot", "gemm(a, b) -> all_reduce", 2, AB, |c| c.all_reduce = AllReduce::OneShot),
    small("by_columns", "gemm(a, b) -> all_reduce", 2, AB, |c| c.all_reduce = AllReduce::ByColumns),
    small("ring", "gemm(a, b) -> reduce_scatter", 3, &[("a", &[390, 192]), ("b", &[192, 128])], |c| {
        (c.reduction, c.group_m) = (Reduction::Ring, Some(1));
    }),
    small("split", "gemm(a, b) -> reduce_scatter", 2, &[("a", &[256, 512]), ("b", &[512, 128])], |c| {
        (c.reduction, c.split_k) = (Reduction::AfterLastWave, 2);
    }),
    small("mlp", "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter", 2, MLP, |_| ()),
    small("slices", "gather(a) -> gemm(b)", 2, AB, |c| c.k_slices = 2),
    small("tail", "gather(a) -> gemm(b)", 2, &[("a", &[400, 128]), ("b", &[128, 256])], |c| {
        (c.consumers, c.k_slices) = (Consumers::PingPong, 2);
        c.last_wave = Some(LastWave { blocks: 1, columns: 64, parts: 1 });
    }),
    small(
        "rows",
        "fn f(x: e4m3[M, K] scaled(1, K) @ shard(0), w: e4m3[N, K] scaled(1, K)) { gather(x) -> gemm(w.t) }",
        2,
        &[("x", &[300, 256]), ("w", &[200, 256])],
        |_| (),
    ),
    small(
        "blocks",
        "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(0), w: e4m3[N, K] scaled(128, 128) @ shard(0)) { gather(x) -> gemm(w.t) }",
        2,
        &[("x", &[300, 304]), ("w", &[512, 304])],
        |_| (),
    ),
    small(
        "blocks_summed",
        "fn f(x: e4m3[M, K] scaled(1, 128) @ shard(1), w: e4m3[N, K] scaled(128, 128) @ shard(1)) { gemm(x, w.t) -> reduce_scatter }",
        2,
        &[("x", &[200, 512]), ("w", &[264, 512])],
        |_| (),
    ),
    small("engine", "gather(a) -> gemm(b)", 2, AB, |c| c.gather = Gather::CopyEngine { parts: 2 }),
    small(
        "swiglu",
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), y: bf16[M, F] @ shard(1)) {
             let h = gather(x) -> gemm(w);
             (h -> swiglu -> mul(y), h)
         }",
        2,
        &[("x", &[200, 64]), ("w", &[64, 2, 256])],
        |_| (),
    ),
    small(
        "swiglu_grad",
        "fn f(dy: bf16[M, K] @ shard(0), w: bf16[F, K] @ shard(0), h: bf16[M, 2, F] @ shard(2)) {
             gather(dy) -> gemm(w.t) -> swiglu_grad(h)
         }",
        2,
        &[("dy", &[200, 64]), ("w", &[256, 64])],
        |_| (),
    ),
    small(
        "turned",
        "fn f(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0)) { gemm(x.t, dy) -> cast(f32) -> all_reduce }",
        2,
        &[("x", &[256, 128]), ("dy", &[256, 128])],
        |_| (),
    ),
    small(
        "residual",
        "fn f(a: bf16[M, K] @ shard(1), b: bf16[K, N] @ shard(0), y: bf16[M, N] @ shard(0), z: bf16[M, N] @ shard(0)) {
             gemm(a, b) -> reduce_scatter -> mul(y) -> add(z)
         }",
        2,
        AB,
        |_| (),
    ),
    small(
        "ring_attention",
        "fn f(q: bf16[1, S, 2, 64] @ shard(1), k: bf16[1, S, 1, 64] @ shard(1), v: bf16[1, S, 1, 64] @ shard(1)) {
             let o = ring(k, v) -> attention(q, causal);
             (o, o -> lse)
         }",
        3,
        &[("q", &[1, 144, 2, 64])],
        // Blocks are about products.
        |c| c.block = Config::default().block,
    ),
    small("nodes", "gather(a) -> gemm(b)", 4, AB, |c| c.nodes = 2),
    small("nodes_all", "gemm(a, b) -> all_reduce", 4, AB, |c| {
        (c.nodes, c.net) = (2, NicOrdering::Unordered);
    }),
    small(
        "two",
        "fn f(x: bf16[M, K] @ shard(0), wq: bf16[K, N] @ shard(1), wk: bf16[K, N] @ shard(1)) {
             let whole = gather(x);
             (whole -> gemm(wq), whole -> gemm(wk) -> silu)
         }",
        2,
        &[("x", &[200, 128]), ("wq", &[128, 256])],
        |_| (),
    ),
    small(
        "gradients_of_keys",
        "fn f(q: bf16[1, S, 2, 64] @ shard(1), do: bf16[1, S, 2, 64] @ shard(1), stats: f32[1, 2, S, 4] @ shard(2),
              k: bf16[1, S, 1, 64] @ shard(1), v: bf16[1, S, 1, 64] @ shard(1)) {
             let dk = ring(q, do, stats) -> attention_dk(k, v, causal);
             (dk, dk -> attention_dv)
         }",
        2,
        &[("q", &[1, 300, 2, 64])],
        |c| c.block = Config::default().block,
    ),
    small("few_rows", "gather(a) -> gemm(b)", 3, &[("a", &[144, 128]), ("b", &[128, 256])], |_| ()),
];

impl Small {
    pub fn made(&self) -> (Program, Bound, Plan) {
        let program = Program::parse(self.source).expect("parses");
        let shapes = self.shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec()));
        let bound = program.bind(&BTreeMap::new(), &shapes.collect()).expect("binds");
        let mut config = Config { ranks: self.ranks, block: [128, 128, 64], ..Config::default() };
        (self.set)(&mut config);
        let plan = lower(&program, &bound, &config)
            .unwrap_or_else(|e| panic!("{} is lowered: {e}", self.name));
        (program, bound, plan)
    }
}

type Outputs = BTreeMap<(usize, BufId), Vec<f32>>;

/// Runs a plan; what all ranks have of a tensor that is not sharded is the same on all.
fn outputs(plan: &Plan, program: &Program) -> Option<Outputs> {
    let mut outputs = Outputs::new();
    let input = |_: i64, rank: usize, b: BufId, shape: &[usize]| {
        let name = &plan.buffers[b].name;
        let tensor = program.tensor(name).expect("a tensor");
        let whole = tensor.ty.placement[0] == Placement::Replicate;
        let seed = (tensor.id.index() as u64) << 8 | if whole { 0 } else { rank as u64 + 1 };
        let mut rng = SmallRng::seed_from_u64(seed);
        let one = |_| DType::Bf16.round(rng.random_range(-1.0..1.0));
        (0..shape.iter().product()).map(one).collect()
    };
    let table = |_: i64, _: usize, _: TabId| Vec::new();
    let output = |_: i64, rank: usize, b: BufId, _: &[usize], values: &[f32]| {
        outputs.insert((rank, b), values.to_vec());
    };
    let options = sim::Options { launches: 1, ..sim::Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options).ok()?;
    Some(outputs)
}

/// Whether a plan runs to its end, whatever it computes.
pub fn runs(plan: &Plan) -> bool {
    let input =
        |_: i64, _: usize, _: BufId, shape: &[usize]| vec![0.5; shape.iter().product::<usize>()];
    let table = |_: i64, _: usize, _: TabId| Vec::new();
    let output = |_: i64, _: usize, _: BufId, _: &[usize], _: &[f32]| {};
    let options = sim::Options { launches: 1, ..sim::Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options).is_ok()
}

/// Whether results differ by more than other orders of sums and other roundings explain.
fn differ(a: &Outputs, b: &Outputs) -> bool {
    let near = |x: f32, y: f32| (x - y).abs() <= 0.06 * (1.0 + x.abs());
    // A NaN is near nothing.
    let far = |(x, y): (&f32, &f32)| !near(*x, *y);
    a.len() != b.len() || a.iter().zip(b).any(|((k, x), (l, y))| k != l || x.iter().zip(y).any(far))
}

/// What came of the mutants of a plan.
#[derive(Default, Debug)]
pub struct Score {
    /// The verifier refuses them.
    pub refused: usize,
    /// The executor shows that they are wrong, and the field refuses them.
    pub wrong: usize,
    /// Neither finds anything.
    pub equal: usize,
    /// The field refuses them, and the executor's numbers are too near to tell.
    pub near: Vec<String>,
    /// The executor shows that they are wrong, and the field accepts them.
    pub missed: Vec<String>,
}

pub fn judge(case: &Small, take: impl Fn(usize, &Mutant) -> bool, score: &mut Score) {
    let (program, bound, plan) = case.made();
    let right = outputs(&plan, &program).expect("it runs");
    for (_, m) in mutants(&plan).into_iter().enumerate().filter(|(i, m)| take(*i, m)) {
        let Ok(proof) = valid::verify(&m.plan) else {
            score.refused += 1;
            continue;
        };
        let name = format!("{}: {}", case.name, m.name);
        let options = Options { period: proof.period, ..Options::default() };
        let found = equivalence::evaluate(&m.plan, &program, &bound, &options);
        let wrong = outputs(&m.plan, &program).is_none_or(|o| differ(&right, &o));
        match (found, wrong) {
            (Err(_), true) => score.wrong += 1,
            (Ok(_), false) => score.equal += 1,
            (Err(e), false) => score.near.push(format!("{name}: {e}")),
            (Ok(_), true) => score.missed.push(name),
        }
    }
}

#[test]
fn mutants_that_verify_and_are_wrong_are_rejected() {
    let mut score = Score::default();
    let share = if drawn::whole() { 1 } else { 9 };
    let first = drawn::seed() as usize;
    for case in SMALL {
        let before = score.wrong;
        judge(case, |i, _| (i + first).is_multiple_of(share), &mut score);
        println!("{}: {} wrong", case.name, score.wrong - before);
    }
    let Score { refused, wrong, equal, near, missed } = &score;
    println!(
        "{refused} refused by the verifier, {wrong} wrong, {equal} equal, {} near",
        near.len()
    );
    println!("{}", near.join("\n"));
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
    assert!(*wrong > 100 / (2 * share - 1), "only {wrong} mutants were wrong");
}

#[test]
fn a_wrong_plan_is_described() {
    let rejected = |case: &Small, from: &str, to: &str| {
        let (program, bound, plan) = case.made();
        let text = plan.to_string();
        assert!(text.contains(from), "no `{from}` in\n{text}");
        let mutant: Plan = text.replacen(from, to, 1).parse().expect("a plan");
        match equivalence::evaluate(&mutant, &program, &bound, &Options::default()) {
            Err(FieldError::Wrong(wrong)) => wrong.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let shard = (
        "access a: read buf4 @ rank [(rank + (s + 1)) % 3",
        "access a: read buf4 @ rank [(rank + (2 - s)) % 3",
    );
    let texts = [
        rejected(&SMALL[0], shard.0, shard.1),
        rejected(&SMALL[0], "bias,gelu", "bias,silu"),
        rejected(
            &SMALL[1],
            "at start each s in 2\n  access dst",
            "at start each s in 1\n  access dst",
        ),
    ];
    insta::assert_snapshot!(texts.join("\n\n"));
}
