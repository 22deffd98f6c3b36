//! Pipelines of eight bits, proved, and run on the executor against f64: every form, world, type, tile and schedule, of
//! sizes at random.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides; `cargo xtask sweep fp8` takes
//! all of them. `MK_SEED` repeats an order.

mod sweep;

use mk_codegen::{
    emit,
    passes::compile,
    settings::{Block, Config},
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_syntax::Program;
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

/// Parameters, what is computed of them, and the extents of which every rank has whole blocks. `H` is of 16 bits, `E` and
/// `F` of eight. Of experts, `G` is their number, `S` of how many a token is, `R` their rows.
type Form = (&'static str, &'static str, &'static str);

const FORMS: [Form; 17] = [
    ("x: H[M, K] @ shard(0)", "x -> quantize(E, 1, 128)", ""),
    ("x: H[M, K] @ shard(1)", "let q = x -> quantize(E, 1, 128); (q, q -> dequantize)", "K"),
    ("x: E[M, K] scaled(1, 128) @ shard(0)", "x -> dequantize -> gather", ""),
    (
        "x: H[M, K] @ shard(0), w: F[N, K] scaled(128, 128) @ shard(0)",
        "let q = x -> quantize(E, 1, 128); (gather(q) -> gemm(w.t), q)",
        "N",
    ),
    (
        "x: H[M, K], w: F[N, K] scaled(1, K) @ shard(0)",
        "x -> quantize(E, 1, 128) -> gemm(w.t) -> gelu",
        "",
    ),
    (
        "x: H[M, K] @ shard(1), w: F[N, K] scaled(128, 128) @ shard(1)",
        "x -> quantize(E, 1, 128) -> gemm(w.t) -> reduce_scatter",
        "K",
    ),
    (
        "x: E[M, K] scaled(1, 128) @ shard(0), w: F[N, K] scaled(128, 128) @ shard(0)",
        "gather(x) -> gemm(w.t) -> silu",
        "N",
    ),
    (
        "x: E[M, K] scaled(1, K) @ shard(0), w: F[N, K] scaled(1, K) @ shard(0)",
        "gather(x) -> gemm(w.t)",
        "",
    ),
    (
        "x: H[M, K] @ shard(0), w: H[K, N] @ shard(1), c: H[N] @ shard(0)",
        "gather(x) -> gemm(w) -> bias(c) -> relu -> quantize(E, 1, 128)",
        "N",
    ),
    (
        "x: H[M, K] @ shard(0), w: H[K, 2, N] @ shard(2)",
        "gather(x) -> gemm(w) -> swiglu -> quantize(E, 1, 128)",
        "N",
    ),
    (
        "x: H[M, K] @ shard(0), w: H[K, 2, N] @ shard(2)",
        "let h = gather(x) -> gemm(w); (h, h -> swiglu -> quantize(E, 1, 128))",
        "N",
    ),
    (
        "x: E[M, K] scaled(1, 128) @ shard(0), w: F[N, K] scaled(128, 128) @ shard(0)",
        "gather(x) -> gemm(w.t) -> gelu -> quantize(F, 1, 128)",
        "N",
    ),
    (
        "x: E[R, K] scaled(1, 128) @ shard(0), c: i32[G] @ shard(0), w: F[G, N, K] scaled(128, 128) @ shard(0)",
        "ragged(x, c) -> grouped_gemm(w.t) -> gelu",
        "R",
    ),
    (
        "x: E[R, K] scaled(1, 128) @ shard(0), c: i32[G] @ shard(0), w: F[G, 2, N, K] scaled(128, 128) @ shard(0)",
        "let h = ragged(x, c) -> grouped_gemm(w.t); (h -> swiglu -> quantize(E, 1, 128), h)",
        "RN",
    ),
    (
        "x: E[M, K] scaled(1, 128) @ shard(0), ids: i32[M, S] @ shard(0), g: f32[M, S] @ shard(0), w: F[G, 2, N, K] \
         scaled(128, 128) @ shard(0), v: F[G, K, N] scaled(128, 128) @ shard(0)",
        "dispatch(x, ids) -> grouped_gemm(w.t) -> swiglu -> quantize(E, 1, 128) -> grouped_gemm(v.t) -> combine(g)",
        "N",
    ),
    (
        "x: H[M, K] @ shard(0), ids: i64[M, S] @ shard(0), g: f32[M, S] @ shard(0), w: F[G, N, K] \
         scaled(128, 128) @ shard(0), v: F[G, K, N] scaled(128, 128) @ shard(0)",
        "x -> quantize(E, 1, 128) -> dispatch(ids) -> grouped_gemm(w.t) -> silu -> quantize(F, 1, 128) \
         -> grouped_gemm(v.t) -> combine(g)",
        "N",
    ),
    (ALONE, "gemm(x, w.t) -> gelu", ""),
];

/// The parameters of a GEMM that the CTAs of a cluster may share.
const ALONE: &str = "x: E[M, K] scaled(1, 128), w: F[N, K] scaled(128, 128)";

/// The last one has no factors of blocks.
const BLOCKS: [Block; 4] = [[128, 128, 64], [128, 256, 64], [64, 256, 64], [256, 128, 64]];
const SCHEDULES: [Schedule; 2] = [Schedule::Random, Schedule::Reversed];

#[derive(Clone, Copy, Debug)]
struct EightBits {
    form: usize,
    ranks: u32,
    half: &'static str,
    narrow: [&'static str; 2],
    block: Block,
    schedule: Schedule,
}

impl EightBits {
    fn text(&self) -> String {
        let (params, body, _) = FORMS[self.form];
        let text = format!("fn f({params}) {{ {body} }}").replace("H[", &format!("{}[", self.half));
        let [e, f] = self.narrow;
        let of = |text: String, letter: &str, dtype: &str| {
            let text = text.replace(&format!("{letter}["), &format!("{dtype}["));
            text.replace(&format!("({letter},"), &format!("({dtype},"))
        };
        of(of(text, "E", e), "F", f)
    }

    /// Rows of any number, columns of 16; of whole blocks where ranks share them.
    fn extent(&self, name: &str, rng: &mut SmallRng) -> u64 {
        let unit = match name {
            "M" => 1,
            "S" => return rng.random_range(1..3),
            "G" => return u64::from(self.ranks) * rng.random_range(2..4),
            _ if FORMS[self.form].2.contains(name) => 128 * u64::from(self.ranks),
            _ => 16 * u64::from(self.ranks),
        };
        let n: u64 = match rng.random_range(0..4) {
            0 => 128 * rng.random_range(1..4),
            1 => rng.random_range(1..40),
            _ => rng.random_range(40..400),
        };
        n.div_ceil(unit) * unit
    }

    /// Lowers, proves, evaluates, emits, runs and judges.
    fn check(&self, seed: u64) {
        let text = self.text();
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let rng = &mut SmallRng::seed_from_u64(seed);
        // Blocks are those of the extents that they are of.
        let own = program.symbols().iter().filter(|s| s.name.len() == 1);
        let sizes = own.map(|s| (s.name.clone(), self.extent(&s.name, rng))).collect();
        let place = || format!("{self:?}, {sizes:?}, {text}");
        let bound = program.bind(&sizes, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
        let plain = Config::default();
        let multiplies = text.contains("gemm");
        let experts = text.contains("grouped");
        let steps = |k: &u64| k.div_ceil(128).min(1 + seed % 4) as u32;
        let shared = FORMS[self.form].0 == ALONE && self.block != BLOCKS[1];
        let config = Config {
            ranks: self.ranks,
            block: if multiplies { self.block } else { plain.block },
            cluster: if shared { sizes.get("K").map_or(1, steps) } else { 1 },
            compute_sms: (multiplies && !experts && !shared).then_some(3),
            chunk_bytes: if text.contains("gather") { 16 * 1024 } else { plain.chunk_bytes },
            ..plain
        };
        let compiled = compile(&program, &bound, &config);
        let (plan, _) = compiled.unwrap_or_else(|e| panic!("{}: {e}", place()));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let case = Case { program: &program, bound: &bound, ranks: self.ranks as usize };
        let options =
            CpuOptions { schedule: self.schedule, seed, launches: 1, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{}: {e}", place()));
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(judged.passes(), "{}, rank {rank}: {judged}", place());
        }
    }
}

fn all() -> Vec<EightBits> {
    let mut out = Vec::new();
    for (form, ranks) in (0..FORMS.len()).flat_map(|f| (1..=4).map(move |r| (f, r))) {
        if FORMS[form].0 == ALONE && ranks > 1 {
            continue;
        }
        let body = FORMS[form].1;
        let blocks = match () {
            () if !body.contains("gemm") => &BLOCKS[..1],
            () if body.contains("swiglu") => &BLOCKS[1..2],
            () if body.contains("grouped") => &BLOCKS[..2],
            () if FORMS[form].0.contains("128)") || body.contains("128)") => &BLOCKS[..3],
            () => &BLOCKS[..],
        };
        let narrow = [["e4m3", "e4m3"], ["e4m3", "e5m2"], ["e5m2", "e4m3"]];
        for (block, narrow) in blocks.iter().flat_map(|b| narrow.map(|n| (*b, n))) {
            for (half, schedule) in ["bf16", "f16"].iter().flat_map(|h| SCHEDULES.map(|s| (*h, s)))
            {
                out.push(EightBits { form, ranks, half, narrow, block, schedule });
            }
        }
    }
    out
}

#[test]
fn eight_bits() {
    sweep::run("pipelines of eight bits", all(), SECONDS, |case, seed| case.check(seed));
}
