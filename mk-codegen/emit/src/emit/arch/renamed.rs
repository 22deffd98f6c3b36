//! An architecture that has Hopper's leaves under another name: that an architecture is a record
//! (docs/add-an-architecture.md).

use super::{Arch, sm90};
use crate::emit::{audit, emit};
use mk_plan::{
    Plan,
    target::{SM_90A, Target},
};

pub(super) const ARCH: Arch = Arch {
    target: &Target { name: "renamed", arch: "sm_90", l2_bytes: 1, ..SM_90A },
    registers: ["renamed_release", "sm90_regs_claim"],
    ..sm90::ARCH
};

const PLANS: [&str; 3] = [
    include_str!("../../../../tests/snapshots/lowering__gather_gemm.snap"),
    include_str!("../../../../tests/snapshots/attention_plans__ring_causal.snap"),
    include_str!("../../../../tests/snapshots/dispatch__dispatch_layer.snap"),
];

/// The plan of a snapshot, for another target.
fn of(snapshot: &str, target: &str) -> Plan {
    let (_, text) = snapshot.split_once("\n---\n").unwrap_or_default();
    let text = text.replace("target sm_90a", &format!("target {target}"));
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn kernels_follow_the_record() {
    for text in PLANS {
        let plan = of(text, "renamed");
        let kernel = emit(&plan).unwrap_or_else(|e| panic!("{e}"));
        let generated = kernel.generated();
        assert_eq!(kernel.arch, "sm_90", "{}", plan.name);
        assert!(generated.contains("    renamed_release<"), "{}", plan.name);
        // The same leaves: what differs is what the record says otherwise.
        let own = emit(&of(text, SM_90A.name)).unwrap_or_else(|e| panic!("{e}"));
        let renamed = own.generated().replace("sm90_regs_release<", "renamed_release<");
        let evict = |text: &str| text.replace(".b_evict_first = true", "").replace(", ", "");
        assert_eq!(evict(generated), evict(&renamed), "{}", plan.name);
        audit(&plan, &kernel.cuda).unwrap_or_else(|e| panic!("{e}"));
        let other = audit(&plan, &kernel.cuda.replace("renamed_release<", "sm90_regs_release<"));
        assert!(other.is_err(), "{}", plan.name);
    }
}

#[test]
fn a_target_without_a_record_is_refused() {
    let error = emit(&of(PLANS[0], "sm_10")).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("target sm_10: no kernels are made for it, but for sm_90a"), "{error}");
}
