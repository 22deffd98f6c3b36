//! Plans of attention over packed sequences: their text, proofs, CUDA, and what becomes of them when something in them
//! is another.

use mk_codegen::{emit, equivalence, passes::lower, plan::Plan, settings::Config, valid};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

/// A part of an attention of packed sequences on one rank: its program, sizes and plan.
struct Packed {
    program: Program,
    bound: Bound,
    plan: Plan,
}

impl Packed {
    fn new(body: &str, [tokens, entries, depth]: [u64; 3]) -> Packed {
        Packed::of(body, [tokens, entries, depth], 1)
    }

    fn of(body: &str, [tokens, entries, depth]: [u64; 3], batch: u64) -> Packed {
        let more = match body.contains("do,") {
            true => ", do: bf16[B, T, H, D], stats: f32[B, H, T, 4]",
            false => "",
        };
        let text = format!(
            "fn packed(q: bf16[B, T, H, D]{more}, k: bf16[B, T, G, D], v: bf16[B, T, G, D], cu: i32[N]) {{ {body} }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let dims = [("B", batch), ("T", tokens), ("N", entries), ("H", 4), ("G", 2), ("D", depth)];
        let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let plan = lower(&program, &bound, &Config::default()).unwrap_or_else(|e| panic!("{e}"));
        Packed { program, bound, plan }
    }

    fn judge(&self, plan: &Plan) -> Result<(), String> {
        valid::verify(plan).map_err(|e| e.to_string())?;
        let options = equivalence::Options::default();
        let found = equivalence::evaluate(plan, &self.program, &self.bound, &options);
        found.map(drop).map_err(|e| e.to_string())
    }
}

const FULL: &str = "let o = attention(q, k, v, cu_seqlens = cu); (o, o -> lse)";
const CAUSAL: &str = "let o = attention(q, k, v, causal, cu_seqlens = cu); (o, o -> lse)";
const WINDOW: &str = "attention(q, k, v, causal, window = 50, softcap = 30, cu_seqlens = cu)";
const DQ: &str = "attention_dq(q, do, stats, k, v, causal, cu_seqlens = cu)";
const DKV: &str =
    "let dk = attention_dk(k, v, q, do, stats, causal, cu_seqlens = cu); (dk, dk -> attention_dv)";

/// Plans are what they compute, of every mask, side, head and number of documents.
#[test]
fn proofs() {
    for body in [
        FULL,
        CAUSAL,
        WINDOW,
        DQ,
        &DQ.replace(", causal", ""),
        DKV,
        &DKV.replace(", causal", ""),
        &DKV.replace("causal", "causal, window = 50"),
    ] {
        for sizes in [[300, 5, 64], [129, 130, 64], [300, 2, 128], [64, 1, 64]] {
            let packed = Packed::new(body, sizes);
            packed
                .judge(&packed.plan)
                .unwrap_or_else(|e| panic!("{body} {sizes:?}: {e}\n{}", packed.plan));
        }
    }
    let two = Packed::of(CAUSAL, [300, 5, 64], 2);
    two.judge(&two.plan).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn texts() {
    for (name, body) in
        [("packed_full", FULL), ("packed_window", WINDOW), ("packed_dq", DQ), ("packed_dkv", DKV)]
    {
        let Packed { plan, .. } = Packed::new(body, [2000, 9, 128]);
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        let json = plan.to_json().expect("JSON");
        assert_eq!(Plan::from_json(&json).expect("a plan"), plan, "{name}");
        valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(name, text);
    }
}
