//! Attention with windows, capped scores and sinks, on the executor against f64: every world, placement, part of the backward,
//! number of heads and type, with windows and lengths at random.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides; `cargo xtask sweep attention`
//! takes all of them. `MK_SEED` repeats an order.

mod sweep;

use mk_codegen::{passes::compile, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_syntax::Program;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

/// What is computed, over a ring and of what a rank has; `WORDS` are those behind the operands.
const PARTS: [[&str; 2]; 3] = [
    [
        "let o = ring(k, v) -> attention(qWORDS); (o, o -> lse)",
        "let o = attention(q, k, vWORDS); (o, o -> lse)",
    ],
    ["ring(k, v) -> attention_dq(q, do, statsWORDS)", "attention_dq(q, do, stats, k, vWORDS)"],
    [
        "let dk = ring(q, do, stats) -> attention_dk(k, vWORDS); (dk, dk -> attention_dv)",
        "let dk = attention_dk(k, v, q, do, statsWORDS); (dk, dk -> attention_dv)",
    ],
];

/// Placements of queries, and of keys and values, and whether they are a ring's.
const PLACED: [([&str; 2], bool); 6] = [
    (["shard(1)"; 2], true),
    (["zigzag(1)"; 2], true),
    (["replicate"; 2], false),
    (["shard(1)", "replicate"], false),
    (["zigzag(1)", "replicate"], false),
    (["shard(2)"; 2], false),
];

/// Heads of queries and of keys, of each rank that has heads of its own, and elements of a head of both and of values.
const HEADS: [[u64; 4]; 7] = [
    [1, 1, 64, 64],
    [1, 1, 128, 128],
    [2, 1, 64, 64],
    [4, 2, 64, 64],
    [1, 1, 192, 192],
    [2, 1, 192, 128],
    [2, 1, 256, 256],
];

const RANKS: [u32; 5] = [1, 2, 3, 4, 8];

#[derive(Clone, Copy, Debug)]
struct Attention {
    part: usize,
    placed: usize,
    heads: [u64; 4],
    ranks: u32,
    dtype: &'static str,
    /// Of a whole launch; a window is drawn for it.
    windowed: bool,
    capped: bool,
    /// Of the forward.
    sinks: bool,
}

impl Attention {
    /// A length that no tile divides, or one that all do, and a window that ends within or between them.
    fn drawn(&self, rng: &mut SmallRng) -> ([u64; 2], Option<u64>) {
        let tokens = match rng.random_range(0..4) {
            0 => 128 * rng.random_range(1..4),
            1 => rng.random_range(1..40),
            _ => rng.random_range(40..400),
        };
        // Wide heads take their time.
        let tokens = if self.heads[2] > 128 { tokens.min(160) } else { tokens };
        let window = match rng.random_range(0..4) {
            0 => 1,
            1 => 64 * rng.random_range(1..4),
            2 => rng.random_range(1..=2 * tokens),
            _ => rng.random_range(1..=tokens),
        };
        // What a ring passes on is as long as what it meets.
        let keys = match rng.random_range(0..3) {
            0 if !PLACED[self.placed].1 => rng.random_range(1..400),
            1 if !PLACED[self.placed].1 => tokens + rng.random_range(0..200),
            _ => tokens,
        };
        ([tokens, keys], self.windowed.then_some(window))
    }

    fn text(&self, [tokens, keys]: [u64; 2], window: Option<u64>) -> String {
        let ([q, kv], ring) = PLACED[self.placed];
        let (t, turned) = (
            self.dtype,
            match q {
                "shard(1)" => "shard(2)",
                "shard(2)" => "shard(1)",
                "zigzag(1)" => "zigzag(2)",
                other => other,
            },
        );
        let more = match self.part {
            0 => String::new(),
            _ => format!(", do: {t}[B, S, H, E] @ {q}, stats: f32[B, H, S, 4] @ {turned}"),
        };
        let mut words = match window {
            Some(n) => format!(", causal, window = {n}"),
            // Lengths say where keys are.
            None if tokens != keys => ", causal".into(),
            None => String::new(),
        };
        if self.capped {
            words += ", softcap = 1.5";
        }
        let mut given = String::new();
        if self.sinks {
            words += ", sinks = s";
            given =
                format!(", s: f32[H] @ {}", if q == "shard(2)" { "shard(0)" } else { "replicate" });
        }
        let body = PARTS[self.part][usize::from(!ring)].replace("WORDS", &words);
        let s = if ring { "S" } else { "T" };
        let [k, v] = ["D", "E"].map(|wide| format!("{t}[B, {s}, G, {wide}] @ {kv}"));
        format!("fn f(q: {t}[B, S, H, D] @ {q}{more}, k: {k}, v: {v}{given}) {{ {body} }}")
    }

    /// Lowers, proves, evaluates, runs and judges.
    fn check(&self, seed: u64) {
        let (lengths @ [tokens, keys], window) = self.drawn(&mut SmallRng::seed_from_u64(seed));
        let text = self.text(lengths, window);
        let place = || format!("{self:?}, {tokens} and {keys} tokens, {text}");
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", place()));
        let each = if PLACED[self.placed].0[0] == "shard(2)" { u64::from(self.ranks) } else { 1 };
        let [h, g, d, e] = self.heads;
        let [h, g] = [h * each, g * each];
        let dims = [("B", 1), ("S", tokens), ("T", keys), ("H", h), ("G", g), ("D", d), ("E", e)];
        let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
        let dims: BTreeMap<_, _> = dims.map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let passed_on = PLACED[self.placed].1 && self.ranks > 1;
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
        let schedule = Schedule::Random;
        let options = CpuOptions { schedule, seed, launches: 1, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).unwrap_or_else(|e| panic!("{}: {e}", place()));
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(judged.passes(), "{}, rank {rank}: {judged}", place());
        }
    }
}

fn all() -> Vec<Attention> {
    let mut out = Vec::new();
    for (part, placed, ranks) in (0..PARTS.len())
        .flat_map(|part| (0..PLACED.len()).map(move |placed| (part, placed)))
        .flat_map(|(part, placed)| RANKS.map(|ranks| (part, placed, ranks)))
    {
        for (heads, dtype) in HEADS.iter().flat_map(|h| ["bf16", "f16"].map(|t| (*h, t))) {
            let plain = [(true, false), (false, true), (true, true)].map(|(w, c)| (w, c, false));
            let sunk = [(false, false), (true, false), (true, true)].map(|(w, c)| (w, c, true));
            // Gradients of sums with sinks are those of sums without.
            let sunk = sunk.iter().filter(|_| part == 0);
            for (windowed, capped, sinks) in plain.iter().chain(sunk).copied() {
                out.push(Attention { part, placed, heads, ranks, dtype, windowed, capped, sinks });
            }
        }
    }
    out
}

#[test]
fn windows_and_caps() {
    sweep::run("attentions", all(), SECONDS, |case, seed| case.check(seed));
}
