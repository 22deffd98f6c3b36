//! Attention of packed sequences on the executor against f64, forward and backward: documents of every form, with
//! lengths and numbers at random, windows and caps, heads, types, on ranks that have heads of their own, or parts of the
//! sequence, with and without a ring, or which they exchange for heads.
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
const SECONDS: u64 = 4;

/// What is computed, of what a rank has, over a ring, and between exchanges of heads for parts of the sequence; `WORDS`
/// are those behind the operands.
const PARTS: [&[&str]; 3] = [
    &[
        "let o = attention(q, k, vWORDS); (o, o -> lse)",
        "let o = ring(k, v) -> attention(qWORDS); (o, o -> lse)",
        "let x = k -> all_to_all(split = 2, concat = 1); let y = v -> all_to_all(split = 2, concat = 1); \
         q -> all_to_all(split = 2, concat = 1) -> attention(x, yWORDS) -> all_to_all(split = 1, concat = 2)",
    ],
    &["attention_dq(q, do, stats, k, vWORDS)", "ring(k, v) -> attention_dq(q, do, statsWORDS)"],
    &[
        "let dk = attention_dk(k, v, q, do, statsWORDS); (dk, dk -> attention_dv)",
        "let dk = ring(q, do, stats) -> attention_dk(k, vWORDS); (dk, dk -> attention_dv)",
    ],
];

/// Placements of queries, and of keys and values, and which form of a part that is.
const PLACED: [([&str; 2], usize); 6] = [
    (["replicate"; 2], 0),
    (["shard(2)"; 2], 0),
    (["shard(1)", "replicate"], 0),
    (["shard(1)"; 2], 1),
    (["zigzag(1)"; 2], 1),
    (["shard(1)"; 2], 2),
];

/// Heads of queries and of keys of each rank, and elements of a head.
const HEADS: [[u64; 3]; 6] =
    [[1, 1, 64], [1, 1, 128], [2, 1, 64], [4, 2, 64], [1, 1, 192], [2, 1, 256]];

const RANKS: [u32; 5] = [1, 2, 3, 4, 8];

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
    placed: usize,
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
        // Wide heads take their time, and so do many: a case of 400 tokens of 32 heads took three minutes.
        let [heads, _, wide] = self.heads;
        let most = 6400 / (heads * u64::from(self.ranks) * wide / 64);
        let tokens = tokens.min(if wide > 128 { most.min(160) } else { most });
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
        let ([at, kv], form) = PLACED[self.placed];
        let turned = match at {
            "shard(1)" => "shard(2)",
            "shard(2)" => "shard(1)",
            "zigzag(1)" => "zigzag(2)",
            other => other,
        };
        let more = match self.part {
            0 => String::new(),
            _ => format!(", do: {t}[B, T, H, D] @ {at}, stats: f32[B, H, T, 4] @ {turned}"),
        };
        let words = format!("{}, cu_seqlens = cu", self.mask.replace('W', &window.to_string()));
        // Sinks of the forward, with every other form of documents.
        let sinks = self.part == 0 && FORMS.iter().position(|f| *f == self.documents) < Some(3);
        let of_heads = if at == "shard(2)" || form == 2 { "shard(0)" } else { "replicate" };
        let (words, given) = match sinks {
            true => (format!("{words}, sinks = s"), format!(", s: f32[H] @ {of_heads}")),
            false => (words, String::new()),
        };
        let body = PARTS[self.part][form].replace("WORDS", &words);
        let narrow = format!("{t}[B, T, G, D] @ {kv}");
        format!(
            "fn f(q: {t}[B, T, H, D] @ {at}{more}, k: {narrow}, v: {narrow}, cu: i32[N]{given}) {{ {body} }}"
        )
    }

    /// Lowers, proves, evaluates, runs and judges.
    fn check(&self, seed: u64) {
        let [tokens, entries, window] = self.drawn(&mut SmallRng::seed_from_u64(seed));
        let text = self.text(window);
        let place = || format!("{self:?}, {tokens} tokens, {entries} numbers, {text}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let (placed, form) = PLACED[self.placed];
        let of_heads = placed[0] == "shard(2)" || form == 2;
        let each = if of_heads { u64::from(self.ranks) } else { 1 };
        let [h, g, d] = [self.heads[0] * each, self.heads[1] * each, self.heads[2]];
        let batch = 1 + seed % 2;
        let dims = [("B", batch), ("T", tokens), ("N", entries), ("H", h), ("G", g), ("D", d)];
        let dims: BTreeMap<_, _> = dims.map(|(n, v)| (n.to_string(), v)).into();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let passed_on = form > 0 && self.ranks > 1;
        let config = Config {
            ranks: self.ranks,
            compute_sms: Some(3),
            intra_comm_sms: passed_on.then_some(2),
            copy_stages: 4,
            ..Config::default()
        };
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
    let placed = (0..PLACED.len()).flat_map(|placed| RANKS.map(|ranks| (placed, ranks)));
    // Whole tensors are for one rank.
    let placed = placed.filter(|(placed, ranks)| (*placed == 0) == (*ranks == 1));
    let parts = placed.flat_map(|p| (0..PARTS.len()).map(move |part| (part, p)));
    for (part, (placed, ranks)) in parts.filter(|(part, (p, _))| PLACED[*p].1 < PARTS[*part].len())
    {
        for (heads, dtype) in HEADS.iter().flat_map(|h| ["bf16", "f16"].map(|t| (*h, t))) {
            for (documents, mask) in FORMS.iter().flat_map(|f| MASKS.map(|m| (*f, m))) {
                out.push(Packed { part, placed, heads, ranks, dtype, documents, mask });
            }
        }
    }
    out
}

#[test]
fn documents() {
    sweep::run("packed attentions", all(), SECONDS, |case, seed| case.check(seed));
}
