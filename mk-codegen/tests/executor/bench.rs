//! A size that people try first takes well under a second.

use crate::harness::{no_tables, plan_text, run};
use mk_codegen::{plan::Plan, sim::Options};
use std::time::Instant;

#[test]
fn a_product_of_512_on_4_ranks() {
    let text = plan_text("gather_gemm")
        .replace("world=3", "world=4")
        .replace("M = 400", "M = 512")
        .replace("K = 136", "K = 512")
        .replace("N = 320", "N = 512")
        .replace("134", "128")
        .replace("% 3", "% 4")
        .replace("p in 3", "p in 4")
        .replace("for s in 2", "for s in 3")
        .replace("[3", "[4");
    let plan: Plan = text.parse().expect("a plan");
    let options = Options { launches: 1, ..Options::default() };
    let start = Instant::now();
    let (report, data) = run(&plan, &no_tables, &options);
    let took = start.elapsed();
    println!("{:?} in {took:?}", report.expect("runs"));
    assert!(data.outputs.values().all(|t| t.values.iter().all(|x| x.is_finite())));
    // Generous: machines that run tests are shared. The figure that is meant is above.
    assert!(took.as_secs() < 10, "{took:?}");
}
