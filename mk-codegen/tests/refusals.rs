//! What has no plan is refused in words: never by an error of the compiler, and with help that is true.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
#[path = "common/kinds.rs"]
mod kinds;
#[path = "common/random.rs"]
mod random;

use kinds::{KINDS, kind};
use mk_codegen::{
    passes::{self, LowerError},
    plan::Plan,
    settings::{self, Config, NicOrdering, Refusal, SETTINGS},
    valid::{self, Violation},
};
use mk_syntax::{Bound, Program, file};
use random::{Numbers, some_settings};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Plans, proves and evaluates.
fn made(program: &Program, bound: &Bound, config: &Config) -> Result<(), LowerError> {
    passes::compile(program, bound, config).map(|_| ())
}

/// Whether a refusal says why and what to do, and is no mistake of the compiler.
fn in_words(error: &LowerError) -> bool {
    let text = error.to_string();
    !text.contains("internal error") && text.contains("\n  help: ")
}

/// Every pipeline of `examples`, with the sizes that it names.
fn examples() -> Vec<(String, Program, Bound)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let files = fs::read_dir(dir).expect("examples").map(|entry| entry.expect("a file").path());
    let texts = files.filter(|path| path.extension().is_some_and(|e| e == "mk"));
    let bound = texts.map(|path| {
        let text = fs::read_to_string(&path).expect("reads");
        let program = Program::parse(&text).expect("an example");
        let sizes = file::defaults(&text).expect("defaults");
        let bound = program.bind(&sizes, &BTreeMap::new()).expect("sizes");
        (path.display().to_string(), program, bound)
    });
    bound.collect()
}

#[test]
fn over_nodes_everything_has_a_plan() {
    let kinds = KINDS.iter().map(|(name, text)| {
        let (program, bound) = kind(text, &[]).expect(name);
        (name.to_string(), program, bound)
    });
    let all: Vec<_> = examples().into_iter().chain(kinds).collect();
    assert!(all.len() > KINDS.len() + 5, "there are examples");
    for (name, program, bound) in drawn::some(&all, 4) {
        for (ranks, nodes, net) in [(2, 2, NicOrdering::InOrder), (4, 2, NicOrdering::Unordered)] {
            let what = format!("{name} on {ranks} ranks of {nodes} nodes");
            let config = Config { ranks, nodes, net, ..Config::default() };
            made(program, bound, &config).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

const WORLDS: &[(u32, u32)] = &[(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 2), (6, 3)];

/// Pipelines, settings, worlds and sizes by a seed.
fn any(numbers: &mut Numbers) -> Option<(String, Program, Bound, Config)> {
    let (name, text) = numbers.of(KINDS);
    let mut sizes = Vec::new();
    for _ in 0..numbers.below(3) {
        let size = numbers.of(&[1, 2, 3, 5, 8, 17, 24, 33, 100, 127, 129, 136, 250]);
        sizes.push((numbers.of(kinds::SIZES).0, size));
    }
    let (program, bound) = kind(text, &sizes)?;
    let (ranks, nodes) = numbers.of(WORLDS);
    let base = Config { ranks, nodes, ..Config::default() };
    let facts = passes::facts(&program, &bound, ranks).unwrap_or_default();
    let config = some_settings(&facts, &base, numbers);
    let what = format!(
        "{name}, {sizes:?}, {ranks} ranks of {nodes} nodes, {}",
        settings::write_all(&config)
    );
    Some((what, program, bound, config))
}

fn seed() -> u64 {
    let seed = std::env::var("MK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(46);
    println!("MK_SEED={seed}");
    seed
}

#[test]
fn nothing_is_an_internal_error() {
    let mut numbers = Numbers(seed());
    let (mut planned, mut refused, mut wrong) = (0, 0, Vec::new());
    let cases = if drawn::whole() { 400 } else { 200 };
    for _ in 0..cases {
        let Some((what, program, bound, config)) = any(&mut numbers) else { continue };
        match std::panic::catch_unwind(|| made(&program, &bound, &config)) {
            Ok(Ok(())) => planned += 1,
            Ok(Err(e)) if in_words(&e) => refused += 1,
            Ok(Err(e)) => wrong.push(format!("{what}: {e}")),
            Err(_) => wrong.push(format!("{what}: a panic")),
        }
    }
    println!("{planned} plans, {refused} refused");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(planned.min(refused) > cases / 10, "{planned} plans, {refused} refused");
}

/// Experts that [`KINDS`] has not: launches of any number of tokens, and kernels of rows that were kept.
const EXPERTS: &[(&str, &str)] = &[
    (
        "moe_any",
        "fn f<T: dyn <= 300>(x: bf16[T, K] @ shard(0), ids: i64[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
        }",
    ),
    (
        "moe_own",
        "fn f<T: own>(x: bf16[T, K] @ shard(0), ids: i64[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: bf16[E, K, 2, N] @ shard(0), v: bf16[E, N, K] @ shard(0), b: bf16[E, K] @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> bias(b) -> combine(gate)
        }",
    ),
    (
        "moe_eight_any",
        "fn f<T: dyn <= 300>(x: e4m3[T, K] scaled(1, 128) @ shard(0), ids: i64[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: e4m3[E, 2, 128, K] scaled(128, 128) @ shard(0), v: e4m3[E, K, 128] scaled(128, 128) @ shard(0)) {
            dispatch(x, ids) -> grouped_gemm(w.t) -> swiglu -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t) -> combine(gate)
        }",
    ),
    (
        "moe_eight_quantised",
        "fn f<T: dyn <= 300>(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0),
            w: e4m3[E, 128, K] scaled(128, 128) @ shard(0), v: e4m3[E, K, 128] scaled(128, 128) @ shard(0)) {
            let rows = x -> quantize(e4m3, 1, 128) -> dispatch(ids, capacity = R, drop);
            (rows -> grouped_gemm(w.t) -> silu -> quantize(e4m3, 1, 128) -> grouped_gemm(v.t) -> combine(gate), rows)
        }",
    ),
    (
        "dispatch_own",
        "fn f<T: own>(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, N, K] @ shard(0)) {
            let rows = dispatch(x, ids, gate, capacity = R, drop);
            (rows -> grouped_gemm(w.t), rows)
        }",
    ),
    (
        "dropped_own",
        "fn f<T: own>(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            let rows = dispatch(x, ids, capacity = R, drop);
            (rows -> grouped_gemm(w) -> combine(gate), rows -> dropped)
        }",
    ),
    (
        "weights_own",
        "fn f<T: own>(x: bf16[R, K] @ shard(0), ids: i32[T, J] @ shard(0), y: bf16[T, N] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            ragged(x, ids) -> grouped_gemm(w) -> combine_grad(y)
        }",
    ),
    (
        "dispatch_weighted_any",
        "fn f<T: dyn <= 300>(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, N, K] @ shard(0)) {
            let rows = dispatch(x, ids, gate, capacity = R);
            (rows -> grouped_gemm(w.t), rows)
        }",
    ),
    (
        "wgrad_any",
        "fn f<T: dyn <= 96>(x: bf16[R, K] @ shard(0), ids: i64[T, J] @ shard(0), y: bf16[R, N] @ shard(0)) {
            ragged(x, ids) -> grouped_wgrad(y, experts = E)
        }",
    ),
    (
        "moe_back",
        "fn f(y: bf16[T, K] @ shard(0), ids: i64[T, J] @ shard(0), gate: f32[T, J] @ shard(0), v: bf16[E, N, K] @ shard(0),
            h: bf16[R, 2, N] @ shard(0), w: bf16[E, K, 2, N] @ shard(0), ones: f32[T, J] @ shard(0)) {
            let rows = dispatch(y, ids, gate, capacity = R);
            let d = rows -> grouped_gemm(v.t) -> swiglu_grad(h);
            (rows, d, d -> grouped_gemm(w.t) -> combine(ones))
        }",
    ),
    (
        "moe_back_any",
        "fn f<T: dyn <= 64>(y: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), v: bf16[E, N, K] @ shard(0),
            h: bf16[R, 2, N] @ shard(0), w: bf16[E, K, 2, N] @ shard(0)) {
            dispatch(y, ids, capacity = R) -> grouped_gemm(v.t) -> swiglu_grad(h) -> grouped_gemm(w.t) -> combine(gate)
        }",
    ),
    (
        "combine_kept",
        "fn f(x: bf16[R, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            ragged(x, ids, drop) -> grouped_gemm(w) -> combine(gate)
        }",
    ),
    (
        "weights_kept",
        "fn f(x: bf16[R, K] @ shard(0), ids: i32[T, J] @ shard(0), y: bf16[T, N] @ shard(0), w: bf16[E, K, N] @ shard(0)) {
            ragged(x, ids, drop) -> grouped_gemm(w) -> combine_grad(y)
        }",
    ),
    (
        "wgrad_kept",
        "fn f(x: bf16[R, K] @ shard(0), ids: i32[T, J] @ shard(0), y: bf16[R, N] @ shard(0)) {
            ragged(x, ids, drop) -> grouped_wgrad(y, experts = E)
        }",
    ),
    (
        "dispatch_kept",
        "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, J] @ shard(0), gate: f32[T, J] @ shard(0), w: bf16[E, N, K] @ shard(0)) {
            let rows = dispatch(x, ids, gate, capacity = R, drop);
            (rows -> grouped_gemm(w.t), rows)
        }",
    ),
];

/// A pipeline of experts with sizes, a world and settings, of which some fit.
fn of_experts(numbers: &mut Numbers) -> Option<(String, Program, Bound, Config)> {
    let words = ["ragged", "wgrad", "dispatch", "combine", "moe"];
    let known = KINDS.iter().filter(|(name, _)| words.iter().any(|w| name.starts_with(w)));
    let all: Vec<_> = known.chain(EXPERTS).collect();
    let (name, text) = numbers.of(&all);
    let mut sizes = Vec::new();
    for (symbol, some) in [
        ("T", &[1, 2, 3, 5, 9, 24, 33, 70, 128, 129, 256, 300][..]),
        ("K", &[8, 16, 24, 64, 72, 136, 9]),
        ("N", &[8, 16, 40, 64, 136, 264, 65]),
        ("E", &[1, 2, 3, 4, 5, 7, 8, 16, 33, 64]),
        ("J", &[1, 2, 2, 3, 4, 8]),
        ("R", &[128, 256, 384, 512, 768, 1024, 1152, 2048, 200]),
    ] {
        // Others are those with which a kind has plans.
        if numbers.below(3) > 0 {
            sizes.push((symbol, numbers.of(some)));
        }
    }
    let (program, bound) = kind(text, &sizes)?;
    let (ranks, nodes) = numbers.of(WORLDS);
    let mut config = Config { ranks, nodes, ..Config::default() };
    if numbers.below(2) == 0 {
        let facts = passes::facts(&program, &bound, ranks).unwrap_or_default();
        config = some_settings(&facts, &config, numbers);
    }
    let text = settings::write_all(&config);
    let what = format!("{name}, {sizes:?}, {ranks} ranks of {nodes} nodes, {text}");
    Some((what, program, bound, config))
}

/// A hundred of them; with `MK_CASES=20000` so many.
#[test]
fn experts_are_no_internal_error() {
    let cases = std::env::var("MK_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100u64);
    let (seed, begin) = (seed(), std::time::Instant::now());
    let wrong = std::sync::Mutex::new(Vec::new());
    let [next, planned, refused] = [(); 3].map(|()| AtomicU64::new(0));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= cases {
                        return;
                    }
                    let mut numbers = Numbers(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    numbers.below(2);
                    let Some((what, program, bound, config)) = of_experts(&mut numbers) else {
                        continue;
                    };
                    let says = match std::panic::catch_unwind(|| made(&program, &bound, &config)) {
                        Ok(Ok(())) => {
                            planned.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        Ok(Err(e)) if in_words(&e) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        Ok(Err(e)) => e.to_string(),
                        Err(_) => "a panic".into(),
                    };
                    let text = format!("case {n}: {what}: {says}");
                    println!("{text}");
                    wrong.lock().expect("no panic").push(text);
                }
            });
        }
    });
    let [planned, refused] = [planned, refused].map(AtomicU64::into_inner);
    println!("{cases} cases, {planned} plans, {refused} refused, {:.0?}", begin.elapsed());
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(planned > cases / 20 && refused > cases / 20, "{planned} plans, {refused} refused");
}

/// How far lowering gets before a refusal: nodes, settings in the order of the table, CTAs of roles, ends of rows.
fn place(refusal: &Refusal) -> usize {
    let says = |words: &[&str]| words.iter().any(|w| refusal.why.contains(w));
    if says(&["network card", "other nodes", "are not as many in each"]) {
        return 0;
    }
    if says(&["SMs", "has no role"]) {
        return 1000;
    }
    if says(&["rows end inside tiles", "multiply these operands"]) {
        return 2000;
    }
    1 + SETTINGS.iter().position(|s| s.name == refusal.setting).expect("a setting")
}

/// Settings that a help line names are accepted, in place of what was refused.
#[test]
fn help_is_accepted() {
    let mut numbers = Numbers(seed());
    let (mut followed, mut wrong) = (0, Vec::new());
    for _ in 0..3000 {
        let Some((what, program, bound, config)) = any(&mut numbers) else { continue };
        let Err(LowerError::Setting(refusal)) = passes::lower(&program, &bound, &config) else {
            continue;
        };
        let Refusal { help, instead, .. } = &refusal;
        // Values in backquotes are among those that are tried here.
        for named in help.split('`').skip(1).step_by(2).filter(|word| word.contains('=')) {
            if instead.iter().all(|i| i != named) {
                wrong.push(format!("{what}: {refusal}"));
            }
        }
        // Nodes, which are no setting, and rows between them.
        if instead.is_empty() && refusal.setting != "nodes" {
            wrong.push(format!("{what}: {refusal}"));
        }
        for change in instead {
            let mut config = config.clone();
            settings::read(&mut config, change).unwrap_or_else(|e| panic!("{what}: {e}"));
            followed += 1;
            // Other settings may be refused then, behind this one.
            match passes::lower(&program, &bound, &config) {
                Err(LowerError::Setting(next)) => {
                    let other = next.setting != refusal.setting
                        && !change.contains(&format!("{}=", next.setting));
                    let [next_at, at] = [&next, &refusal].map(place);
                    let later = next_at > at || next_at == at && other;
                    if !later {
                        wrong.push(format!("{what}\n{refusal}\n{change}: {next}"));
                    }
                }
                Err(LowerError::Unsupported { .. }) | Ok(_) => {}
                Err(e) => wrong.push(format!("{what}\n{refusal}\n{change}: {e}")),
            }
        }
    }
    println!("{followed} followed");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(followed > 500, "{followed}");
}

/// Sizes one after the other up to the greatest that the language has: a plan, or a refusal that says which smaller size has one. What is too large
/// has no plan with a larger size.
#[test]
fn sizes_of_any_magnitude_are_refused_at_once_and_in_words() {
    let (mut plans, mut large, mut fits) = (0, 0, 0);
    for (n, (name, text)) in drawn::some(KINDS.iter().enumerate(), 4) {
        for (m, (symbol, least)) in kinds::SIZES.iter().enumerate() {
            let config = Config { ranks: [1, 3, 4, 8][(n + m) % 4], ..Config::default() };
            for off in [0, -8, 1] {
                let mut beyond = None;
                for power in [12, 16, 20, 22, 24, 27, 30] {
                    let size = (1i64 << power) + off;
                    let size = size as u64;
                    let Some((program, bound)) = kind(text, &[(symbol, size)]) else { continue };
                    if program.symbol(symbol).is_none() || size < *least {
                        continue;
                    }
                    let what = format!("{name}, {symbol} = {size} on {} ranks", config.ranks);
                    let begin = std::time::Instant::now();
                    match passes::lower(&program, &bound, &config) {
                        Ok(_) => {
                            assert_eq!(beyond, None, "{what} has a plan");
                            plans += 1;
                        }
                        Err(e @ LowerError::TooLarge { .. }) => {
                            (large, beyond) = (large + 1, Some(size));
                            let e = e.with_what_fits(&program, &bound, &config);
                            fits += usize::from(e.to_string().contains("there is a plan with `"));
                        }
                        Err(e) => assert!(in_words(&e), "{what}: {e}"),
                    }
                    assert!(begin.elapsed().as_secs() < 20, "{what}: {:?}", begin.elapsed());
                }
            }
        }
    }
    println!("{plans} plans, {large} too large, of {fits} it is known what fits");
    // What fits is not known of some, which a draw may have alone.
    let [least, known] = if drawn::whole() { [200, 9] } else { [20, 5] };
    assert!(plans > least && fits * 10 >= large * known, "{plans}, {large}, {fits}");
}

/// The work that a proof counts is that of pairs with a write: many readers of the memory of one task are few pairs, as those of a row that many tokens
/// add up are, whether the row is all that the task writes or not.
#[test]
fn readers_of_one_box_are_no_pairs() {
    let plan = |columns: u32| -> Plan {
        let text = format!(
            "plan \"readers\"\nmesh world=1\ntarget sm_90a
buffer buf0 \"x\" in bf16[1, 16]
buffer buf1 \"h\" scratch bf16[1, 16]
buffer buf2 \"y\" out bf16[20000, {columns}]
signal sig0 \"made\" [1]
role role0 compute ctas 1
family fam0 \"make\" role0 {{
  leaf copy_tile via=ldst stages=1
  for i in 1
  access src: read buf0 @ rank [0 : 1, 0 : 16] at start
  access dst: write buf1 @ rank [0 : 1, 0 : 16] at end
  post e0 sig0[0] @ rank += 1 by copier after program_order scope gpu at end
}}
family fam1 \"take\" role0 {{
  leaf copy_tile via=ldst stages=1
  for i in 20000
  access src: read buf1 @ rank [0 : 1, 0 : {columns}] at start
  access dst: write buf2 @ rank [i : 1, 0 : {columns}] at end
  wait e1 sig0[0] >= 1 by copier for generic scope gpu at start
}}
"
        );
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    };
    for columns in [8, 16] {
        valid::verify(&plan(columns)).unwrap_or_else(|e| panic!("{columns}: {e}"));
    }
}

/// A number that fits no 32 bits, elements of a buffer and entries of tables: nothing is wrong with such a plan but its size.
#[test]
fn limits_are_no_mistakes() {
    let plan = |edits: &[(&str, &str)]| -> Plan {
        let mut text = "plan \"p\"\nmesh world=2\ntarget sm_90a\ntable tab0 \"n\" [8] runtime 0..=9
buffer buf0 \"x\" scratch bf16[8, 8]\nsignal sig0 \"s\" [1]\nrole role0 compute ctas 1\n"
            .to_string();
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    };
    valid::verify(&plan(&[])).unwrap_or_else(|e| panic!("{e}"));
    for (from, to) in [
        ("[8] runtime", "[16777217] runtime"),
        ("[8] runtime", "[9000000] runtime"),
        ("bf16[8, 8]", "bf16[1000000000, 1000000000]"),
        ("bf16[8, 8]", "bf16[1000000000 * 8, 8]"),
        ("\"s\" [1]", "\"s\" [2000000]"),
    ] {
        let failure = valid::verify(&plan(&[(from, to)])).expect_err(to);
        assert!(failure.violations.iter().all(Violation::is_too_large), "{to}: {failure}");
    }
    let negative = valid::verify(&plan(&[("bf16[8, 8]", "bf16[0 - 8, 8]")])).expect_err("negative");
    assert!(!negative.violations.iter().any(Violation::is_too_large), "{negative}");
}
