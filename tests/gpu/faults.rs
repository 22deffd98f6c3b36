//! What goes wrong ends as a typed error that names the edge, within its bound, and the next instance works.

use crate::{
    rig::alone,
    scenario::{Case, Scenario, good},
    worlds,
};
use mk::{
    abi::device::FaultKind,
    runtime::{Error, FaultCause, InstanceOptions},
    settings::Config,
};
use mk_skip::{Need, skip};
use std::time::{Duration, Instant};

fn gather_gemm() -> Case {
    Case {
        pipeline: "gather(a) -> gemm(b)",
        shapes: vec![("a", vec![1024, 512]), ("b", vec![512, 1024])],
        config: Config::default(),
    }
}

/// Makes rank 1 announce itself and then never send: its kernel is replaced by the entry alone.
#[test]
fn a_stalled_wait_is_a_typed_error() {
    let _alone = alone();
    let Some(world) = worlds("a_stalled_wait").pop().filter(|w| w.size() > 1) else {
        return skip(Need::Gpus(2), "");
    };
    let options = InstanceOptions {
        wait_limit: Duration::from_millis(200),
        entry_limit: Duration::from_secs(5),
        ..InstanceOptions::default()
    };
    let case = gather_gemm();
    let mut s = Scenario::new(&case, &world, &options).expect("binds");
    assert!(good(&s.step(1).expect("a first launch")));
    // A lost signal: the words that count arrivals on rank 0 fall behind by one.
    let word =
        s.source.cuda.split("constexpr u64 kSig1 = ").nth(1).and_then(|t| t.split(';').next());
    let word: u64 = word.and_then(|w| w.parse().ok()).expect("the kernel names its signals");
    let bytes = s.source.workspace.zeroed_bytes;
    s.instance.symmetric().fill(word * 4, bytes, 0).expect("clears");
    s.refill(2).expect("fills");
    let begin = Instant::now();
    s.launch().expect("launches");
    let error = s.instance.synchronize().expect_err("the wait cannot end");
    let took = begin.elapsed();
    println!("after {took:?}: {error}");
    assert!(took < Duration::from_secs(3), "took {took:?}");
    let Error::Fault(fault) = &error else { panic!("not a fault: {error}") };
    assert_eq!(fault.cause, FaultCause::Known(FaultKind::WaitTimeout));
    assert!(error.to_string().contains("arrived"), "{error}");
    assert!(matches!(
        s.launch().expect_err("poisoned").downcast_ref(),
        Some(Error::Poisoned { .. })
    ));
    drop(s);
    let mut s = Scenario::new(&case, &world, &options).expect("binds again");
    assert!(good(&s.step(3).expect("a new instance works")));
    println!("ok a stalled wait, and a new instance after it");
}
