//! Plans of attention: their text, proofs, predicted times, and what becomes of them when something is left out.

use mk_codegen::{
    cost::{self, DeviceModel},
    emit, equivalence,
    passes::{compile, lower},
    plan::{Expr, Leaf, Operand, Plan},
    settings::Config,
    valid,
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

/// The plan of a ring, or of whole tensors, with small worlds of small sequences.
fn plan(ranks: u32, placement: &str, body: &str, sequence: u64) -> Plan {
    plan_of(4, ranks, placement, body, sequence)
}

fn plan_of(heads: u64, ranks: u32, placement: &str, body: &str, sequence: u64) -> Plan {
    made(heads, ranks, [placement; 2], body, sequence).2
}

fn made(
    heads: u64,
    ranks: u32,
    [placement, kv]: [&str; 2],
    body: &str,
    sequence: u64,
) -> (Program, Bound, Plan) {
    let kv = format!("bf16[B, S, G, D] @ {kv}");
    let sinks = if body.contains("sinks = s") { ", s: f32[H]" } else { "" };
    let text = format!(
        "fn attention_plan(q: bf16[B, S, H, D] @ {placement}, k: {kv}, v: {kv}{sinks}) {{ {body} }}"
    );
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("B", 1), ("S", sequence), ("H", heads), ("G", heads / 2), ("D", 64)];
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let plan = lower(&program, &bound, &Config { ranks, ..Config::default() }).expect("lowers");
    (program, bound, plan)
}

const RING: &str = "let o = ring(k, v) -> attention(q, causal); (o, o -> lse)";

/// Heads of 256 elements, of packed sequences, capped.
fn wide() -> Plan {
    let text = "fn wide(q: bf16[1, 1000, 4, 256], k: bf16[1, 1000, 2, 256], v: bf16[1, 1000, 2, 256], cu: i32[9]) {
        attention(q, k, v, causal, softcap = 50, cu_seqlens = cu)
    }";
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
    lower(&program, &bound, &Config::default()).expect("lowers")
}

/// A query alone of heads that share keys, behind many of these.
fn few() -> (Program, Bound, Plan) {
    let keys = "bf16[1, 20000, 2, 128]";
    let text = format!(
        "fn few(q: bf16[1, 3, 8, 128], k: {keys}, v: {keys}, s: f32[8]) {{
        let o = attention(q, k, v, causal, sinks = s);
        (o, o -> lse)
    }}"
    );
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let bound = program.bind(&BTreeMap::new(), &BTreeMap::new()).expect("binds");
    let plan = lower(&program, &bound, &Config::default()).expect("lowers");
    (program, bound, plan)
}

const SINKS: &str = "let o = attention(q, k, v, causal, sinks = s); (o, o -> lse)";

const ULYSSES: &str = "let x = all_to_all(k, split = 2, concat = 1);
    let y = all_to_all(v, split = 2, concat = 1);
    all_to_all(q, split = 2, concat = 1) -> attention(x, y, causal) -> all_to_all(split = 1, concat = 2)";

#[test]
fn texts() {
    for (name, plan) in [
        ("attention_alone", plan(1, "replicate", "attention(q, k, v)", 300)),
        (
            "attention_window",
            plan(1, "replicate", "attention(q, k, v, causal, window = 100, softcap = 50)", 300),
        ),
        ("attention_chunk", lengths("attention(q, k, v, causal)", [100, 300]).2),
        ("attention_sinks", plan(1, "replicate", SINKS, 300)),
        ("attention_wide", wide()),
        ("attention_few", few().2),
        ("ring_full", plan(3, "shard(1)", "ring(k, v) -> attention(q)", 768)),
        ("ring_causal", plan(3, "shard(1)", RING, 1000)),
        ("ring_causal_zigzag", plan(3, "zigzag(1)", RING, 1000)),
        ("ulysses", plan(2, "shard(1)", ULYSSES, 1000)),
    ] {
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        let json = plan.to_json().expect("JSON");
        assert_eq!(Plan::from_json(&json).expect("a plan"), plan, "{name}");
        valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(kernel.cuda.contains("sm90_attend_consumer"), "{name}");
        insta::assert_snapshot!(name, text);
        if matches!(name, "ulysses" | "attention_sinks" | "attention_wide" | "attention_few") {
            insta::assert_snapshot!(format!("cuda_{name}"), kernel.generated());
        }
    }
}

/// Parts that are not waited for, not all read, or of other keys, are refused.
#[test]
fn parts_of_keys_are_all_put_together() {
    let (program, bound, plan) = few();
    let options = equivalence::Options::default();
    let judge = |plan: &Plan| {
        valid::verify(plan).map_err(|e| e.to_string())?;
        equivalence::evaluate(plan, &program, &bound, &options).map_err(|e| e.to_string())
    };
    judge(&plan).unwrap_or_else(|e| panic!("{e}"));
    let (id, merge) =
        plan.families.iter().find(|(_, f)| f.leaf.name() == "merge_tile").expect("merges");
    let mut less = plan.clone();
    less.families[id].waits.clear();
    assert!(judge(&less).is_err(), "no wait");
    let mut less = plan.clone();
    let parts = merge.inner.clone().expect("parts");
    less.families[id].inner = Some((parts.0, parts.1 - 1));
    assert!(judge(&less).is_err(), "a part less");
    for operand in [Operand::AccIn, Operand::StatIn, Operand::Sinks] {
        let mut less = plan.clone();
        less.families[id].accesses.retain(|a| a.operand != operand);
        assert!(judge(&less).is_err(), "without {operand}");
    }
    // Every part has the first one's keys.
    let mut same = plan.clone();
    for (_, f) in same.families.iter_mut().filter(|(_, f)| f.leaf.mask().is_some()) {
        for a in f.accesses.iter_mut().filter(|a| matches!(a.operand, Operand::K | Operand::V)) {
            a.region[1].0 = Expr::Const(0);
        }
    }
    assert!(judge(&same).is_err(), "the same keys");
}

/// Heads that are rows of a tile: of other rows, of another head's parts, or of queries at other places.
#[test]
fn heads_are_rows_of_their_queries() {
    let (program, bound, plan) = few();
    let wrong = |change: &dyn Fn(&mut Plan), what: &str| {
        let mut plan = plan.clone();
        change(&mut plan);
        let judged = valid::verify(&plan).map_err(|e| e.to_string()).and_then(|_| {
            let options = equivalence::Options::default();
            equivalence::evaluate(&plan, &program, &bound, &options).map_err(|e| e.to_string())
        });
        let error = judged.expect_err("something is wrong");
        assert!(error.contains(what), "{error}");
    };
    let attend = plan.families.iter().find(|(_, f)| f.leaf.mask().is_some()).expect("attends").0;
    let heads = |n| {
        move |plan: &mut Plan| match &mut plan.families[attend].leaf {
            Leaf::AttendTile(tile) => tile.heads = n,
            _ => unreachable!("an attention"),
        }
    };
    wrong(&heads(1), "a tile has 2 dimensions");
    wrong(&heads(2), "and a tile has 2 heads of each query");
    let merge =
        plan.families.iter().find(|(_, f)| f.leaf.name() == "merge_tile").expect("merges").0;
    let other = |plan: &mut Plan| {
        for a in plan.families[merge].accesses.iter_mut().filter(|a| a.operand == Operand::AccIn) {
            a.region[4].0 = Expr::Const(0);
        }
    };
    wrong(&other, "out");
    let later = |plan: &mut Plan| {
        let places = plan.families[attend].positions.as_mut().expect("masks");
        places.q = places.q.clone() - 1;
    };
    wrong(&later, "out");
}

/// A plan without sinks, with another head's, or with two of them, does not compute the program.
#[test]
fn other_sinks_compute_something_else() {
    for (ranks, placement, body) in [
        (1, "replicate", SINKS),
        (2, "zigzag(1)", "ring(k, v) -> attention(q, causal, sinks = s)"),
        (2, "shard(1)", "attention(q, k, v, sinks = s)"),
    ] {
        let kv = if body.contains("ring") { placement } else { "replicate" };
        let (program, bound, plan) = made(4, ranks, [placement, kv], body, 300);
        let options = equivalence::Options::default();
        let judge = |plan: &Plan| {
            valid::verify(plan).map_err(|e| e.to_string())?;
            equivalence::evaluate(plan, &program, &bound, &options).map_err(|e| e.to_string())
        };
        judge(&plan).unwrap_or_else(|e| panic!("{body}: {e}"));
        let text = plan.to_string();
        let line = text.lines().find(|l| l.contains("access sinks")).expect("sinks").to_owned();
        let at = line.split_once('[').and_then(|(_, x)| x.split_once(" :")).expect("a head").0;
        for other in [
            String::new(),
            line.replacen(&format!("[{at} :"), "[0 :", 1),
            line.replacen(&format!("[{at} :"), &format!("[3 - ({at}) :"), 1),
            line.replacen(&format!("[{at} : 1"), "[0 : 2", 1),
        ] {
            assert_ne!(other, line, "{body}");
            let other: Plan = text.replacen(&line, &other, 1).parse().expect("a plan");
            assert!(judge(&other).is_err(), "{body}\n{other}");
        }
    }
}

/// Keys and values to heads, results back to parts of the sequence: what a backward does around attention's parts.
#[test]
fn exchanges() {
    let text = "fn exchange(k: bf16[1, S, 4, 64] @ shard(1), o: bf16[1, S, 4, 128] @ shard(2)) {
        (k -> all_to_all(split = 2, concat = 1), o -> all_to_all(split = 1, concat = 2))
    }";
    let program = Program::parse(text).expect("a program");
    let bound = program.bind(&[("S".to_string(), 1000)].into(), &BTreeMap::new()).expect("binds");
    let config = Config { ranks: 2, ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).expect("a plan");
    insta::assert_snapshot!("exchanges", plan);
    insta::assert_snapshot!("cuda_exchanges", emit::emit(&plan).expect("a kernel").generated());
}

/// Gradients of keys and values, exchanged as tiles make them.
#[test]
fn exchanges_behind() {
    let heads = "bf16[1, S, 4, 64] @ shard(2)";
    let text = format!(
        "fn exchange(q: {heads}, k: {heads}, v: {heads}, d: {heads}, stats: f32[1, 4, S, 4] @ shard(1)) {{
            let dk = attention_dk(k, v, q, d, stats, causal);
            (dk -> all_to_all(split = 1, concat = 2), dk -> attention_dv -> all_to_all(split = 1, concat = 2))
        }}"
    );
    let program = Program::parse(&text).expect("a program");
    let bound = program.bind(&[("S".to_string(), 1000)].into(), &BTreeMap::new()).expect("binds");
    let config = Config { ranks: 2, ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).expect("a plan");
    insta::assert_snapshot!("exchanges_behind", plan);
    insta::assert_snapshot!(
        "cuda_exchanges_behind",
        emit::emit(&plan).expect("a kernel").generated()
    );
}

/// A plan with another window or cap, or with keys at other places, does not compute the program.
#[test]
fn other_windows_compute_something_else() {
    for (ranks, placement, body) in [
        (1, "replicate", "attention(q, k, v, causal, window = 100, softcap = 50)"),
        (3, "zigzag(1)", "ring(k, v) -> attention(q, causal, window = 100, softcap = 50)"),
    ] {
        let (program, bound, plan) = made(2, ranks, [placement; 2], body, 300);
        let options = equivalence::Options::default();
        let judge = |plan: &Plan| equivalence::evaluate(plan, &program, &bound, &options);
        judge(&plan).unwrap_or_else(|e| panic!("{body}: {e}"));
        let text = plan.to_string();
        let keys = text.lines().find(|l| l.trim_start().starts_with("position k")).expect("keys");
        for (from, to) in [
            ("window keys=100", "window keys=101"),
            ("window keys=100", "window keys=99"),
            ("window keys=100", "causal"),
            (" cap=0x42480000", ""),
            ("cap=0x42480000", "cap=0x42480001"),
            (keys, &format!("{keys} + 1")),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            let other: Plan = text.replacen(from, to, 1).parse().unwrap_or_else(|e| panic!("{e}"));
            assert!(judge(&other).is_err(), "{body}: {to}");
        }
        let none = text.replacen("keys=100", "keys=0", 1).parse::<Plan>().expect_err("no window");
        assert!(none.to_string().contains("1 key or more"), "{none}");
    }
}

/// A part of an attention on one rank, of so many queries and keys.
fn lengths(part: &str, [s, t]: [u64; 2]) -> (Program, Bound, Plan) {
    let more = match part.contains("do,") {
        true => ", do: bf16[1, S, 2, 64], stats: f32[1, 2, S, 4]",
        false => "",
    };
    let text = format!(
        "fn f(q: bf16[1, S, 2, 64]{more}, k: bf16[1, T, 1, 64], v: bf16[1, T, 1, 64]) {{ {part} }}"
    );
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("S", s), ("T", t)].map(|(name, n)| (name.to_string(), n)).into();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let plan = lower(&program, &bound, &Config::default()).expect("lowers");
    (program, bound, plan)
}

/// Of keys of another length the last are where the last queries are, and nowhere else.
#[test]
fn other_places_compute_something_else() {
    for ((s, t), side) in [((100, 300), "q"), ((300, 100), "k")] {
        for part in [
            "let o = attention(q, k, v, causal, window = 50); (o, o -> lse)",
            "attention_dq(q, do, stats, k, v, causal, window = 50)",
            "let dk = attention_dk(k, v, q, do, stats, causal, window = 50); (dk, dk -> attention_dv)",
            "let o = attention(q, k, v, causal); (o, o -> lse)",
            "attention_dq(q, do, stats, k, v, causal)",
            "let dk = attention_dk(k, v, q, do, stats, causal); (dk, dk -> attention_dv)",
        ] {
            let (program, bound, plan) = lengths(part, [s, t]);
            valid::verify(&plan).unwrap_or_else(|e| panic!("{part}: {e}"));
            let options = equivalence::Options::default();
            let judge = |plan: &Plan| equivalence::evaluate(plan, &program, &bound, &options);
            judge(&plan).unwrap_or_else(|e| panic!("{part}, {s} and {t}: {e}"));
            let text = plan.to_string();
            let line =
                text.lines().find(|l| l.trim_start().starts_with(&format!("position {side}")));
            let line = line.expect("places");
            assert!(line.contains("200"), "{line}");
            for other in ["199", "201", "0"] {
                let other = text.replacen(line, &line.replacen("200", other, 1), 1);
                let other: Plan = other.parse().unwrap_or_else(|e| panic!("{e}"));
                assert!(judge(&other).is_err(), "{part}, {s} and {t}: {line}");
            }
            for other in ["keys=49", "keys=51"].iter().filter(|_| part.contains("window")) {
                let other: Plan = text.replacen("keys=50", other, 1).parse().expect("a window");
                assert!(judge(&other).is_err(), "{part}, {s} and {t}: {other}");
            }
        }
    }
}

/// Every wait, and every post that somebody waits for, is needed: without any one of them the plan is rejected.
#[test]
fn nothing_can_be_left_out() {
    let plan = plan(3, "zigzag(1)", RING, 1000);
    let mut n = 0;
    for (id, f) in plan.families.iter() {
        for i in 0..f.waits.len() {
            let mut less = plan.clone();
            less.families[id].waits.remove(i);
            assert!(valid::verify(&less).is_err(), "{id} without its wait {i}");
            n += 1;
        }
        for i in 0..f.posts.len() {
            let mut less = plan.clone();
            less.families[id].posts.remove(i);
            assert!(valid::verify(&less).is_err(), "{id} without its post {i}");
            n += 1;
        }
        for i in 0..f.accesses.len() {
            let mut more = plan.clone();
            if more.families[id].accesses[i].when.take().is_some() {
                assert!(valid::verify(&more).is_err(), "{id} without the condition of access {i}");
                n += 1;
            }
        }
    }
    assert!(n >= 12, "{n}");
}

/// Twice the queries are twice the work; a causal mask halves it; what ranks share is faster than on one.
#[test]
fn predicted_times() {
    let model = DeviceModel::h200();
    let seconds = |plan: &Plan| cost::predict(plan, model).expect("predicts").total_s;
    // Tiles go to the next free CTA, longest first: also few of them are spread evenly.
    let heads = 4;
    let alone = |body: &str, s: u64| seconds(&plan_of(heads, 1, "replicate", body, s));
    let [full, causal] = ["attention(q, k, v)", "attention(q, k, v, causal)"];
    let (one, half) = (alone(full, 16384), alone(causal, 16384));
    assert!((1.6..2.4).contains(&(one / half)), "{one} {half}");
    let four = alone(full, 32768) / one;
    assert!((3.2..4.8).contains(&four), "{four}");
    let shared = seconds(&plan_of(heads, 4, "zigzag(1)", RING, 16384));
    assert!(shared < half && shared > half / 6.0, "{shared} {half}");
}
