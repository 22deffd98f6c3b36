//! Attention of packed sequences on the executor against f64, forward and backward: documents of every form, with
//! lengths and numbers at random, windows and caps, heads, types, on ranks that have heads of their own.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides; `cargo xtask sweep documents`
//! takes all of them. `MK_SEED` repeats an order.

mod sweep;

use mk_codegen::{passes::compile, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, Routing, run_on_cpu};
use mk_syntax::Program;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

/// Seconds that CI spends here.
const SECONDS: u64 = 10;

/// What is computed; `WORDS` are those behind the operands.
const PARTS: [&str; 3] = [
    "let o = attention(q, k, vWORDS); (o, o -> lse)",
    "attention_dq(q, do, stats, k, vWORDS)",
    "let dk = attention_dk(k, v, q, do, statsWORDS); (dk, dk -> attention_dv)",
];

/// Heads of queries and of keys of each rank, and elements of a head.
const HEADS: [[u64; 3]; 4] = [[1, 1, 64], [1, 1, 128], [2, 1, 64], [4, 2, 64]];

/// On several ranks, heads are sharded.
const RANKS: [u32; 4] = [1, 2, 3, 8];

const FORMS: [Routing; 6] = [
    Routing::Uniform,
    Routing::Skew(8),
    Routing::One,
    Routing::Empty,
    Routing::Random,
    Routing::Padded,
];

const MASKS: [&str; 5] = [
    "",
    ", causal",
    ", causal, window = W",
    ", softcap = 1.5",
    ", causal, window = W, softcap = 1.5",
];

#[derive(Clone, Copy, Debug)]
struct Packed {
    part: usize,
    heads: [u64; 3],
    ranks: u32,
    dtype: &'static str,
    documents: Routing,
    mask: &'static str,
}

impl Packed {
    /// Tokens that no tile divides, or that all do; numbers that say where documents begin: of one, of some, of one for
    /// each token, or of none; and a window.
    fn drawn(&self, rng: &mut SmallRng) -> [u64; 3] {
        let tokens = match rng.random_range(0..4) {
            0 => 128 * rng.random_range(1..4),
            1 => rng.random_range(1..40),
            _ => rng.random_range(40..400),
        };
        let entries = match rng.random_range(0..6) {
            0 => 2,
            1 => tokens + 1,
            2 => rng.random_range(1..=2 * tokens),
            _ => rng.random_range(2..20),
        };
        [tokens, entries, rng.random_range(1..=tokens)]
    }

    fn text(&self, window: u64) -> String {
        let t = self.dtype;
        let [at, turned] = if self.ranks > 1 { ["shard(2)", "shard(1)"] } else { ["replicate"; 2] };
        let more = match self.part {
            0 => String::new(),
            _ => format!(", do: {t}[B, T, H, D] @ {at}, stats: f32[B, H, T, 4] @ {turned}"),
        };
        let words = format!("{}, cu_seqlens = cu", self.mask.replace('W', &window.to_string()));
        let body = PARTS[self.part].replace("WORDS", &words);
        let narrow = format!("{t}[B, T, G, D] @ {at}");
        format!(
            "fn f(q: {t}[B, T, H, D] @ {at}{more}, k: {narrow}, v: {narrow}, cu: i32[N]) {{ {body} }}"
        )
    }

    /// Lowers, proves, evaluates, runs and judges.
    fn check(&self, seed: u64) {
        let [tokens, entries, window] = self.drawn(&mut SmallRng::seed_from_u64(seed));
        let text = self.text(window);
        let place = || format!("{self:?}, {tokens} tokens, {entries} numbers, {text}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let each = u64::from(self.ranks);
        let [h, g, d] = [self.heads[0] * each, self.heads[1] * each, self.heads[2]];
        let batch = 1 + seed % 2;
        let dims = [("B", batch), ("T", tokens), ("N", entries), ("H", h), ("G", g), ("D", d)];
        let dims: BTreeMap<_, _> = dims.map(|(n, v)| (n.to_string(), v)).into();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let config = Config { ranks: self.ranks, compute_sms: Some(3), ..Config::default() };
        let compiled = compile(&program, &bound, &config);
        let (plan, _) = compiled.unwrap_or_else(|e| panic!("{}: {e}", place()));
        let case = Case { program: &program, bound: &bound, ranks: config.ranks as usize };
        let (schedule, routing) = (Schedule::Random, self.documents);
        let options = CpuOptions { schedule, seed, launches: 2, routing, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{}: {e}", place()));
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(judged.passes(), "{}, rank {rank}: {judged}", place());
        }
    }
}

fn all() -> Vec<Packed> {
    let mut out = Vec::new();
    for (part, ranks) in (0..PARTS.len()).flat_map(|part| RANKS.map(|ranks| (part, ranks))) {
        for (heads, dtype) in HEADS.iter().flat_map(|h| ["bf16", "f16"].map(|t| (*h, t))) {
            for (documents, mask) in FORMS.iter().flat_map(|f| MASKS.map(|m| (*f, m))) {
                out.push(Packed { part, heads, ranks, dtype, documents, mask });
            }
        }
    }
    out
}

#[test]
fn documents() {
    sweep::run("packed attentions", all(), SECONDS, |case, seed| case.check(seed));
}
