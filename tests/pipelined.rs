//! A struct of tensors, from its annotation to a kernel that takes its fields.

use mk::{
    emit,
    passes::{self},
    runtime::TensorRef,
    settings::Config,
};
use mk_harness::{Case, CpuOptions};
use std::collections::BTreeMap;

/// A gated layer that saves its input; its fields are in no order that a kernel would have.
#[mk::pipelined(<M: dyn <= 300>
    let h = gather(x);
    (h -> gemm(w) -> swiglu, h)
)]
struct Gated {
    #[result(bf16[M, F] @ shard(1))]
    y: TensorRef,
    #[tensor(bf16[K, 2, F] @ shard(2))]
    w: TensorRef,
    #[result(bf16[M, K])]
    saved: TensorRef,
    #[tensor(bf16[M, K] @ shard(0))]
    x: TensorRef,
}

const RANKS: usize = 2;

#[test]
fn a_kernel_takes_the_fields_in_the_order_of_arguments() {
    let program = Gated::pipeline();
    let dims = [("M", 130), ("K", 64), ("F", 256)].map(|(name, n)| (name.to_string(), n));
    let bound = program.bind(&BTreeMap::from(dims), &BTreeMap::new()).expect("binds");
    let config = Config { ranks: RANKS as u32, ..Config::default() };
    let (plan, _) = passes::compile(program, &bound, &config).expect("compiles");
    let kernel = emit::emit(&plan).expect("emits");
    let names: Vec<&str> = kernel.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["w", "x", "out0", "h"]);

    // SAFETY: nothing is launched.
    let tensor = |i: u64| unsafe { TensorRef::from_raw(i, 2) };
    let held = Gated { y: tensor(3), w: tensor(1), saved: tensor(4), x: tensor(2) };
    assert_eq!(held.arguments().tensors, [1, 2, 3, 4].map(tensor));
}

#[test]
fn its_pipeline_runs_with_any_number_of_rows() {
    let program = Gated::pipeline();
    let dims = [("K", 64), ("F", 256)].map(|(name, n)| (name.to_string(), n));
    let most = program.bind(&BTreeMap::from(dims), &BTreeMap::new()).expect("binds");
    let config = Config { ranks: RANKS as u32, ..Config::default() };
    for rows in [1, 129, 300] {
        let launch = BTreeMap::from([("M".to_string(), rows)]);
        let bound = program.rebind(&most, &launch).expect("binds again");
        let plan = passes::lower(program, &bound, &config).expect("lowers");
        let case = Case { program, bound: &bound, ranks: RANKS };
        let options = CpuOptions { launches: 1, ..CpuOptions::default() };
        let run = mk_harness::run_on_cpu(case, &plan, &options).expect("runs");
        assert!(run.judged.iter().flatten().all(|j| j.passes()), "{rows} rows");
    }
}
