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

/// Tensors of eight bits, and their factors: in any order, too.
#[mk::pipelined(gather(x) -> gemm(w.t) -> gelu -> quantize(e4m3, 1, 128))]
struct EightBits {
    #[factors]
    w_scale: TensorRef,
    #[result(e4m3[M, N] scaled(1, 128) @ shard(1))]
    y: TensorRef,
    #[tensor(e4m3[M, K] scaled(1, 128) @ shard(0))]
    x: TensorRef,
    #[factors]
    y_scale: TensorRef,
    #[tensor(e4m3[N, K] scaled(128, 128) @ shard(0))]
    w: TensorRef,
    #[factors]
    x_scale: TensorRef,
}

const RANKS: usize = 2;

#[test]
fn factors_stand_behind_their_tensors() {
    let program = EightBits::pipeline();
    let tensors: Vec<&str> = program.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(tensors, ["x", "x_scale", "w", "w_scale"]);
    assert_eq!(program.result_names(), ["out", "out_scale"]);
    // SAFETY: nothing is launched.
    let tensor = |i: u64| unsafe { TensorRef::from_raw(i, 2) };
    let held = EightBits {
        w_scale: tensor(4),
        y: tensor(5),
        x: tensor(1),
        y_scale: tensor(6),
        w: tensor(3),
        x_scale: tensor(2),
    };
    assert_eq!(held.arguments().tensors, [1, 2, 3, 4, 5, 6].map(tensor));
}

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
