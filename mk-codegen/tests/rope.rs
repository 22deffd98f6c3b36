//! Heads turned by angles: plans that turn otherwise are refused.

use mk_codegen::{
    passes::{Claim, LowerError, lower},
    plan::Plan,
    settings::Config,
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const SOURCE: &str = "fn f(x: bf16[M, N] @ shard(1), t: f32[M, 32]) { x -> rope(t) }";

fn bound(source: &str, columns: u64) -> (Program, Bound) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let dims = BTreeMap::from([("M".to_string(), 100), ("N".to_string(), columns)]);
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    (program, bound)
}

fn lowered(source: &str, columns: u64) -> Result<Plan, LowerError> {
    let (program, bound) = bound(source, columns);
    lower(&program, &bound, &Config { ranks: 2, ..Config::default() })
}

/// What is wrong with a plan, as a text; nothing if it is proved.
fn wrong(plan: &str) -> String {
    let (program, bound) = bound(SOURCE, 192);
    let plan: Plan = plan.parse().unwrap_or_else(|e| panic!("{e}"));
    Claim::read(&plan, Some((&program, &bound)))
        .prove()
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default()
}

#[test]
fn what_turns_otherwise_is_refused() {
    let plan = lowered(SOURCE, 192).unwrap_or_else(|e| panic!("{e}")).to_string();
    assert_eq!(wrong(&plan), "");
    let angles = "access e0: read buf1 @ rank [i * 8 : min(8, M - i * 8), 0 : 32]";
    let rows = "i * 8 : min(8, M - i * 8)";
    for (from, to, says) in [
        // The other way round.
        ("rope_tile", "rope_back_tile", "other arithmetic"),
        // By angles of the rows behind, and of heads of half the size.
        (angles, "access e0: read buf1 @ rank [(i * 8 + 8) % 104 : min(8, M - i * 8), 0 : 32]", ""),
        (angles, &format!("access e0: read buf1 @ rank [{rows}, 0 : 16]"), ""),
        // By no whole head.
        (angles, &format!("access e0: read buf1 @ rank [{rows}, 0 : 20]"), "`dst` is"),
        (angles, &format!("access e0: read buf1 @ rank [{rows}, 0 : 31]"), "`dst` is"),
    ] {
        let broken = plan.replace(from, to);
        assert_ne!(broken, plan, "{from}");
        let found = wrong(&broken);
        assert!(!found.is_empty() && found.contains(says), "{to}: {found}");
    }
}

#[test]
fn heads_are_whole_on_every_rank() {
    for (source, columns) in [
        (SOURCE, 96),
        ("fn f(x: bf16[M, N], t: f32[M, 24]) { x -> rope(t) }", 96),
        ("fn f(x: bf16[M, N] @ shard(0), t: f32[M, 64] @ shard(0)) { x -> rope(t) }", 96),
    ] {
        let error = lowered(source, columns).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("no whole heads on every rank"), "{source}: {error}");
    }
}
