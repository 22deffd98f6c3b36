//! What the fixtures do not use: a caller's tensors in place, reduce-on-write, copy engines, in-order networks; limits;
//! and texts that nobody would write.

use mk_codegen::{
    plan::{Operand, Plan, Point},
    valid::{self, Failure, Proof},
};
use std::{fs, path::Path, time::Instant};

fn verify(text: &str) -> Result<Proof, Failure> {
    let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{e}"));
    valid::verify(&plan)
}

#[track_caller]
fn accepted(text: &str) -> Proof {
    verify(text).unwrap_or_else(|e| panic!("{e}"))
}

/// The rules, each once, that reject a text in which `from` is replaced.
#[track_caller]
fn rejected(text: &str, from: &str, to: &str) -> (Vec<u8>, String) {
    assert!(text.contains(from), "{from}");
    match verify(&text.replacen(from, to, 1)) {
        Ok(proof) => panic!("{from} -> {to}: accepted: {proof}"),
        Err(e) => {
            let mut rules: Vec<_> = e.violations.iter().map(|v| v.rule()).collect();
            rules.dedup();
            (rules, e.to_string())
        }
    }
}

/// Every rank pulls both shards of a tensor that the callers share, and lets go of it before its kernel ends.
const PULL: &str = r#"plan "pull"
mesh world=2
target sm_90a
buffer buf0 "x" in shared bf16[128, 64]
buffer buf1 "y" out bf16[256, 64]
signal sig0 "entered" [2]
signal sig1 "read" [2]
role role0 prologue ctas 0
role role1 intra_comm ctas 2
role role2 epilogue ctas 0
family fam0 "enter" role0 {
  leaf enter
  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 2
}
family fam1 "pull" role1 {
  leaf copy_tile via=bulk stages=2
  for s in 2
  edge e1 full
  edge e2 empty
  access src: read buf0 @ s [0 : 128, 0 : 64] at start
  access dst: write buf1 @ rank [s * 128 : 128, 0 : 64] at end
  wait e3 sig0[s] >= 1 by loader for async scope sys at start
  post e4 sig1[rank] @ s += 1 by storer after program_order scope sys at end
}
family fam2 "leave" role2 {
  leaf signal
  wait e5 sig1[p] >= 1 by lead for generic scope sys at start each p in 2
}
"#;

#[test]
fn a_tensor_that_peers_read_in_place() {
    let proof = accepted(PULL);
    assert_eq!(proof.waits_unused, []);
    // The reads of the epoch before would do for a workspace slot, not for a tensor that the caller has just written.
    assert_eq!(rejected(PULL, "sig0[s] >= 1", "sig0[s] >= 1 lag 1").0, [1]);
    assert_eq!(rejected(PULL, "sig1[p] >= 1", "sig1[p] >= 1 lag 1").0, [1]);
    assert_eq!(
        rejected(
            PULL,
            "post e4 sig1[rank] @ s += 1 by storer",
            "post e4 sig1[rank] @ s += 1 by loader"
        )
        .0,
        [4, 6]
    );
    assert_eq!(
        rejected(
            PULL,
            "by storer after program_order scope sys",
            "by storer after program_order scope gpu"
        )
        .0,
        [4]
    );
}

/// Every rank shows its rows, and reads those of both; it writes the next ones when the last ones have been read.
const SHOW: &str = r#"plan "show"
mesh world=2
target sm_90a
buffer buf0 "x" in bf16[128, 64]
buffer buf1 "shown" workspace bf16[128, 64]
buffer buf2 "y" out bf16[256, 64]
signal sig0 "shown" [2]
signal sig1 "read" [2]
role role0 intra_comm ctas 3
role role1 epilogue ctas 0
family fam0 "show" role0 {
  leaf copy_tile via=ldst stages=1
  access src: read buf0 @ rank [0 : 128, 0 : 64] at start
  access dst: write buf1 @ rank [0 : 128, 0 : 64] at end
  wait e0 sig1[p] >= 1 lag 1 by copier for generic scope sys at start each p in 2
  post e1 sig0[rank] @ p += 1 by copier after program_order scope sys at end each p in 2
}
family fam1 "read" role0 {
  leaf copy_tile via=ldst stages=1
  for s in 2
  access src: read buf1 @ s [0 : 128, 0 : 64] at start
  access dst: write buf2 @ rank [s * 128 : 128, 0 : 64] at end
  wait e2 sig0[s] >= 1 by copier for generic scope sys at start
  post e3 sig1[rank] @ s += 1 by copier after program_order scope sys at end
}
"#;

/// Other kernels may write workspace between launches where no peer touches it outside of its own rank's kernel.
#[test]
fn workspace_that_other_kernels_may_have() {
    let exclusive = |text: &str| {
        let names = accepted(text).exclusive;
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // A peer may read until the next launch.
    assert_eq!(exclusive(SHOW), ["buf1"]);
    let leave = "family fam2 \"leave\" role1 {\n  leaf signal\n  \
                 wait e4 sig1[p] >= 1 by lead for generic scope sys at start each p in 2\n}\n";
    assert!(exclusive(&format!("{SHOW}{leave}")).is_empty());
    assert!(exclusive(ACCUMULATE).is_empty());
    let of_file = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(name);
        exclusive(&fs::read_to_string(path).expect("a plan"))
    };
    assert!(of_file("gather_gemm.plan").is_empty());
    // Slots of either parity, which a peer writes when the launch before has begun.
    assert_eq!(of_file("moe_dispatch.plan"), ["buf3"]);
}

/// Every rank zeroes its accumulator, and all ranks add to all accumulators.
const ACCUMULATE: &str = r#"plan "reduce_on_write"
mesh world=2
target sm_90a
buffer buf0 "x" in f32[2, 64]
buffer buf1 "zero" in f32[64]
buffer buf2 "acc" workspace f32[64]
buffer buf3 "y" out f32[64]
signal sig0 "zeroed" [2]
signal sig1 "added" [2]
role role0 intra_comm ctas 3
family fam0 "clear" role0 {
  leaf copy_tile via=ldst stages=1
  access src: read buf1 @ rank [0 : 64] at start
  access dst: write buf2 @ rank [0 : 64] at end
  post e0 sig0[rank] @ p += 1 by copier after program_order scope sys at end each p in 2
}
family fam1 "add" role0 {
  leaf copy_tile via=ldst stages=1
  for p in 2
  access src: read buf0 @ rank [p : 1, 0 : 64] at start
  access dst: accumulate buf2 @ p [0 : 64] version 1 at end
  wait e1 sig0[p] >= 1 by copier for generic scope sys at start
  post e2 sig1[rank] @ p += 1 by copier after program_order scope sys at end
}
family fam2 "take" role0 {
  leaf copy_tile via=ldst stages=1
  access src: read buf2 @ rank [0 : 64] version 1 at start
  access dst: write buf3 @ rank [0 : 64] at end
  wait e3 sig1[q] >= 1 by copier for generic scope sys at start each q in 2
}
"#;

#[test]
fn reduce_on_write() {
    let proof = accepted(ACCUMULATE);
    assert_eq!(proof.waits_unused, []);
    assert_eq!(
        rejected(
            ACCUMULATE,
            "  wait e1 sig0[p] >= 1 by copier for generic scope sys at start\n",
            ""
        )
        .0,
        [1]
    );
    assert_eq!(rejected(ACCUMULATE, "each q in 2", "each q in 1").0, [1]);
    // Half of what is added to was left by an earlier epoch.
    let half = ACCUMULATE.replace("read buf1 @ rank [0 : 64]", "read buf1 @ rank [0 : 32]");
    let (rules, text) = rejected(&half, "write buf2 @ rank [0 : 64]", "write buf2 @ rank [0 : 32]");
    assert!(rules.contains(&5) && text.contains("[32 : 32]"), "{text}");
    // Zeroing and adding in one version: either may come first.
    assert!(rejected(ACCUMULATE, "[0 : 64] version 1 at end", "[0 : 64] at end").0.contains(&5));
    assert_eq!(rejected(ACCUMULATE, "accumulate buf2 @ p", "write buf2 @ p").0, [5]);
}

/// The copy engine of each rank, which the host drives, copies a tensor to the peer.
const ENGINE: &str = r#"plan "engine"
mesh world=2
target sm_90a
buffer buf0 "x" in bf16[64]
buffer buf1 "all" workspace bf16[2, 64]
buffer buf2 "y" out bf16[64]
signal sig0 "entered" [2]
signal sig1 "arrived" [2]
signal sig2 "copied" [1]
role role0 prologue ctas 0
role role1 compute ctas 1
role role2 copy_engine ctas 0
family fam0 "enter" role0 {
  leaf enter
  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 2
}
family fam1 "copy" role2 {
  leaf host_copy
  access src: read buf0 @ rank [0 : 64] at start
  access dst: write buf1 @ (rank + 1) % 2 [rank : 1, 0 : 64] at end
  wait e1 sig0[p] >= 1 by engine for host scope sys at start each p in 2
  post e2 sig1[rank] @ (rank + 1) % 2 += 1 by engine after program_order scope sys at end
  post e3 sig2[0] @ rank += 1 by engine after program_order scope sys at end
}
family fam2 "take" role1 {
  leaf copy_tile via=ldst stages=1
  access src: read buf1 @ rank [(rank + 1) % 2 : 1, 0 : 64] at start
  access dst: write buf2 @ rank [0 : 64] at end
  wait e4 sig1[(rank + 1) % 2] >= 1 by copier for generic scope sys at start
  wait e5 sig2[0] >= 1 by copier for generic scope sys at start
}
"#;

#[test]
fn a_copy_engine_is_ordered_by_signals_alone() {
    let proof = accepted(ENGINE);
    assert_eq!(proof.waits_unused, []);
    // Nothing else says that the own kernel has begun, so that the caller has written.
    assert_eq!(rejected(ENGINE, "sig0[p] >= 1 by", "sig0[(rank + 1) % 2] >= 1 by").0, [1]);
    // Nor that the engine is through when the kernel gives the tensor back to the caller.
    let (rules, text) =
        rejected(ENGINE, "  wait e5 sig2[0] >= 1 by copier for generic scope sys at start\n", "");
    assert!(rules == [1] && text.contains("the caller of rank"), "{text}");
    assert_eq!(rejected(ENGINE, "for generic scope sys", "for generic scope gpu").0, [4]);
    assert_eq!(rejected(ENGINE, "role2 {\n  leaf host_copy", "role1 {\n  leaf host_copy").0, [6]);
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn an_ordered_network_may_raise_its_own_flag() {
    let text = fixture("two_nodes_nic.plan")
        .replace("nic unordered", "nic in_order")
        .replace("by receiver after nic_flushed", "by sender after nic_posted");
    accepted(&text);
    assert_eq!(rejected(&text, "nic in_order", "nic unordered").0, [4]);
    // The source is free on delivery, whatever the order.
    assert_eq!(
        rejected(&text, "by sender after nic_delivered", "by sender after nic_posted").0,
        [4]
    );
}

#[test]
fn slots_of_three_epochs() {
    let text = fixture("moe_dispatch.plan")
        .replace("epoch % 2", "epoch % 3")
        .replace("workspace bf16[2, T, K]", "workspace bf16[3, T, K]");
    let proof = accepted(&text);
    assert_eq!((proof.period, proof.epochs), (3, 6));
    // Slots used in turns of three, but only two of them distinct.
    assert!(rejected(&text, "[epoch % 3 : 1, i * 8", "[epoch % 3 % 2 : 1, i * 8").0.contains(&5));
}

#[test]
fn what_is_too_large_is_refused_at_once() {
    let text = fixture("gather_gemm.plan");
    for (from, to) in [
        ("  for i in 2", "  for i in 2000000000"),
        ("  for i in 2\n  for s in 2", "  for i in 2000000000\n  for s in 0"),
        ("each p in 3", "each p in 2000000000"),
        ("signal sig0 \"entered\" [3]", "signal sig0 \"entered\" [2000000000]"),
        ("workspace bf16[3, 134, K]", "workspace bf16[2000000000, 2000000000, K]"),
        ("compute ctas 4", "compute ctas 500"),
        ("target sm_90a", "target sm_00"),
        ("rank * 134 + i * 128 :", "rank * 2000000000 :"),
        ("+= 1 by lead", "+= 1 / 0 by lead"),
    ] {
        let begin = Instant::now();
        let (rules, text) = rejected(&text, from, to);
        assert!(rules.iter().all(|r| [2, 6].contains(r)), "{to}: {text}");
        assert!(begin.elapsed().as_secs() < 5, "{to}: {:?}", begin.elapsed());
    }
}

/// Every number of every fixture replaced by others, every line left out: whatever it says, the verifier answers.
#[test]
fn no_text_makes_the_verifier_panic() {
    let mut said = [0; 3];
    // Run-time tables make a text a hundred runs: there, one text in fifteen.
    for (name, stride) in [
        ("gather_gemm", 1),
        ("moe_dispatch", 15),
        ("ring_attention_scratch", 2),
        ("two_nodes_nic", 2),
    ] {
        let text = fixture(&format!("{name}.plan"));
        let mut texts: Vec<String> =
            text.lines().map(|l| text.replacen(&format!("{l}\n"), "", 1)).collect();
        let mut at = 0;
        while let Some(start) = text[at..].find(|c: char| c.is_ascii_digit()).map(|i| at + i) {
            let len =
                text[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - start);
            for number in ["0", "1", "5", "3000", "2147483647"] {
                texts.push(format!("{}{number}{}", &text[..start], &text[start + len..]));
            }
            at = start + len;
        }
        for t in texts.into_iter().step_by(stride) {
            let begin = Instant::now();
            let outcome = t.parse::<Plan>().ok().map(|plan| valid::verify(&plan));
            said[match &outcome {
                None => 0,
                Some(Err(_)) => 1,
                Some(Ok(_)) => 2,
            }] += 1;
            assert!(begin.elapsed().as_secs() < 20, "{:?}\n{t}", begin.elapsed());
        }
    }
    println!("{} texts are no plans, {} are refused, {} are accepted", said[0], said[1], said[2]);
}

/// One name would be two things, in the text and in the kernel.
#[test]
fn names_of_loops_are_not_hidden() {
    let says = |from: &str, to: &str| {
        assert!(PULL.contains(from), "{from}");
        match PULL.replacen(from, to, 1).parse::<Plan>() {
            Ok(plan) => match plan.check_structure() {
                Ok(()) => "nothing".to_string(),
                Err(e) => e.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("\n"),
            },
            Err(e) => e.to_string(),
        }
    };
    let each = says("program_order scope sys at end", "program_order scope sys at end each s in 2");
    assert!(each.contains("`s` is a loop variable of the family"), "{each}");
    let other =
        says("program_order scope sys at end", "program_order scope sys at end each q in 2");
    assert_eq!(other, "nothing");
    let twice = says("  for s in 2\n", "  for s in 2\n  for s in 1\n");
    assert!(twice.contains("two loop variables `s`"), "{twice}");
}

/// A plan of `tests/plans/broken`.
fn broken(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans/broken").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What one CTA would have to end before it can begin ends where tasks are dealt out, and not where whoever is free takes the next.
#[test]
fn dynamically_scheduled_tasks_end_in_their_order() {
    let dynamic = "  for i in 2\n  schedule dynamic\n";
    let dealt = broken("rule2_first_come.plan").replace(dynamic, "  for i in 2\n");
    accepted(&dealt);
    // In their order.
    let ordered = dealt.replace("when i == 0", "when i == 2").replace("when i == 1", "when i == 0");
    let ordered = ordered.replace("when i == 2", "when i == 1");
    accepted(&ordered);
    accepted(&ordered.replace("  for i in 2\n", dynamic));
    // Where another family of the role is for whoever is free, this one is taken to be run by one CTA, too.
    let other = |text: &str| {
        let last = text.rfind("  for i in 2\n").expect("two families");
        text[..last].to_string() + &text[last..].replacen("  for i in 2\n", dynamic, 1)
    };
    assert!(verify(&other(&dealt)).is_err_and(|e| e.violations.iter().all(|v| v.rule() == 2)));
    accepted(&other(&ordered));
}

/// Copiers and consumers of a CTA are the same warps: with the product first, the copy that waits for what comes of it is no harm.
#[test]
fn warps_that_copy_and_multiply_take_their_tasks_in_order() {
    let text = broken("rule2_same_warps.plan");
    let mut parts = text.split("family fam");
    let head = parts.next().unwrap_or_default();
    // Without their numbers.
    let mut families: Vec<&str> = parts.map(|family| &family[1..]).collect();
    families.rotate_right(1);
    families.swap(1, 2);
    let families = (0..).zip(families).map(|(n, text): (u32, _)| format!("family fam{n}{text}"));
    accepted(&(head.to_string() + &families.collect::<String>()));
}

/// Reduction of two slots, with a bias and a matrix added.
const FINISHED: &str = r#"plan "finished"
mesh world=1
target sm_90a
buffer buf0 "slots" in bf16[2, 256, 64]
buffer buf1 "c" in bf16[64]
buffer buf2 "y" in bf16[256, 64]
buffer buf3 "out" out bf16[256, 64]
role role0 compute ctas 2
family fam0 "reduce" role0 {
  leaf reduce_tile epilogue=bias,gelu,add
  for i in 2
  access src: read buf0 @ rank [s : 1, i * 128 : 128, 0 : 64] at start each s in 2
  access e0: read buf1 @ rank [0 : 64] at start
  access e1: read buf2 @ rank [i * 128 : 128, 0 : 64] at start
  access dst: write buf3 @ rank [i * 128 : 128, 0 : 64] at end
}
"#;

#[test]
fn what_is_done_to_a_sum_has_operands_of_its_size() {
    accepted(FINISHED);
    let of = |from: &str, to: &str| rejected(FINISHED, from, to);
    let (rules, why) =
        of("buf2 @ rank [i * 128 : 128, 0 : 64]", "buf2 @ rank [i * 128 : 64, 0 : 64]");
    assert!(
        rules.contains(&6) && why.contains("a contribution is 128 x 64, and `e1` 64 x 64"),
        "{why}"
    );
    let (rules, why) = of("buf1 @ rank [0 : 64]", "buf1 @ rank [0 : 32]");
    assert!(rules.contains(&6) && why.contains("`e0` 32"), "{why}");
    let malformed = |epilogue: &str| {
        let text = FINISHED.replace("bias,gelu,add", epilogue);
        verify(&text).expect_err(epilogue).to_string()
    };
    for (epilogue, why) in [
        ("bias,add,swiglu", "a sum has no `swiglu` behind it"),
        ("bias,add,carry", "a sum has no `carry` behind it"),
        ("bias", "no operand `e1`"),
        ("bias,gelu,add,add", "operand `e2` of reduce_tile appears 0 times"),
        ("bias,add,add,add,add", "at most four operands, and this one 5"),
    ] {
        let error = malformed(epilogue);
        assert!(error.contains(why), "{error}");
    }
}

/// Two tiles whose epilogue saves their gates and ups.
const SAVES: &str = r#"plan "saves"
mesh world=1
target sm_90a
buffer buf0 "a" in bf16[256, 64]
buffer buf1 "b" in bf16[64, 2, 128]
buffer buf2 "c" out bf16[256, 128]
buffer buf3 "h" out bf16[256, 2, 128]
role role0 compute ctas 2
family fam0 "gemm" role0 {
  leaf mma_tile block=128x256x64 stages=3 b=kn store=tma epilogue=save,swiglu
  for i in 2
  edge e1 full
  edge e2 empty
  edge e3 staged
  edge e4 drained
  access a: read buf0 @ rank [i * 128 : 128, 0 : 64] at start
  access b: read buf1 @ rank [0 : 64, 0 : 2, 0 : 128] at start
  access e0: write buf3 @ rank [i * 128 : 128, 0 : 2, 0 : 128] at end
  access c: write buf2 @ rank [i * 128 : 128, 0 : 128] at end
}
"#;

#[test]
fn what_an_epilogue_saves_is_whole_and_written_once() {
    accepted(SAVES);
    let of = |from: &str, to: &str| rejected(SAVES, from, to);
    let save = "e0: write buf3 @ rank [i * 128 : 128, 0 : 2, 0 : 128]";
    let (rules, why) = of(save, "e0: write buf3 @ rank [i * 128 : 64, 0 : 2, 0 : 128]");
    assert!(rules.contains(&6) && why.contains("`e0` has 64 rows, and others 128"), "{why}");
    let (rules, why) = of(save, "e0: write buf3 @ rank [i * 128 : 128, 0 : 1, 0 : 128]");
    assert!(rules.contains(&6) && why.contains("`e0` has 1 of gates and ups"), "{why}");
    let (_, why) = of(save, "e0: write buf3 @ rank [0 : 128, 0 : 2, 0 : 128]");
    assert!(why.contains("\"h\""), "{why}");
    let text = SAVES.replace("epilogue=save,swiglu", "epilogue=save,gelu,swiglu");
    let error = verify(&text).expect_err("a gate comes first").to_string();
    assert!(error.contains("`swiglu` comes first"), "{error}");
}

#[test]
fn a_result_before_it_is_made_is_no_plan_to_be_proved() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans/gather_gemm.plan");
    let text = fs::read_to_string(path).expect("a fixture");
    let mut plan: Plan = text.parse().expect("a plan");
    for (_, family) in plan.families.iter_mut() {
        let results = family.accesses.iter_mut().filter(|a| a.operand == Operand::C);
        results.for_each(|a| a.at = Point::Start);
    }
    let failure = valid::verify(&plan).expect_err("results at the start");
    assert!(failure.to_string().contains("does not touch `c` at start"), "{failure}");
}
