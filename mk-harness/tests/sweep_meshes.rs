//! Pipelines over two axes of a mesh, proved, and run on the executor against f64: every mesh, form, setting and type,
//! of sizes at random.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides; `cargo xtask sweep meshes`
//! takes all of them. `MK_SEED` repeats an order.

mod sweep;

use mk_codegen::{
    emit,
    passes::{LowerError, compile},
    settings::{AllReduce, Block, Config, NicOrdering, Reduction},
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use mk_syntax::Program;
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Seconds that CI spends here.
const SECONDS: u64 = 3;
const SECONDS_OF_ATTENTION: u64 = 2;
const SECONDS_OF_EXPERTS: u64 = 2;

/// Parameters, what is computed of them, and the extents of which ranks along an axis must have as many each, because a
/// collective over the other axis moves their parts.
type Form = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const ROWS: &str =
    "a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[K, N] @ shard(1, tp) @ shard(0, dp)";
const TOKENS: &str = "x: bf16[T, M] @ shard(0, dp), d: bf16[T, N] @ shard(0, dp) @ shard(1, tp)";
const LAYER: &str = "x: bf16[M, K] @ shard(0, dp), w: bf16[K, N] @ shard(1, tp), d: bf16[M, N] @ shard(0, dp) @ shard(1, tp)";

/// Rows that both axes share are as many in each shard over the outer one.
const TWICE: &str = "x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp)";
const MLP: &str = "x: bf16[M, K] @ shard(0, dp) @ shard(0, tp), w: bf16[K, N] @ shard(1, tp), v: bf16[N, F] @ shard(0, tp)";

const FORMS: [Form; 13] = [
    (ROWS, "gather(a, tp) -> gemm(b) -> reduce_scatter(dp)", &[("K", "dp"), ("N", "tp")]),
    (ROWS, "gather(a, tp) -> gemm(b) -> all_reduce(dp)", &[("K", "dp"), ("N", "tp")]),
    (
        ROWS,
        "let x = gather(a, tp); (x -> gemm(b) -> reduce_scatter(dp), x)",
        &[("K", "dp"), ("N", "tp")],
    ),
    (ROWS, "gather(a, tp) -> gemm(b) -> all_reduce(dp) -> silu", &[("K", "dp"), ("N", "tp")]),
    (TOKENS, "gemm(x.t, d) -> reduce_scatter(dp)", &[("N", "tp")]),
    (TOKENS, "gemm(x.t, d) -> all_reduce(dp)", &[("N", "tp")]),
    (
        "x: bf16[T, M] @ shard(0, dp) @ shard(1, tp), d: bf16[T, N] @ shard(0, dp)",
        "gemm(x.t, d) -> all_reduce(dp)",
        &[("M", "tp")],
    ),
    // Sums over either axis in one kernel: the backward of a layer.
    (
        LAYER,
        "(gemm(d, w.t) -> all_reduce(tp), gemm(x.t, d) -> all_reduce(dp))",
        &[("M", "dp"), ("N", "tp")],
    ),
    (TWICE, "gather(x, tp) -> gemm(w)", &[("M", "dp")]),
    (TWICE, "let h = gather(x, tp); (h -> gemm(w) -> silu, h)", &[("M", "dp")]),
    (
        MLP,
        "gather(x, tp) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter(tp)",
        &[("M", "dp"), ("N", "tp")],
    ),
    (
        LAYER,
        "(gemm(d, w.t) -> reduce_scatter(tp), gemm(x.t, d) -> reduce_scatter(dp))",
        &[("M", "dp"), ("N", "tp")],
    ),
    (
        "a: bf16[M, K] @ shard(0, tp) @ shard(1, dp), b: bf16[M, K] @ shard(1, tp) @ partial(dp)",
        "(gather(a, tp), b -> all_reduce(dp))",
        &[("K", "dp"), ("K", "tp")],
    ),
];

/// Either innermost, of as many ranks and of more, of one rank.
const MESHES: [[(&str, u32); 2]; 10] = [
    [("tp", 2), ("dp", 2)],
    [("dp", 2), ("tp", 2)],
    [("tp", 2), ("dp", 3)],
    [("dp", 3), ("tp", 2)],
    [("tp", 3), ("dp", 3)],
    [("tp", 4), ("dp", 2)],
    [("dp", 4), ("tp", 2)],
    [("dp", 2), ("tp", 3)],
    [("tp", 1), ("dp", 2)],
    [("dp", 1), ("tp", 3)],
];

/// Nodes of a mesh: one; or its outer axis is over nodes, of either ordering in turn.
fn nodes(mesh: &[(&str, u32); 2], turn: usize) -> Vec<(u32, NicOrdering)> {
    let net = [NicOrdering::InOrder, NicOrdering::Unordered][turn % 2];
    let several = mesh.iter().all(|(_, n)| *n > 1);
    [(1, NicOrdering::InOrder)].into_iter().chain(several.then_some((mesh[0].1, net))).collect()
}

const BLOCKS: [Block; 3] = [[128, 64, 64], [128, 128, 64], [128, 256, 64]];

#[derive(Clone, Copy, Debug)]
struct TwoAxes {
    form: usize,
    mesh: [(&'static str, u32); 2],
    dtype: &'static str,
    block: Block,
    all_reduce: Option<AllReduce>,
    reduction: Reduction,
    nodes: (u32, NicOrdering),
}

impl TwoAxes {
    /// Of few blocks, whole or not, the last ranks perhaps without rows.
    fn extent(&self, name: &str, rng: &mut SmallRng) -> u64 {
        let along = |axis: &str| {
            let found = self.mesh.iter().find(|(name, _)| *name == axis);
            found.map_or(1, |(_, n)| u64::from(*n))
        };
        let even = FORMS[self.form].2.iter().filter(|(dim, _)| *dim == name);
        let unit: u64 = even.map(|(_, axis)| along(axis)).product();
        let n: u64 = match rng.random_range(0..4) {
            0 => 128 * rng.random_range(1..4),
            // Every rank has tokens.
            1 if name != "T" => rng.random_range(1..40),
            _ => rng.random_range(40..400),
        };
        // Rows of K and N are of whole 16 bytes, and all that are messages.
        let whole = matches!(name, "K" | "N") || name == "F" && self.nodes.0 > 1;
        let step = if whole { 8 } else { 1 };
        n.div_ceil(unit * step) * unit * step
    }

    /// Lowers, proves, evaluates, emits, runs and judges.
    fn check(&self, seed: u64) {
        let (params, body, _) = FORMS[self.form];
        let text = format!("fn f({params}) {{ {body} }}").replace("bf16", self.dtype);
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let rng = &mut SmallRng::seed_from_u64(seed);
        let sizes = program.symbols().iter();
        let sizes = sizes.map(|s| (s.name.clone(), self.extent(&s.name, rng))).collect();
        let place = || format!("{self:?}, {sizes:?}, {text}");
        let bound = program.bind(&sizes, &Default::default()).expect("binds");
        let mesh: Vec<_> = self.mesh.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        let ranks = mesh.iter().map(|(_, n)| n).product();
        let plain = Config::default();
        let config = Config {
            ranks,
            mesh,
            // Of collectives alone there are no tiles.
            block: if body.contains("gemm") { self.block } else { plain.block },
            compute_sms: body.contains("gemm").then_some(3),
            copy_stages: 4,
            all_reduce: self.all_reduce.unwrap_or(plain.all_reduce),
            reduction: self.reduction,
            nodes: self.nodes.0,
            net: self.nodes.1,
            ..plain
        };
        let plan = match compile(&program, &bound, &config) {
            Ok((plan, _)) => plan,
            // Memory of all ranks, which are on several nodes.
            Err(LowerError::Setting(refusal)) if self.all_reduce.is_some() => {
                assert!(
                    refusal.setting == "all_reduce" && config.nodes > 1,
                    "{}: {refusal}",
                    place()
                );
                return;
            }
            Err(e) => panic!("{}: {e}", place()),
        };
        emit::emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let schedule = Schedule::Random;
        let options = CpuOptions { schedule, seed, launches: 1, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{}: {e}", place()));
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(judged.passes(), "{}, rank {rank}: {judged}", place());
        }
    }
}

fn all() -> Vec<TwoAxes> {
    let mut out = Vec::new();
    for (form, (_, body, _)) in FORMS.iter().enumerate() {
        let multiplies = body.contains("gemm");
        let mut ways = vec![(None, Reduction::default())];
        if multiplies && body.contains("all_reduce") {
            ways.extend(
                [AllReduce::OneShot, AllReduce::ByColumns].map(|w| (Some(w), Reduction::default())),
            );
        }
        if multiplies && body.contains("reduce_scatter") {
            ways.push((None, Reduction::AfterLastWave));
        }
        for (mesh, (all_reduce, reduction)) in
            MESHES.iter().flat_map(|m| ways.iter().map(move |w| (*m, *w)))
        {
            for (dtype, block) in ["bf16", "f16"].iter().flat_map(|t| BLOCKS.map(|b| (*t, b))) {
                let case =
                    |nodes| TwoAxes { form, mesh, dtype, block, all_reduce, reduction, nodes };
                out.extend(nodes(&mesh, out.len() / 2).into_iter().map(case));
            }
        }
    }
    out
}

#[test]
fn two_axes() {
    sweep::run("pipelines over two axes", all(), SECONDS, |case, seed| case.check(seed));
}

const INTO: &str = "let h = q -> all_to_all(up, split = 2, concat = 1);
    let x = k -> all_to_all(up, split = 2, concat = 1); let y = v -> all_to_all(up, split = 2, concat = 1); ";
const OPERANDS: &str =
    "q: bf16[B, S, H, D] @ AT, k: bf16[B, S, G, D] @ AT, v: bf16[B, S, G, D] @ AT";
const GRADIENTS: &str = "q: bf16[B, S, H, D] @ AT, k: bf16[B, S, G, D] @ AT, v: bf16[B, S, G, D] @ AT, \
    d: bf16[B, S, H, D] @ AT, stats: f32[B, H, S, 4] @ TURNED";

/// What is computed of which parameters, and the placements of these.
const ATTENTION: [(&str, &str, &[&str]); 6] = [
    (
        OPERANDS,
        "ring(x, y, cp) -> attention(h, MASK) -> all_to_all(up, split = 1, concat = 2)",
        &["shard(1, cp) @ shard(1, up)"],
    ),
    (
        OPERANDS,
        "let o = ring(x, y, cp) -> attention(h, MASK); (o, o -> lse)",
        &["shard(1, cp) @ shard(1, up)"],
    ),
    // One exchange, along the other axis ranks have heads or sequences of their own.
    (
        OPERANDS,
        "attention(h, x, y, MASK) -> all_to_all(up, split = 1, concat = 2)",
        &["shard(2, cp) @ shard(1, up)", "shard(0, cp) @ shard(1, up)"],
    ),
    (
        OPERANDS,
        "let o = ring(k, v, cp) -> attention(q, MASK); (o, o -> lse)",
        &[
            "shard(1, cp) @ shard(2, up)",
            "zigzag(1, cp) @ shard(2, up)",
            "zigzag(1, cp) @ shard(0, up)",
        ],
    ),
    (
        GRADIENTS,
        "ring(k, v, cp) -> attention_dq(q, d, stats, MASK)",
        &["shard(1, cp) @ shard(2, up)", "zigzag(1, cp) @ shard(2, up)"],
    ),
    (
        GRADIENTS,
        "let dk = ring(q, d, stats, cp) -> attention_dk(k, v, MASK); (dk, dk -> attention_dv)",
        &["shard(1, cp) @ shard(2, up)", "zigzag(1, cp) @ shard(2, up)"],
    ),
];
const MASKS: [&str; 3] = ["softcap = 20", "causal", "causal, window = 50"];

/// Attention along one axis, with exchanges, or heads and sequences of their own, along the other.
#[derive(Clone, Copy, Debug)]
struct Attention {
    form: usize,
    placed: &'static str,
    mask: &'static str,
    mesh: [(&'static str, u32); 2],
    dtype: &'static str,
    nodes: (u32, NicOrdering),
}

impl Attention {
    fn check(&self, seed: u64) {
        let (params, body, _) = ATTENTION[self.form];
        let turned = |p: &str| p.replace("(1", "(*").replace("(2", "(1").replace("(*", "(2");
        let into = if body.contains("(h") { INTO } else { "" };
        let text = format!("fn f({params}) {{ {into}{body} }}").replace("bf16", self.dtype);
        let text = text
            .replace("AT,", &format!("{},", self.placed))
            .replace("AT)", &format!("{})", self.placed));
        let text = text.replace("TURNED", &turned(self.placed)).replace("MASK", self.mask);
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let rng = &mut SmallRng::seed_from_u64(seed);
        let [cp, up] = ["cp", "up"].map(|axis| {
            let found = self.mesh.iter().find(|(name, _)| *name == axis);
            found.map_or(1, |(_, n)| u64::from(*n))
        });
        // Shards over the outer axis are of one length, those over the inner one perhaps empty.
        let rows = match rng.random_range(0..3) {
            0 => rng.random_range(1..8),
            _ => rng.random_range(8..150),
        };
        let groups = if self.placed.contains("(2, cp)") { cp * up } else { up };
        let sizes = [
            (
                "B",
                if self.placed.contains("(0, up)") {
                    up
                } else if self.placed.contains("(0, cp)") {
                    cp
                } else {
                    1
                },
            ),
            ("S", if into.is_empty() || !body.contains("ring") { 2 * rows } else { cp * rows }),
            ("G", groups),
            ("H", groups * rng.random_range(1..3)),
            ("D", 64),
        ];
        let sizes = sizes.map(|(name, n)| (name.to_string(), n)).into();
        let place = || format!("{self:?}, {sizes:?}, {text}");
        let bound = program.bind(&sizes, &Default::default()).expect("binds");
        let mesh: Vec<_> = self.mesh.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        let ranks = mesh.iter().map(|(_, n)| n).product();
        let config = Config {
            ranks,
            mesh,
            nodes: self.nodes.0,
            net: self.nodes.1,
            compute_sms: Some(3),
            copy_stages: 4,
            ..Config::default()
        };
        let compiled = compile(&program, &bound, &config);
        let (plan, _) = compiled.unwrap_or_else(|e| panic!("{}: {e}", place()));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let schedule = Schedule::Random;
        let options = CpuOptions { schedule, seed, launches: 1, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{}: {e}", place()));
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(judged.passes(), "{}, rank {rank}: {judged}", place());
        }
    }
}

fn all_of_attention() -> Vec<Attention> {
    let mut out = Vec::new();
    let forms = ATTENTION
        .iter()
        .enumerate()
        .flat_map(|(form, (.., placed))| placed.iter().map(move |p| (form, *p)));
    for ((form, placed), mask) in forms.flat_map(|f| MASKS.map(|mask| (f, mask))) {
        for (mesh, dtype) in MESHES.iter().flat_map(|mesh| ["bf16", "f16"].map(|t| (*mesh, t))) {
            let named =
                |(axis, n): (&'static str, u32)| (if axis == "tp" { "up" } else { "cp" }, n);
            // An exchange is inside nodes.
            let inside =
                |(count, _): &(u32, _)| *count == 1 || form > 2 || form == 2 && mesh[1].0 == "tp";
            let case =
                |nodes| Attention { form, placed, mask, mesh: mesh.map(named), dtype, nodes };
            out.extend(nodes(&mesh, out.len() / 2).into_iter().filter(inside).map(case));
        }
    }
    out
}

#[test]
fn attention() {
    let check = |case: &Attention, seed| case.check(seed);
    sweep::run("attention over two axes", all_of_attention(), SECONDS_OF_ATTENTION, check);
}

/// First matrices and what becomes of their rows; experts that drop rows or do not.
const EXPERTS: [(&str, &str); 2] = [
    ("w1: bf16[E, H, 2, I] @ shard(0, ep) @ shard(3, tp)", "swiglu"),
    ("w1: bf16[E, H, I] @ shard(0, ep) @ shard(2, tp)", "silu"),
];

/// The gradient of weights, in place of a sum of tokens.
const GATES: &str = "gates";
const GATES_OF: &str = "fn f(a: bf16[R, I] @ shard(0, ep) @ shard(1, tp), ids: i32[T, K] @ shard(0, ep), \
    w2: bf16[E, I, H] @ shard(0, ep) @ shard(1, tp), d: bf16[T, H] @ shard(0, ep))";

/// Experts along one axis, whose matrices ranks along the other share.
#[derive(Clone, Copy, Debug)]
struct Experts {
    form: usize,
    sum: &'static str,
    drops: bool,
    mesh: [(&'static str, u32); 2],
    dtype: &'static str,
}

impl Experts {
    fn check(&self, seed: u64) {
        let ((up, curve), sum) = (EXPERTS[self.form], self.sum);
        let capacity = if self.drops { ", capacity = R, drop" } else { "" };
        let text = format!(
            "fn f(x: bf16[T, H] @ shard(0, ep), ids: i32[T, K] @ shard(0, ep), gate: f32[T, K] @ shard(0, ep), {up}, \
             w2: bf16[E, I, H] @ shard(0, ep) @ shard(1, tp)) {{ dispatch(x, ids{capacity}) -> grouped_gemm(w1) -> \
             {curve} -> grouped_gemm(w2) -> combine(gate) -> {sum}(tp) }}"
        );
        let drop = if self.drops { ", drop" } else { "" };
        let text = match sum {
            GATES => format!(
                "{GATES_OF} {{ ragged(a, ids{drop}) -> grouped_gemm(w2) -> combine_grad(d) -> all_reduce(tp) }}"
            ),
            _ => text,
        };
        let text = text.replace("bf16", self.dtype);
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let rng = &mut SmallRng::seed_from_u64(seed);
        let [ep, tp] = ["ep", "tp"].map(|axis| {
            let found = self.mesh.iter().find(|(name, _)| *name == axis);
            found.map_or(1, |(_, n)| u64::from(*n))
        });
        // Ranks along `ep` have as many tokens where those along `tp` share them, and each has an expert.
        let tokens = rng.random_range(1..60).max(ep);
        let tokens = if sum == "reduce_scatter" { tokens.next_multiple_of(ep) } else { tokens };
        let own = rng.random_range(1..4);
        let experts = own * (ep - 1) + rng.random_range(1..=own);
        let slots = rng.random_range(1..=experts.min(3));
        let sizes = [
            ("T", tokens),
            ("H", 8 * rng.random_range(1..20)),
            ("I", 8 * tp * rng.random_range(1..20)),
            ("E", experts),
            ("K", slots),
            ("R", 128 * ep * (own + if self.drops { 0 } else { (tokens * slots).div_ceil(128) })),
        ];
        let known = sizes.into_iter().filter(|(name, _)| program.symbol(name).is_some());
        let sizes = known.map(|(name, n)| (name.to_string(), n)).collect();
        let place = || format!("{self:?}, {sizes:?}, {text}");
        let mesh: Vec<_> = self.mesh.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        let ranks: u32 = mesh.iter().map(|(_, n)| n).product();
        let bound = program.bind(&sizes, &Default::default()).expect("binds");
        let sharing = program.ranks_of_experts(ranks, &mesh);
        let bound = bound.on(&program, sharing).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let config = Config { ranks, mesh, block: [128, 128, 64], ..Config::default() };
        let compiled = compile(&program, &bound, &config);
        let (plan, _) = compiled.unwrap_or_else(|e| panic!("{}: {e}", place()));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
        let routings = [Routing::Random, Routing::One, Routing::Padded, Routing::Empty];
        let routing = routings[rng.random_range(0..routings.len())];
        let options = CpuOptions {
            schedule: Schedule::Random,
            seed,
            launches: 1,
            routing,
            ..CpuOptions::default()
        };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{}: {e}", place()));
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            let right = judged.passes() || judged.judged == 0;
            assert!(right, "{}, {routing:?}, rank {rank}: {judged}", place());
        }
    }
}

fn all_of_experts() -> Vec<Experts> {
    let mut out = Vec::new();
    for (form, drops) in (0..EXPERTS.len()).flat_map(|form| [false, true].map(|d| (form, d))) {
        let sums = ["all_reduce", "reduce_scatter", GATES];
        let sums = &sums[..if form == 0 { 3 } else { 2 }];
        for (mesh, sum) in MESHES.iter().flat_map(|mesh| sums.iter().map(|sum| (*mesh, *sum))) {
            let named =
                |(axis, n): (&'static str, u32)| (if axis == "tp" { axis } else { "ep" }, n);
            let mesh = mesh.map(named);
            out.extend(["bf16", "f16"].map(|dtype| Experts { form, sum, drops, mesh, dtype }));
        }
    }
    out
}

#[test]
fn experts() {
    let check = |case: &Experts, seed| case.check(seed);
    sweep::run("experts over two axes", all_of_experts(), SECONDS_OF_EXPERTS, check);
}
