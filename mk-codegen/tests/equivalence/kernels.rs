//! What is proved and what is emitted: a mutant that verifies has a kernel, or it is said in words that there is none, and why.

use crate::drawn;
use crate::judges::{SMALL, Small, runs};
use crate::mutate::mutants;
use mk_abi::DType;
use mk_codegen::{
    check::{self, CheckError, Claim},
    emit::{EmitError, Options, emit},
    plan::{BufId, Leaf, Plan},
    valid,
};
use std::collections::BTreeMap;

/// Every other element type that some buffer could have, and its name.
fn other_types(plan: &Plan) -> Vec<(String, BufId, Plan)> {
    let mut out = Vec::new();
    for (id, b) in plan.buffers.iter() {
        for dtype in DType::ALL {
            if dtype != b.dtype {
                let mut plan = plan.clone();
                plan.buffers[id].dtype = dtype;
                out.push((format!("{id} {:?} is {dtype}", b.name), id, plan));
            }
        }
    }
    out
}

/// Leaves of which the walks below have to see something.
const LEAVES: &[&str] = &[
    "copy_tile",
    "mma_tile",
    "reduce_tile",
    "attend_tile",
    "stats_tile",
    "sink_tile",
    "attend_dq_tile",
    "attend_dkv_tile",
    "nic_send",
    "host_copy",
];

/// Plans of leaves that no other small plan has.
const MORE: &[Small] = &[
    Small {
        name: "statistics",
        source: "fn f(o: bf16[1, S, 2, 64] @ replicate, do: bf16[1, S, 2, 64] @ replicate, logs: f32[1, 2, S] @ replicate) {
                     o -> attention_stats(do, logs)
                 }",
        ranks: 1,
        shapes: &[("o", &[1, 200, 2, 64])],
        set: |c| c.block = mk_codegen::settings::Config::default().block,
    },
    Small {
        name: "gradients_of_sinks",
        source: "fn f(stats: f32[2, 3, S, 4] @ zigzag(2), s: f32[3]) { attention_dsinks(stats, s) }",
        ranks: 2,
        shapes: &[("stats", &[2, 3, 200, 4])],
        set: |c| c.block = mk_codegen::settings::Config::default().block,
    },
    Small {
        name: "gradients_of_queries",
        source: "fn f(q: bf16[1, S, 2, 64] @ shard(1), do: bf16[1, S, 2, 64] @ shard(1), stats: f32[1, 2, S, 4] @ shard(2),
                      k: bf16[1, S, 1, 64] @ shard(1), v: bf16[1, S, 1, 64] @ shard(1)) {
                     ring(k, v) -> attention_dq(q, do, stats, causal)
                 }",
        ranks: 2,
        shapes: &[("q", &[1, 300, 2, 64])],
        set: |c| c.block = mk_codegen::settings::Config::default().block,
    },
];

/// The element types of each buffer of each leaf: those that verify are executed, and emitted, unless the kernel's layout is in the way.
#[test]
fn element_types_that_verify_are_executed_and_emitted() {
    let (mut seen, mut refused, mut kept) = (BTreeMap::<&str, u32>::new(), 0, 0);
    let mut reasons = BTreeMap::<String, u32>::new();
    for case in SMALL.iter().chain(MORE) {
        let (_, _, plan) = case.made();
        emit(&plan).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (what, buffer, mutant) in other_types(&plan) {
            let touches =
                |f: &&mk_codegen::plan::Family| f.accesses.iter().any(|a| a.buffer == buffer);
            for f in plan.families.values().filter(touches) {
                *seen.entry(f.leaf.name()).or_default() += 1;
            }
            let name = format!("{}: {what}", case.name);
            let typed = mutant.check_elements().is_ok();
            assert!(typed || mutant.check_structure().is_err(), "{name}: not in the structure");
            if !typed {
                // Whoever is asked: verifier, executor, emitter.
                assert!(valid::verify(&mutant).is_err(), "{name} verifies");
                assert!(!runs(&mutant), "{name} is executed");
                let error = emit(&mutant).expect_err(&name).to_string();
                assert!(error.contains("converts nothing") || error.contains(" is "), "{error}");
                refused += 1;
                continue;
            }
            let checked = match check::check(&Claim::read(&mutant, None), Options::default()) {
                Ok(checked) => checked,
                Err(CheckError::NotProved(_)) => continue,
                Err(other) => panic!("{name}: {other}"),
            };
            assert!(runs(&mutant), "{name} verifies, and is not executed");
            let Err(refusals) = checked.kernel else {
                kept += 1;
                continue;
            };
            // Of the place that elements have, and not of what they are.
            for refusal in refusals.iter() {
                let layout = ["16 bytes", "panels of 64 columns", "16-bit results"];
                assert!(layout.iter().any(|l| refusal.what.contains(l)), "{name}: {refusal}");
                *reasons.entry(refusal.what.clone()).or_default() += 1;
            }
        }
    }
    reasons.iter().for_each(|(what, n)| println!("{n:5}  {what}"));
    println!("{refused} refused, {kept} emitted; by leaf: {seen:?}");
    let missing: Vec<_> = LEAVES.iter().filter(|l| !seen.contains_key(**l)).collect();
    assert!(missing.is_empty(), "no buffer of {missing:?} was changed");
    assert!(refused > 300 && kept > 20, "{refused} refused, {kept} emitted");
}

/// Of mutants that verify, each is emitted, or it is said in words what in it no template carries out: never a mistake of the emitter's own. Whoever
/// makes a kernel asks [`check`], and is told the same.
#[test]
fn mutants_that_verify_have_a_kernel_or_a_reason() {
    let (mut emitted, mut several, mut reasons) = (0, 0, BTreeMap::<String, u32>::new());
    for case in SMALL.iter().chain(MORE) {
        let (_, _, plan) = case.made();
        for m in drawn::some(mutants(&plan), 27) {
            let name = format!("{}: {}", case.name, m.name);
            let checked = match check::check(&Claim::read(&m.plan, None), Options::default()) {
                Ok(checked) => checked,
                Err(CheckError::NotProved(_)) => {
                    assert!(valid::verify(&m.plan).is_err(), "{name} verifies");
                    continue;
                }
                Err(other) => panic!("{name}: {other}"),
            };
            let Err(refusals) = checked.kernel else {
                emitted += 1;
                continue;
            };
            let list: Vec<_> = refusals.iter().collect();
            assert!(!list.is_empty(), "{name}");
            several += usize::from(list.len() > 1);
            for refusal in list {
                assert!(!refusal.place.is_empty() && !refusal.what.is_empty(), "{name}");
                *reasons.entry(refusal.what.clone()).or_default() += 1;
            }
            match emit(&m.plan) {
                Err(EmitError::Refused(again)) => assert_eq!(again, refusals, "{name}"),
                other => panic!("{name}: {:?}", other.err()),
            }
        }
    }
    println!("{emitted} emitted, {several} refused for several reasons; without a kernel:");
    reasons.iter().for_each(|(what, n)| println!("{n:5}  {what}"));
    assert!(emitted > if drawn::whole() { 200 } else { 10 }, "{emitted} emitted");
}

/// Everything that no template carries out is said at once, and not what stands first alone.
#[test]
fn all_that_has_no_kernel_is_listed() {
    let case = SMALL.iter().find(|c| c.name.starts_with("gather")).expect("a gather");
    let (_, _, mut plan) = case.made();
    let tiles = plan.families.iter().filter(|(_, f)| matches!(f.leaf, Leaf::MmaTile { .. }));
    let tiles: Vec<_> = tiles.map(|(id, _)| id).collect();
    assert!(!tiles.is_empty());
    // Loops with names of the templates, in every family of tiles, and a buffer of another place.
    for id in &tiles {
        plan.families[*id].domain[0].0 = "kStep".into();
    }
    plan.families.iter_mut().for_each(|(_, f)| {
        if f.leaf == Leaf::Enter {
            f.posts[0].scope = mk_codegen::plan::Scope::Gpu;
        }
    });
    let Err(EmitError::Refused(refusals)) = emit(&plan) else { panic!("emitted") };
    let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(all.len(), tiles.len() + 1, "{all:?}");
    for id in tiles {
        assert!(all.iter().any(|r| r.starts_with(&format!("{id} "))), "{all:?}");
    }
    assert!(all.iter().any(|r| r.contains("ranks enter by one family")), "{all:?}");
}

/// Destinations of sends: with data and without, whatever the rank.
#[test]
fn sends_go_to_ranks_of_other_nodes() {
    let mut judged = 0;
    for case in SMALL.iter().filter(|case| case.name.starts_with("nodes")) {
        let (_, _, plan) = case.made();
        let sends = plan.families.iter().filter(|(_, f)| f.leaf == Leaf::NicSend);
        for (id, f) in sends {
            let dst = f.accesses.iter().position(|a| a.operand.name() == "dst").expect("a dst");
            let mut change = |what: &str, f: &dyn Fn(&mut mk_codegen::plan::Access)| {
                let mut mutant = plan.clone();
                f(&mut mutant.families[id].accesses[dst]);
                let name = format!("{}: {id}: {what}", case.name);
                assert!(valid::verify(&mutant).is_err(), "{name} verifies");
                judged += 1;
            };
            let rank = || mk_codegen::plan::Expr::from(mk_codegen::plan::Var::RANK);
            for to in [-1, 0, 1, 2, 3, 4, 7] {
                change(&format!("to {to}"), &|a| a.rank = to.into());
            }
            change("to itself", &|a| a.rank = rank());
            change("to its node", &|a| a.rank = rank() / 2 * 2 + (rank() + 1) % 2);
            change("beyond the last", &|a| a.rank = rank() + 2);
            // The right node, and another rank of it than the one whose words are raised.
            change("beside", &|a| a.rank = (rank() / 2 * 2 + (rank() + 1) % 2 + 2) % 4);
            change("never", &|a| a.when = Some(0.into()));
            change("twice", &|a| {
                a.each = Some(mk_codegen::plan::Each { var: "twice".into(), extent: 2.into() });
            });
        }
    }
    assert!(judged > 40, "{judged}");
}
