//! The backward of attention: plans, proofs, kernels, predicted times, and what becomes of plans when something is left out.

use mk_codegen::{
    cost::{self, DeviceModel},
    emit::{emit, library},
    equivalence,
    passes::lower,
    plan::{Operand, Plan},
    settings::Config,
    valid,
};
use mk_syntax::Program;
use std::collections::BTreeMap;

/// A part of the backward, of tensors that are placed so, with so many tokens.
fn plan(ranks: u32, placement: &str, body: &str, sequence: u64) -> Plan {
    let stats = match placement {
        "shard(1)" => "shard(2)",
        "zigzag(1)" => "zigzag(2)",
        other => other,
    };
    let [wide, narrow] = ["H", "G"].map(|h| format!("bf16[B, S, {h}, D] @ {placement}"));
    let all = [
        ("o", wide.clone()),
        ("q", wide.clone()),
        ("do", wide),
        ("logs", format!("f32[B, H, S] @ {stats}")),
        ("stats", format!("f32[B, H, S, 4] @ {stats}")),
        ("k", narrow.clone()),
        ("v", narrow),
        ("s", "f32[H]".to_owned()),
    ];
    let words: Vec<&str> = body.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let params = all.iter().filter(|(name, _)| words.contains(name));
    let params: Vec<String> = params.map(|(name, ty)| format!("{name}: {ty}")).collect();
    let text = format!("fn attention_grad({}) {{ {body} }}", params.join(", "));
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = [("B", 1), ("S", sequence), ("H", 4), ("G", 2), ("D", 128)];
    let dims = dims.iter().filter(|(name, _)| program.symbol(name).is_some());
    let dims = dims.map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    lower(&program, &bound, &Config { ranks, ..Config::default() }).expect("lowers")
}

/// Gradients of keys of 192 elements and values of 128, over a ring.
fn wide() -> Plan {
    let [d, e] = [192, 128].map(|n| format!("{n}] @ zigzag(1)"));
    let text = format!(
        "fn wide(q: bf16[1, 1000, 4, {d}, do: bf16[1, 1000, 4, {e}, stats: f32[1, 4, 1000, 4] @ zigzag(2), \
         k: bf16[1, 1000, 2, {d}, v: bf16[1, 1000, 2, {e}) {{ {DKV} }}"
    );
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
    lower(&program, &bound, &Config { ranks: 2, ..Config::default() }).expect("lowers")
}

const SINKS: &str = "attention_dsinks(stats, s)";
const STATS: &str = "o -> attention_stats(do, logs)";
const DQ: &str = "ring(k, v) -> attention_dq(q, do, stats, causal)";
const DKV: &str =
    "let dk = ring(q, do, stats) -> attention_dk(k, v, causal); (dk, dk -> attention_dv)";
const WINDOW: &str = "let dk = attention_dk(k, v, q, do, stats, causal, window = 100, softcap = 50); (dk, dk -> attention_dv)";
const ALONE: &str = "let dk = attention_dk(k, v, q, do, stats); (dk, dk -> attention_dv)";

#[test]
fn texts_and_kernels() {
    for (name, function, plan) in [
        ("stats", "stats_tasks<", plan(1, "replicate", STATS, 300)),
        ("dsinks", "sink_tasks<", plan(3, "zigzag(1)", SINKS, 1000)),
        ("dq", "sm90_attend_dq_consumer<", plan(3, "zigzag(1)", DQ, 1000)),
        ("dkv", "sm90_attend_dkv_consumer<", plan(3, "zigzag(1)", DKV, 1000)),
        ("dkv_wide", "sm90_attend_dkv_consumer<", wide()),
        ("dkv_window", "sm90_attend_dkv_consumer<", plan(1, "replicate", WINDOW, 300)),
        ("dkv_alone", "sm90_attend_dkv_consumer<", plan(1, "replicate", ALONE, 300)),
    ] {
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        let json = plan.to_json().expect("JSON");
        assert_eq!(Plan::from_json(&json).expect("a plan"), plan, "{name}");
        valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(library::END).expect("the library ends").1;
        assert!(generated.contains(function), "{name}");
        if name != "dkv_alone" {
            insta::assert_snapshot!(name, text);
            insta::assert_snapshot!(format!("cuda_{name}"), generated);
        }
    }
}

/// Every wait, and every post that somebody waits for, is needed, and so is every operand and condition.
#[test]
fn nothing_can_be_left_out() {
    for (body, least) in [(DQ, 10), (DKV, 10)] {
        let plan = plan(3, "zigzag(1)", body, 400);
        let mut n = 0;
        let mut refused = |less: &Plan, what: String| {
            assert!(valid::verify(less).is_err(), "{body} without {what}");
            n += 1;
        };
        for (id, f) in plan.families.iter() {
            for i in 0..f.waits.len() {
                let mut less = plan.clone();
                less.families[id].waits.remove(i);
                refused(&less, format!("wait {i} of {id}"));
            }
            for i in 0..f.posts.len() {
                let mut less = plan.clone();
                less.families[id].posts.remove(i);
                refused(&less, format!("post {i} of {id}"));
            }
            for (i, a) in f.accesses.iter().enumerate() {
                let mut less = plan.clone();
                if less.families[id].accesses[i].when.take().is_some() {
                    refused(&less, format!("the condition of {} of {id}", a.operand));
                }
                if a.operand == Operand::Do || a.operand == Operand::Stats {
                    let mut less = plan.clone();
                    less.families[id].accesses.remove(i);
                    refused(&less, format!("{} of {id}", a.operand));
                }
            }
        }
        assert!(n >= least, "{n}");
    }
}

/// A plan with another head's sink or statistics, without a batch, or without some queries, does not compute the program.
#[test]
fn other_sinks_compute_something_else() {
    let text = "fn f(stats: f32[B, H, S, 4] @ zigzag(2), s: f32[H]) { attention_dsinks(stats, s) }";
    let program = Program::parse(text).expect("parses");
    let dims = [("B", 2), ("S", 300), ("H", 3)].map(|(name, n)| (name.to_string(), n));
    let bound = program.bind(&BTreeMap::from(dims), &BTreeMap::new()).expect("binds");
    let plan = lower(&program, &bound, &Config { ranks: 2, ..Config::default() }).expect("lowers");
    let judge = |plan: &Plan| {
        valid::verify(plan).map_err(|e| e.to_string())?;
        let options = equivalence::Options::default();
        equivalence::evaluate(plan, &program, &bound, &options).map_err(|e| e.to_string())
    };
    judge(&plan).unwrap_or_else(|e| panic!("{e}"));
    let others = [
        (Operand::Sinks, 0, [0, 1]),
        (Operand::Stats, 0, [0, 1]),
        (Operand::Stats, 1, [0, 1]),
        (Operand::Stats, 2, [0, 100]),
        (Operand::Stats, 2, [1, 149]),
        (Operand::Dst, 1, [0, 1]),
    ];
    for (operand, dim, [base, len]) in others {
        let mut other = plan.clone();
        let accesses = other.families.iter_mut().flat_map(|(_, f)| &mut f.accesses);
        for access in accesses.filter(|a| a.operand == operand) {
            access.region[dim] = (base.into(), len.into());
        }
        assert!(judge(&other).is_err(), "{operand} {dim}: {other}");
    }
}

#[test]
fn what_no_tile_does_is_refused() {
    let dq = plan(1, "replicate", "attention_dq(q, do, stats, k, v)", 300);
    let dkv = plan(1, "replicate", ALONE, 300);
    let stats = plan(1, "replicate", STATS, 300);
    for (plan, from, to, says) in [
        (&dq, "block=128x64x128", "block=64x64x128", "has 128 rows"),
        (&dq, "block=128x64x128", "block=128x128x128", "up to 128 with heads of 64 and 96"),
        (&dkv, "block=128x64x128", "block=128x96x128", "up to 96 with heads of 64 and 64"),
        (&dkv, "stages=3", "stages=1", "2 stages or more"),
        (&dkv, "scale=0x3db504f3", "scale=0xbdb504f3", "positive and finite"),
        (&dq, "\"k\" in bf16", "\"k\" in f16", "attend_dq_tile converts nothing, bf16 to f16"),
        (&stats, "block=128x128", "block=128x96", "heads of 64, 128, 192 or 256"),
    ] {
        let text = plan.to_string();
        assert!(text.contains(from), "{from}: {text}");
        let error = emit(&text.replacen(from, to, 1).parse().expect(to)).expect_err(to).to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
}

/// Gradients of queries are three products to attention's two, those of keys and values four.
#[test]
fn predicted_times() {
    let model = DeviceModel::h200();
    let seconds = |body: &str| {
        cost::predict(&plan(1, "replicate", body, 16384), model).expect("predicts").total_s
    };
    let forward = seconds("attention(q, k, v)");
    let dq = seconds("attention_dq(q, do, stats, k, v)");
    let dkv = seconds(ALONE);
    // Narrow tiles take longer.
    assert!((1.3..3.6).contains(&(dq / forward)), "{dq} {forward}");
    assert!((1.7..6.0).contains(&(dkv / forward)), "{dkv} {forward}");
    assert!(seconds(STATS) < forward / 10.0);
    let shared = cost::predict(&plan(4, "zigzag(1)", DKV, 16384), model).expect("predicts").total_s;
    // Tiles of two heads of keys are fewer than CTAs.
    assert!(shared < 0.6 * dkv && shared > dkv / 16.0, "{shared} {dkv}");
}
