//! Rings over nodes, on the executor against f64: every world, mask, placement, part of the backward, ordering and schedule.
//!
//! CI takes as many cases as fit in some seconds, in an order that the printed seed decides, each under one schedule;
//! `cargo xtask sweep nodes` takes all of them, under all. `MK_SEED` repeats an order.

#[path = "sweep/nodes.rs"]
mod nodes;
mod sweep;

use mk_codegen::{
    passes::compile,
    settings::{Config, NicOrdering},
};
use mk_harness::{Case, Judgement, Routing};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

/// What is computed, with `CAUSAL` where a mask may be.
const PARTS: [&str; 3] = [
    "let o = ring(k, v) -> attention(qCAUSAL); (o, o -> lse)",
    "ring(k, v) -> attention_dq(q, do, statsCAUSAL)",
    "let dk = ring(q, do, stats) -> attention_dk(k, vCAUSAL); (dk, dk -> attention_dv)",
];

#[derive(Clone, Copy, Debug)]
struct Ring {
    nodes: u32,
    local: u32,
    net: NicOrdering,
    zigzag: bool,
    causal: bool,
    part: usize,
    /// Tokens; and whether they are so many in every launch.
    tokens: u64,
    fixed: bool,
}

impl Ring {
    fn text(&self) -> String {
        let (placed, turned) = match self.zigzag {
            true => ("zigzag(1)", "zigzag(2)"),
            false => ("shard(1)", "shard(2)"),
        };
        let wide = format!("bf16[B, S, H, D] @ {placed}");
        let narrow = format!("bf16[B, S, G, D] @ {placed}");
        let more = match self.part {
            0 => String::new(),
            _ => format!(", do: {wide}, stats: f32[B, H, S, 4] @ {turned}"),
        };
        let sizes = if self.fixed { "" } else { "<S: dyn <= 160>" };
        let body = PARTS[self.part].replace("CAUSAL", if self.causal { ", causal" } else { "" });
        format!("fn f{sizes}(q: {wide}{more}, k: {narrow}, v: {narrow}) {{ {body} }}")
    }

    /// Lowers, proves, runs and judges.
    fn check(&self, seed: u64) {
        let program = Program::parse(&self.text()).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let dims = [("B", 1), ("S", self.tokens), ("H", 2), ("G", 1), ("D", 64)];
        let dims: BTreeMap<_, _> = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let config = Config {
            ranks: self.nodes * self.local,
            nodes: self.nodes,
            net: self.net,
            // Several pieces of a chunk.
            chunk_bytes: 4096,
            compute_sms: Some(3),
            intra_comm_sms: Some(2),
            copy_stages: 4,
            ..Config::default()
        };
        let (plan, _) =
            compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let case = Case { program: &program, bound: &bound, ranks: config.ranks as usize };
        nodes::judge(self, case, &plan, Routing::default(), seed, Judgement::passes);
    }
}

/// Sequences that no number of ranks divides, and one of which the last ranks have nothing.
const TOKENS: [u64; 3] = [300, 21, 144];

fn all() -> Vec<Ring> {
    let mut out = Vec::new();
    for (nodes, local, net) in nodes::worlds() {
        for form in 0..12 {
            let (zigzag, causal, part) = (form % 2 == 1, form / 2 % 2 == 1, form / 4);
            let n = out.len();
            let fixed = n % 5 != 0;
            let tokens = if fixed { TOKENS[n % 3] } else { [160, 37][n % 2] };
            out.push(Ring { nodes, local, net, zigzag, causal, part, tokens, fixed });
        }
    }
    out
}

#[test]
fn rings() {
    sweep::run("rings over nodes", all(), SECONDS, |case, seed| case.check(seed));
}
