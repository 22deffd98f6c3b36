//! What it costs that waits look at the clock and at the abort word.

use crate::rig::{Case, GATHER, Rig, compile, options};
use crate::{Watchdog, alone, world};
use mk::runtime::{
    bench::{Gate, median},
    jit::JitOptions,
};
use std::time::Duration;

/// Polls between two looks, in the kernels as they are; and so many that a wait ends before the first look.
const BOUNDED: &str = "kPollsPerCheck = 64;";
const UNBOUNDED: &str = "kPollsPerCheck = 1u << 30;";

/// The same kernel with bounded waits and without, by turns.
#[test]
fn what_bounded_waits_cost() {
    let _alone = alone();
    let Some(world) = world("what_bounded_waits_cost") else { return };
    let _watchdog = Watchdog::new("what_bounded_waits_cost", Duration::from_secs(90));
    let gate = Gate::new(&world, &JitOptions::default()).expect("allocates");
    let scatter = "gemm(a, b) -> reduce_scatter";
    for (pipeline, size) in [
        (GATHER.pipeline, (512, 1024, 1024)),
        (GATHER.pipeline, (8192, 8192, 8192)),
        (scatter, (512, 1024, 1024)),
        (scatter, (8192, 8192, 2048)),
    ] {
        let source = compile(&Case { pipeline, size, ..GATHER }, world.size());
        let mut changed = source.clone();
        changed.cuda = source.cuda.replace(BOUNDED, UNBOUNDED);
        assert_ne!(changed.cuda, source.cuda, "the library says {BOUNDED}");
        let mut rigs = [source, changed].map(|s| Rig::with(&world, s, &options()).expect("binds"));
        let results = rigs.each_mut().map(|rig| rig.step(1).expect("runs"));
        assert_eq!(results[0], results[1]);
        let refs: Vec<_> = gate.streams().iter().map(|s| s.as_ref()).collect();
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..40 {
            for (rig, times) in rigs.iter_mut().zip(&mut times) {
                let args = rig.args();
                let launch = || rig.instance.launch(&refs, &args);
                times.push(gate.time_ms(launch).expect("runs") * 1e3);
            }
        }
        let [bounded, unbounded] = times.each_mut().map(|t| median(t));
        println!(
            "  {pipeline} {size:?}: {bounded:.1} us bounded, {unbounded:.1} us without, ratio {:.4}",
            bounded / unbounded
        );
    }
    println!("ok what bounded waits cost");
}
