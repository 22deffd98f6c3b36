//! Every wait, post, threshold, scope, completion and proxy of the fixtures is needed: each mutant of one line is
//! rejected, except those that are listed with the reason why they are as good as the original.

use mk_codegen::{
    ir::{Completion, FamId, Plan, Point, Proxy, Scope},
    valid,
};
use std::{fs, path::Path};

fn fixture(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// All mutants of one line, with a name for each, and the rule that is expected to reject it (0: any).
fn mutants(plan: &Plan) -> Vec<(String, Plan, u8)> {
    let mut out = Vec::new();
    let mut add = |name: String, rule: u8, change: &dyn Fn(&mut Plan)| {
        let mut mutant = plan.clone();
        change(&mut mutant);
        out.push((name, mutant, rule));
    };
    let ids: Vec<FamId> = plan.families.keys().collect();
    for id in ids {
        let x = &plan.families[id];
        for (i, w) in x.waits.iter().enumerate() {
            let e = w.edge;
            add(format!("{e} dropped"), 0, &|p| {
                p.families[id].waits.remove(i);
            });
            add(format!("{e} count - 1"), 3, &|p| {
                let w = &mut p.families[id].waits[i];
                w.count = w.count.clone() - 1;
            });
            add(format!("{e} count + 1"), 3, &|p| {
                let w = &mut p.families[id].waits[i];
                w.count = w.count.clone() + 1;
            });
            if w.lag == 0 {
                add(format!("{e} lag 1"), 0, &|p| p.families[id].waits[i].lag = 1);
            }
            if w.scope == Scope::Sys {
                add(format!("{e} scope gpu"), 4, &|p| p.families[id].waits[i].scope = Scope::Gpu);
            }
            for proxy in
                [Proxy::Generic, Proxy::Async, Proxy::Host].into_iter().filter(|x| *x != w.proxy)
            {
                add(format!("{e} for {}", proxy.name()), 4, &|p| {
                    p.families[id].waits[i].proxy = proxy
                });
            }
            for agent in x.leaf.contract().agents.into_iter().filter(|a| *a != w.by) {
                add(format!("{e} by {agent}"), 0, &|p| p.families[id].waits[i].by = agent);
            }
        }
        for (i, post) in x.posts.iter().enumerate() {
            let e = post.edge;
            add(format!("{e} dropped"), 3, &|p| {
                p.families[id].posts.remove(i);
            });
            add(format!("{e} twice as much"), 3, &|p| {
                let post = &mut p.families[id].posts[i];
                post.add = post.add.clone() * 2;
            });
            if post.scope == Scope::Sys {
                add(format!("{e} scope gpu"), 4, &|p| p.families[id].posts[i].scope = Scope::Gpu);
            }
            use Completion::*;
            for after in
                [ProgramOrder, SmemReadDone, GlobalWriteDone, NicPosted, NicDelivered, NicFlushed]
            {
                if after < post.after {
                    add(format!("{e} after {}", after.name()), 4, &|p| {
                        p.families[id].posts[i].after = after
                    });
                }
            }
            if post.at == Point::End {
                add(format!("{e} at start"), 0, &|p| p.families[id].posts[i].at = Point::Start);
            }
            for agent in x.leaf.contract().agents.into_iter().filter(|a| *a != post.by) {
                add(format!("{e} by {agent}"), 0, &|p| p.families[id].posts[i].by = agent);
            }
        }
    }
    out
}

/// Mutants that are as good as the original, and why.
const EQUIVALENT: &[(&str, &[&str], &str)] = &[
    (
        "gather_gemm",
        &["e3 by loader"],
        "the loader fills the stages that the storer writes from, so that what holds the loader back holds the storer back",
    ),
    (
        "gather_gemm",
        &["e4 at start"],
        "`dst` is accessed at start in this fixture, and the post still comes after it",
    ),
    (
        "gemm_reduce_scatter",
        &["e5 by loader", "e5 by consumers"],
        "the storer stores what these two hand on",
    ),
    ("gemm_reduce_scatter", &["e7 for async"], "an acquire with a proxy fence is also an acquire"),
    ("moe_dispatch", &["e4 by loader"], "as in gather_gemm"),
    ("ring_attention_registers", &["e7 by loader", "e8 by loader"], "as in gather_gemm"),
    ("ring_attention_scratch", &["e7 by loader"], "as in gather_gemm"),
    (
        "ring_attention_scratch",
        &["e12 for async"],
        "an acquire with a proxy fence is also an acquire",
    ),
    (
        "two_nodes_nic",
        &[
            "e3 after program_order",
            "e3 after smem_read_done",
            "e3 after global_write_done",
            "e3 after nic_posted",
            "e3 at start",
            "e3 by issuer",
            "e3 by sender",
        ],
        "the announcement of an epoch sends no data, so that there is nothing to complete; it only says that the kernel has begun",
    ),
    ("two_nodes_nic", &["e6 by loader", "e16 by loader", "e21 by loader"], "as in gather_gemm"),
    (
        "two_nodes_nic",
        &["e10 for generic", "e10 for async", "e11 for generic", "e11 for async"],
        "what a wait at scope sys has seen, the network card reads: it has no proxy of its own in the GPU",
    ),
    (
        "two_nodes_nic",
        &["e12 at start"],
        "`src` is read at start, and the post waits for its delivery",
    ),
    (
        "two_nodes_nic",
        &["e13 at start"],
        "the receiving host does nothing for a task before the immediate has come",
    ),
];

#[test]
fn every_mutant_is_rejected() {
    let names = [
        "gather_gemm",
        "gemm_reduce_scatter",
        "moe_dispatch",
        "ring_attention_registers",
        "ring_attention_scratch",
        "two_nodes_nic",
    ];
    for name in names {
        let all = mutants(&fixture(&format!("{name}.plan")));
        let total = all.len();
        let mut accepted = Vec::new();
        for (mutant, plan, rule) in all {
            match valid::verify(&plan) {
                Ok(_) => accepted.push(mutant),
                Err(e) => {
                    let rejected_by = |r: u8| e.violations.iter().any(|v| v.rule() == r);
                    assert!(
                        rule == 0 || rejected_by(rule),
                        "{name}, {mutant}: rule {rule} expected: {e}"
                    );
                }
            }
        }
        let equivalent = EQUIVALENT.iter().filter(|e| e.0 == name).flat_map(|e| e.1);
        let mut expected: Vec<_> = equivalent.map(|m| m.to_string()).collect();
        expected.sort();
        accepted.sort();
        println!("{name}: {} of {total} mutants rejected", total - accepted.len());
        assert_eq!(accepted, expected, "{name}: accepted, and expected to be");
    }
}
