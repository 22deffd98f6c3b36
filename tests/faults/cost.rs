//! What it costs that waits look at the clock, at the abort word and at what the host says.

use crate::rig::{Case, GATHER, Rig, compile, options};
use crate::{Watchdog, alone, world_or_shared};
use mk::runtime::{
    bench::{Gate, median},
    jit::JitOptions,
};
use std::time::Duration;

/// Lines of the kernels as they are, and instead of them: what never asks the host, at its begin or in a wait; and so many polls between
/// two looks that a wait ends before the first.
const UNTOLD: [[&str; 2]; 2] = [
    ["if (abort == 0 && cta_index() == 0) abort = heed_host(ctx);", ""],
    ["kChecksPerHostCheck = 16;", "kChecksPerHostCheck = 1u << 25;"],
];
const UNBOUNDED: [[&str; 2]; 1] = [["kPollsPerCheck = 64;", "kPollsPerCheck = 1u << 30;"]];

/// The same kernel with bounded waits, without a word from the host, and without either, by turns. Where there is one GPU, on two ranks
/// that share it.
#[test]
fn what_bounded_waits_cost() {
    let _alone = alone();
    let Some(world) = world_or_shared("what_bounded_waits_cost") else { return };
    let _watchdog = Watchdog::new("what_bounded_waits_cost", Duration::from_secs(90));
    let gate = Gate::new(&world, &JitOptions::default()).expect("allocates");
    let sms = world.shares_gpus().then_some([50, 8]);
    let scatter = "gemm(a, b) -> reduce_scatter";
    for (pipeline, size) in [
        (GATHER.pipeline, (512, 1024, 1024)),
        (GATHER.pipeline, (8192, 8192, 8192)),
        (scatter, (512, 1024, 1024)),
        (scatter, (8192, 8192, 2048)),
    ] {
        let source = compile(&Case { pipeline, size, sms, ..GATHER }, world.size());
        let mut variants = [source.clone(), source.clone(), source];
        for (variant, lines) in variants[1..].iter_mut().zip([&UNTOLD[..], &UNBOUNDED]) {
            for [line, instead] in lines {
                assert!(variant.cuda.contains(line), "the library says {line}");
                variant.cuda = variant.cuda.replace(line, instead);
            }
        }
        let mut rigs = variants.map(|s| Rig::with(&world, s, &options()).expect("binds"));
        let results = rigs.each_mut().map(|rig| rig.step(1).expect("runs"));
        assert!(results.iter().all(|r| *r == results[0]));
        let refs: Vec<_> = gate.streams().iter().map(|s| s.as_ref()).collect();
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..40 {
            for (rig, times) in rigs.iter_mut().zip(&mut times) {
                let args = rig.args();
                let launch = || rig.instance.launch(&refs, &args);
                times.push(gate.time_ms(launch).expect("runs") * 1e3);
            }
        }
        let [bounded, untold, unbounded] = times.each_mut().map(|t| median(t));
        println!(
            "  {pipeline} {size:?}: {bounded:.1} us bounded, {untold:.1} us without the host's word, {unbounded:.1} us without both, ratios {:.4} and {:.4}",
            bounded / untold,
            bounded / unbounded
        );
    }
    println!("ok what bounded waits cost");
}
