//! What copy engines do beside a kernel: the copies that the host makes are those of the plan, and plans that streams cannot
//! carry out are refused.

mod common;

use common::VARIANTS;
use mk_abi::{HostOp, KernelSource};
use mk_codegen::{
    emit::{audit, emit},
    plan::{Entity, Plan},
    valid,
};

fn variant(name: &str) -> (Plan, KernelSource) {
    let v = VARIANTS.iter().find(|v| v.case.0 == name).expect("there is such a variant");
    let plan = v.plan(v.case.2).expect("lowers");
    let source = emit(&plan).expect("emits");
    (plan, source)
}

/// 1900 rows of 1536 bf16 on 3 ranks: 634, 634 and 632, in parts of 3 blocks of 128.
#[test]
fn copies_are_those_of_the_plan() {
    let (plan, source) = variant("engine_parts");
    valid::verify(&plan).expect("verifies");
    let program = source.host.expect("engines work");
    let row = 1536 * 2;
    let (all, _) = plan.buffers.iter().find(|(_, b)| b.name == "a_all").expect("a workspace");
    let place = format!("constexpr u64 kBuf{} = ", all.index());
    let place = source.cuda.split(&place).last().and_then(|t| t.split(';').next());
    let base: u64 = place.and_then(|t| t.parse().ok()).expect("the kernel says where it is");
    for (rank, ops) in (0u32..).zip(&program.ranks) {
        let held = [634, 634, 632][rank as usize];
        let mut expected = Vec::new();
        for to in [(rank + 2) % 3, (rank + 1) % 3] {
            for part in 0..2u64 {
                let (from, rows) = (part * 384, 384.min(held - part * 384));
                let to_bytes = base + (u64::from(rank) * 634 + from) * row;
                expected.push((to, from * row, to_bytes, rows * row));
            }
        }
        assert_eq!(ops[0], HostOp::AwaitEntry, "rank {rank}");
        // Each copy is followed by the word that announces it, on the same rank.
        let made = ops[1..].chunks(2).map(|pair| match pair {
            [
                HostOp::Copy { tensor, from_bytes, to_rank, to_bytes, bytes },
                HostOp::Raise { rank, .. },
            ] => {
                assert_eq!((&*source.tensors[*tensor as usize].name, rank), ("a", to_rank));
                (*to_rank, *from_bytes, *to_bytes, *bytes)
            }
            other => panic!("rank {rank}: {other:?}"),
        });
        assert_eq!(made.collect::<Vec<_>>(), expected, "rank {rank}");
    }
    // Every part is announced once on each peer, by a word of its own that lies among the signals.
    let raised = |op: &HostOp| match op {
        HostOp::Raise { rank, word } => Some((*rank, *word)),
        _ => None,
    };
    let mut words: Vec<_> = program.ranks.iter().flatten().filter_map(raised).collect();
    words.sort_unstable();
    let n = words.len();
    words.dedup();
    assert_eq!((n, words.len()), (3 * 2 * 2, n));
    assert!(words.iter().all(|(rank, w)| *rank < 3 && w * 4 < source.workspace.zeroed_bytes));
}

/// Of the gate, and of what stands for it in a launch that is not captured.
#[test]
fn a_line_less_of_what_lets_engines_begin_fails_the_audit() {
    let (plan, source) = variant("engine");
    audit(&plan, &source.cuda).expect("the kernel as emitted");
    let lines: Vec<_> = source.cuda.lines().collect();
    let at = |what: &str| lines.iter().position(|l| l.contains(what)).expect("is there");
    let (role, gate) = (at("void role_compute("), at("mk_gate("));
    let end = gate + lines[gate..].iter().position(|l| *l == "}").expect("which ends");
    let in_role = ["post_entered<", "Reader::Generic>(ctx, p, 0)", "launch_engines(ctx);"];
    let in_gate = [
        "launch_begin",
        "read_past",
        "launch_gate_",
        "post_entered<",
        "Reader::Generic>(ctx, p, 0)",
    ];
    let mut tried = Vec::new();
    for (part, calls) in [(role..gate, &in_role[..]), (gate..end, &in_gate[..])] {
        let found = part.filter(|i| calls.iter().any(|call| lines[*i].contains(call)));
        tried.push(
            found
                .map(|i| {
                    let without = [&lines[..i], &lines[i + 1..]].concat().join("\n");
                    assert!(audit(&plan, &without).is_err(), "nobody misses: {}", lines[i]);
                })
                .count(),
        );
    }
    assert_eq!(tried, [3, 7]);
    // The word comes behind the waits, and the gate's announcement before its own.
    let before = |first: &str, then: &str, from: usize| {
        let place =
            |what: &str| lines[from..].iter().position(|l| l.contains(what)).expect("there");
        assert!(place(first) < place(then), "{first}, {then}");
    };
    for (from, last) in [(role, "launch_engines(ctx);"), (gate, "launch_gate_end(ctx);")] {
        before("post_entered<", "Reader::Generic>(ctx, p, 0)", from);
        before("Reader::Generic>(ctx, p, 0)", last, from);
    }
}

#[track_caller]
fn refused(from: &str, to: &str, says: &str) {
    let text = variant("engine_parts").0.to_string();
    assert!(text.contains(from), "{from}");
    let plan: Plan = text.replacen(from, to, 1).parse().unwrap_or_else(|e| panic!("{e}"));
    let error = emit(&plan).expect_err("streams cannot do that").to_string();
    assert!(error.contains(says), "{error}");
}

#[test]
fn what_streams_cannot_carry_out_is_refused() {
    let all = "only wait until all ranks have entered";
    refused(
        "by engine for host scope sys at start each p in 3",
        "by engine for host scope sys at start each p in 2",
        all,
    );
    refused("wait e5 sig0[p] >= 1 by engine", "wait e5 sig1[p, 0] >= 1 by engine", all);
    // Words that count more than launches.
    refused("post e8 sig2[rank, c]", "post e8 sig2[rank, 0]", "is raised 2 times");
    refused(
        "+= 1 by engine after program_order scope sys at end\n}",
        "+= 2 by engine after program_order scope sys at end\n}",
        "adds one",
    );
    // The end of the own stream says nothing of a peer's.
    refused(
        "post e6 sig1[s, c] @ rank",
        "post e6 sig1[s, c] @ (rank + 1) % 3",
        "its own copy engine",
    );
    refused("wait e9 sig2[", "wait e9 sig1[", "can only wait for its copy engines");
    // Parts of rows.
    refused("0 : a_1] at start\n  access dst", "0 : 8] at start\n  access dst", "whole rows");
}
