//! Plans that route many tokens, proved by smaller ones: every number is looked at, and a mistake that is in all of them, or only in the large one, is found.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use mk_codegen::{
    equivalence,
    passes::{self, LowerError, Smaller, compile, lower},
    plan::{Expr, Plan},
    settings::Config,
    valid::{self, Along, Relatives},
};
use mk_syntax::{Bound, Program};
use serde_json::Value;
use std::{collections::BTreeMap, time::Instant};

const LAYER: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// The layer: tokens of a rank, blocks, if that is bounded, slots, experts.
fn layer(
    ranks: u64,
    tokens: u64,
    blocks: Option<u64>,
    slots: u64,
    experts: u64,
) -> (Program, Bound, Config) {
    let text = match blocks {
        Some(_) => LAYER.into(),
        None => LAYER.replace(", capacity = R", ""),
    };
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let tokens = tokens * ranks - ranks / 2;
    let room = blocks.map(|blocks| ("R", blocks * ranks * 128));
    let (wide, inner) = if ranks > 2 { (2048, 1024) } else { (2056, 1672) };
    let dims = [("T", tokens), ("K", slots), ("E", experts), ("H", wide), ("F", inner)];
    let dims = dims.into_iter().chain(room).map(|(name, n)| (name.to_string(), n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound, Config { ranks: ranks as u32, ..Config::default() })
}

/// One of two ranks, and what leads to it.
fn two_ranks() -> (Plan, Smaller) {
    let (program, bound, config) = layer(2, 2000, Some(61), 1, 2);
    let plan = lower(&program, &bound, &config).expect("a plan");
    let smaller = passes::smaller(&program, &bound, &config, &plan).expect("smaller ones");
    (plan, smaller)
}

/// Changes a plan and all that lead to it.
fn all(
    (plan, relatives): (&Plan, &Relatives),
    change: &dyn Fn(&mut Plan, usize),
) -> (Plan, Relatives) {
    let changed = |plan: &Plan, i: usize| {
        let mut plan = plan.clone();
        change(&mut plan, i);
        plan
    };
    let along = relatives.along.iter().zip(1..);
    let along = along.map(|(a, i)| Along { plan: changed(&a.plan, i), steps: a.steps });
    let of = Relatives { base: changed(&relatives.base, 0), along: along.collect() };
    (changed(plan, of.along.len() + 1), of)
}

/// Plan and proof of 8192 tokens on each of 8 ranks, by the work that it is; `benches/compiler.rs` takes the time of a release build.
#[test]
fn many_tokens() {
    let (program, bound, config) = layer(8, 8192, None, 8, 128);
    let begin = Instant::now();
    let (plan, proof) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
    let seconds = begin.elapsed().as_secs_f64();
    println!("{seconds:.2} s, {} families\n{proof}", plan.families.len());
    // Of fewer tokens, fewer blocks, narrower rows.
    assert_eq!(proof.scaled.as_ref().map(|s| s.relatives), Some(4));
    // The plan itself has 33,000 blocks of rows.
    assert!(proof.tasks < 10_000 && proof.accesses < 350_000, "{proof}");
    assert!(proof.pairs < 25_000_000 && proof.searched < 2_500_000, "{proof}");
}

/// Tokens quantised on their way out, and experts in eight bits: many are proved by few, too. Where the quantisation's
/// pieces grow with the tokens, 16384 of 2 ranks are too large to evaluate.
#[test]
fn many_tokens_in_eight_bits() {
    let text = "fn eight(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w1: e4m3[E, 2, F, H] scaled(128, 128) @ shard(0), w2: e4m3[E, H, F] scaled(128, 128) @ shard(0)) {
        x -> quantize(e4m3, 1, 128) -> dispatch(ids) -> grouped_gemm(w1.t) -> swiglu -> quantize(e4m3, 1, 128)
            -> grouped_gemm(w2.t) -> combine(gate)
    }";
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    for (ranks, tokens, wide, inner, experts, slots) in
        [(2, 16384, 2048, 768, 128, 8), (4, 8192, 1024, 512, 16, 2), (1, 32768, 2048, 768, 64, 4)]
    {
        let dims = [("T", tokens), ("H", wide), ("F", inner), ("E", experts), ("K", slots)];
        let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let config = Config { ranks, ..Config::default() };
        let (_, proof) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
        assert!(proof.scaled.is_some() && proof.tasks < 20_000, "{tokens} on {ranks}: {proof}");
    }
}

/// The layer on so many ranks: tokens of all, width, experts, slots.
type Sizes = (u64, u64, u64, u64, u64);

/// Sizes that grow along one axis: sizes that were too large, with larger ones that were not (2026-11-26), and all axes.
const WALKS: &[&[Sizes]] = &[
    &[(8, 4096, 64, 64, 8), (8, 4096, 512, 64, 8)],
    &[(8, 8, 256, 64, 8), (8, 512, 256, 64, 8), (8, 4096, 256, 64, 8), (8, 1 << 17, 256, 64, 8)],
    &[(8, 2048, 64, 64, 8), (8, 2048, 1024, 64, 8), (8, 2048, 16384, 64, 8)],
    &[(8, 2048, 256, 8, 8), (8, 2048, 256, 128, 8), (8, 2048, 256, 1024, 8)],
    &[(8, 2048, 256, 64, 1), (8, 2048, 256, 64, 4), (8, 2048, 256, 64, 32)],
    &[(2, 1024, 7168, 256, 8), (8, 1024, 7168, 256, 8), (16, 1024, 7168, 256, 8)],
    &[(16, 256, 256, 64, 8), (16, 4096, 256, 64, 8), (16, 1 << 17, 256, 64, 8)],
    &[(16, 2048, 64, 64, 8), (16, 2048, 1024, 64, 8), (16, 2048, 16384, 64, 8)],
    &[(16, 2048, 256, 16, 8), (16, 2048, 256, 256, 8), (16, 2048, 256, 1024, 8)],
    &[(16, 2048, 256, 64, 1), (16, 2048, 256, 64, 8), (16, 2048, 256, 64, 32)],
    &[(16, 16384, 7168, 256, 8), (16, 1 << 17, 7168, 256, 8), (16, 1 << 20, 7168, 256, 8)],
];

/// Where sizes are too large to prove, larger ones are, too. CI walks along the first axis, `cargo xtask mutants` along all.
#[test]
fn limits_are_monotone() {
    let all = drawn::whole();
    let program = Program::parse(&LAYER.replace(", capacity = R", "")).expect("a layer");
    let walks = if all { WALKS } else { &WALKS[..1] };
    let (mut passed, mut walked) = (0, 0);
    for walk in walks {
        walked += walk.len();
        let mut refused = None;
        for size @ (ranks, tokens, wide, experts, slots) in *walk {
            let dims = [("T", tokens), ("H", wide), ("F", &256), ("E", experts), ("K", slots)];
            let dims = dims.map(|(name, n)| (name.to_string(), *n)).into();
            let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
            let config = Config { ranks: *ranks as u32, ..Config::default() };
            let begin = Instant::now();
            match compile(&program, &bound, &config) {
                Ok(_) => {
                    assert_eq!(refused, None, "and {size:?} is not");
                    passed += 1;
                }
                Err(e) => {
                    assert!(matches!(e, LowerError::TooLarge { .. }), "{size:?}: {e}");
                    refused = Some(size);
                }
            }
            println!("{size:?}: {refused:?}, {:.1?}", begin.elapsed());
        }
    }
    assert!(2 * passed > walked, "{passed} of {walked} passed");
}

/// A plan that is small enough is looked at itself, with the same verdict.
#[test]
fn both_ways() {
    let (plan, smaller) = two_ranks();
    let proof = smaller.verify(&plan).unwrap_or_else(|e| panic!("{e}"));
    let whole = valid::verify(&plan).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(proof.waits_used, whole.waits_used);
    assert!(proof.tasks < whole.tasks && whole.scaled.is_none());
    let (program, bound, config) = layer(2, 2000, Some(61), 1, 2);
    let options = equivalence::Options::default();
    smaller.evaluate(&program, &options).unwrap_or_else(|e| panic!("{e}"));
    equivalence::evaluate(&plan, &program, &bound, &options).unwrap_or_else(|e| panic!("{e}"));
    let (program, bound, _) = layer(2, 500, Some(30), 1, 2);
    let plan = lower(&program, &bound, &config).expect("a plan");
    assert!(passes::smaller(&program, &bound, &config, &plan).is_none());
}

/// Rows that a kernel before dispatched come with the same experts of tokens, and are proved by smaller plans, too.
#[test]
fn rows_of_a_kernel_before() {
    let text =
        "fn second(h: bf16[R, F] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
        ragged(h, ids) -> grouped_gemm(w2) -> combine(gate)
    }";
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("T", 3999), ("R", 15616), ("K", 1), ("E", 2), ("F", 136), ("H", 264)];
    let dims = dims.map(|(name, n)| (name.to_string(), n)).into();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let config = Config { ranks: 2, ..Config::default() };
    let plan = lower(&program, &bound, &config).expect("a plan");
    let smaller = passes::smaller(&program, &bound, &config, &plan).expect("smaller ones");
    let proof = smaller.verify(&plan).unwrap_or_else(|e| panic!("{e}"));
    let whole = valid::verify(&plan).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(proof.waits_used, whole.waits_used);
    assert_eq!(proof.scaled.map(|s| s.relatives), Some(3));
    let options = equivalence::Options::default();
    smaller.evaluate(&program, &options).unwrap_or_else(|e| panic!("{e}"));
    equivalence::evaluate(&plan, &program, &bound, &options).unwrap_or_else(|e| panic!("{e}"));
}

/// Tokens and room that the text has as numbers, and not as symbols, lead to the same plan, by as many smaller ones.
#[test]
fn numbers_in_the_text() {
    let (program, bound, config) = layer(2, 2000, Some(61), 1, 2);
    let plan = lower(&program, &bound, &config).expect("a plan");
    let text = LAYER.replace("[T, ", "[3999, ").replace("= R", "= 15616");
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("K", 1), ("E", 2), ("H", 2056), ("F", 1672)].map(|(s, n)| (s.to_string(), n));
    let bound = program.bind(&dims.into(), &BTreeMap::new()).expect("binds");
    let of_numbers = lower(&program, &bound, &config).expect("a plan");
    let smaller = passes::smaller(&program, &bound, &config, &of_numbers).expect("smaller ones");
    let (_, of_symbols) = two_ranks();
    let words = |s: &Smaller| {
        let signals = s.relatives().base.signals.values().map(|s| s.shape.clone());
        let steps = s.relatives().along.iter().map(|a| a.steps);
        (signals.collect::<Vec<_>>(), steps.collect::<Vec<_>>())
    };
    assert_eq!(words(&smaller), words(&of_symbols));
    assert_eq!(of_numbers.families.len(), plan.families.len());
    let proof = smaller.verify(&of_numbers).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(proof.scaled.map(|s| s.relatives), Some(4));
    let options = equivalence::Options::default();
    smaller.evaluate(&program, &options).unwrap_or_else(|e| panic!("{e}"));
    // One that is as wide as it has tokens is another pipeline where it is smaller.
    let text = LAYER.replace("T, ", "4096, ").replace("H", "4096").replace(", capacity = R", "");
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let dims = [("K", 1), ("E", 2), ("F", 136)].map(|(s, n)| (s.to_string(), n));
    let bound = program.bind(&dims.into(), &BTreeMap::new()).expect("binds");
    let plan = lower(&program, &bound, &config).expect("a plan");
    if let Some(smaller) = passes::smaller(&program, &bound, &config, &plan) {
        smaller.verify(&plan).unwrap_or_else(|e| panic!("{e}"));
        smaller.evaluate(&program, &options).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// All numbers of a text, by turns larger by one.
fn larger_by_one(value: &mut Value, left: &mut usize) -> bool {
    match value {
        Value::Number(n) => {
            let hit = *left == 0;
            *left = left.wrapping_sub(1);
            if hit && let Some(i) = n.as_i64() {
                *value = (i + 1).into();
            }
            hit
        }
        Value::Array(list) => list.iter_mut().any(|v| larger_by_one(v, left)),
        Value::Object(fields) => fields.values_mut().any(|v| larger_by_one(v, left)),
        _ => false,
    }
}

#[test]
fn no_number_is_elsewhere() {
    let (plan, smaller) = two_ranks();
    assert_eq!(valid::is_affine(&plan, smaller.relatives()), Ok(()));
    let text = serde_json::to_value(&plan).expect("JSON");
    let mut looked = 0;
    for n in 0.. {
        let mut text = text.clone();
        if !larger_by_one(&mut text, &mut n.clone()) {
            break;
        }
        let Ok(other) = serde_json::from_value::<Plan>(text) else { continue };
        assert_ne!(other, plan, "number {n}");
        let said = valid::is_affine(&other, smaller.relatives());
        let why = said.map_or_else(|e| e.to_string(), |()| "nothing".into());
        assert!(why.contains("the smaller plans lead to"), "number {n}: {why}");
        looked += 1;
    }
    assert!(looked > 400, "{looked} numbers");
    // A line more, another name.
    let mut other = plan.clone();
    let first = other.families.keys().next().expect("a family");
    other.families[first].name.push('s');
    assert!(valid::is_affine(&other, smaller.relatives()).is_err());
    other = plan.clone();
    let line = other.families[first].accesses[0].clone();
    other.families[first].accesses.push(line);
    assert!(valid::is_affine(&other, smaller.relatives()).is_err());
}

/// What is wrong at every size is found at the small ones, as in a small plan by itself.
#[test]
fn nothing_can_be_left_out() {
    let (plan, smaller) = two_ranks();
    let (mut kept, mut looked_at) = (Vec::new(), Vec::new());
    let mut n = 0;
    for (id, f) in drawn::some(plan.families.iter(), 3) {
        looked_at.push(format!("{}: ", f.name));
        let mut without = |what: String, change: &dyn Fn(&mut Plan)| {
            let (less, of) = all((&plan, smaller.relatives()), &|p, _| change(p));
            assert_eq!(valid::is_affine(&less, &of), Ok(()), "{what}");
            n += 1;
            if valid::verify_affine(&less, &of).is_ok() {
                kept.push(format!("{}: {what}", f.name));
            }
        };
        for i in 0..f.waits.len() {
            let name = &plan.signals[f.waits[i].signal].name;
            without(format!("wait {name}"), &|p| drop(p.families[id].waits.remove(i)));
        }
        for i in 0..f.posts.len() {
            let name = &plan.signals[f.posts[i].signal].name;
            without(format!("post {name}"), &|p| drop(p.families[id].posts.remove(i)));
        }
        for i in (0..f.accesses.len()).filter(|i| f.accesses[*i].operand.name() == "tab") {
            without("tab".into(), &|p| drop(p.families[id].accesses.remove(i)));
        }
    }
    let entered = ["fetch: wait entered", "fetch: wait entered"];
    let others = ["gemm1: wait counted", "gemm2: wait entered"];
    let mut wanted = [entered, others].concat();
    wanted.retain(|kept| looked_at.iter().any(|name| kept.starts_with(name)));
    assert_eq!(kept, wanted, "of {n}");
}

/// What fits at small sizes, and does not at this one.
#[test]
fn the_ends_of_the_plan_itself() {
    let (plan, smaller) = two_ranks();
    let given = (&plan, smaller.relatives());
    let steps: Vec<i32> = given.1.along.iter().map(|a| a.steps as i32).collect();
    // An extent with room to spare that grows more slowly than tokens do, or blocks, or the width of rows.
    let extents = [("tokens", 0, 0), ("y", 0, 1), ("rows", 0, 1), ("tokens", 1, 2)];
    for (buffer, dim, slower) in drawn::some(extents, 4) {
        let found = plan.buffers.iter().find(|b| b.1.name == buffer).expect("a buffer").0;
        let change = |p: &mut Plan, at: usize| {
            let Expr::Const(n) = p.buffers[found].shape[dim] else { panic!("a number") };
            let less = match at {
                0 => -200,
                i if i == slower + 1 => -104,
                i if i <= steps.len() => -200,
                _ => -200 + 96 * steps[slower],
            };
            p.buffers[found].shape[dim] = (n - less).into();
        };
        let (plan, of) = all(given, &change);
        assert_eq!(valid::is_affine(&plan, &of), Ok(()), "{buffer}");
        for small in of.along.iter().map(|a| &a.plan).chain([&of.base]) {
            assert!(valid::verify(small).is_ok(), "{buffer}");
        }
        let said =
            valid::verify_affine(&plan, &of).map_or_else(|e| e.to_string(), |_| String::new());
        assert!(said.contains("rule 6"), "{buffer}: {said}");
    }
    // Words of blocks.
    let arrived = plan.signals.iter().find(|s| s.1.name == "arrived").expect("a signal").0;
    let change = |p: &mut Plan, at: usize| {
        let Expr::Const(n) = p.signals[arrived].shape[0] else { panic!("a number") };
        let less = [-9, -9, -1, -9, -9 + 8 * steps[1]][at];
        p.signals[arrived].shape[0] = (n - less).into();
    };
    let (plan, of) = all(given, &change);
    assert_eq!(valid::is_affine(&plan, &of), Ok(()));
    let said = valid::verify_affine(&plan, &of).map_or_else(|e| e.to_string(), |_| String::new());
    assert!(said.contains("is outside the array"), "{said}");
}

/// Whether a plan ends rests on the order of its families, not on the sizes at which it was run.
#[test]
fn waits_point_backwards() {
    let (plan, smaller) = two_ranks();
    let family = |name: &str| plan.families.iter().find(|f| f.1.name == name).expect("a family").0;
    let (stage, pull) = (family("stage"), family("pull"));
    let (plan, of) = all((&plan, smaller.relatives()), &|p, _| {
        let wait = p.families[pull].waits[0].clone();
        let signal = p.families[pull].posts[0].signal;
        p.families[stage].waits.push(mk_codegen::plan::Wait { signal, ..wait });
    });
    let said = valid::is_affine(&plan, &of).map_or_else(|e| e.to_string(), |()| String::new());
    assert!(said.contains("which does not come before it"), "{said}");
}
