//! What the harness takes for right, and what it does not.

use mk_codegen::{
    passes::lower,
    settings::{Config, Reduction},
};
use mk_function::Layout;
use mk_harness::{
    Case, CpuOptions, Dense, Expected, Inputs, Judgement, Matrix, Tolerance, judge, run_on_cpu,
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

fn bind(text: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

fn bind_shapes(text: &str, shapes: &[(&str, &[u64])]) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let shapes = shapes.iter().map(|(name, s)| (name.to_string(), s.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
    (program, bound)
}

/// What the executor makes of a pipeline, judged.
fn run((program, bound): &(Program, Bound), config: &Config, seed: u64) -> Vec<Judgement> {
    let plan = lower(program, bound, config).expect("lowers");
    let case = Case { program, bound, ranks: config.ranks as usize };
    let options = CpuOptions { seed, launches: 1, ..CpuOptions::default() };
    run_on_cpu(case, &plan, &options).expect("runs").judged.remove(0)
}

#[track_caller]
fn passes(pipeline: &(Program, Bound), config: &Config, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        for (rank, judged) in run(pipeline, config, seed).iter().enumerate() {
            let text = pipeline.0.name();
            assert!(judged.passes(), "{text}, seed {seed}, rank {rank}: {judged}");
        }
    }
}

fn on(ranks: u32) -> Config {
    Config { ranks, ..Config::default() }
}

#[test]
fn products_that_cancel_pass() {
    // One element each, of 72 stored products: often much smaller than they are.
    let shapes: &[(&str, &[u64])] = &[("x", &[1, 64]), ("w", &[64, 72]), ("v", &[72, 1])];
    let one = bind_shapes("gather(x) -> gemm(w) -> gemm(v) -> all_reduce", shapes);
    passes(&one, &on(2), 0..300);
}

#[test]
fn rings_of_many_ranks_pass() {
    let shapes: &[(&str, &[u64])] = &[("a", &[256, 64]), ("b", &[64, 48])];
    let ring = bind_shapes("gemm(a, b) -> reduce_scatter", shapes);
    let config = Config { reduction: Reduction::Ring, ..on(16) };
    passes(&ring, &config, 0..2);
}

#[test]
fn values_beyond_the_range_pass() {
    for factor in ["1e38", "1e-38", "1e-40", "3e-44", "1e-60"] {
        let text = format!("gather(a) -> gemm(b) -> scale({factor})");
        let pipeline = bind_shapes(&text, &[("a", &[40, 64]), ("b", &[64, 48])]);
        passes(&pipeline, &on(2), 0..3);
        let text = format!(
            "pub fn f(a: f16[M, K] @ shard(0), b: f16[K, N] @ shard(1)) {{ gather(a) -> gemm(b) -> scale({factor}) }}"
        );
        passes(&bind(&text, &[("M", 40), ("K", 64), ("N", 48)]), &on(2), 0..3);
    }
    // Infinite values on the way, and no numbers behind them.
    let text = "gather(x) -> gemm(w) -> scale(1e38) -> gemm(v) -> reduce_scatter";
    let shapes: &[(&str, &[u64])] = &[("x", &[40, 64]), ("w", &[64, 72]), ("v", &[72, 33])];
    passes(&bind_shapes(text, shapes), &on(2), 0..3);
}

#[test]
fn whole_pipelines_pass() {
    let shapes: &[(&str, &[u64])] = &[("x", &[130, 40]), ("w", &[40, 96]), ("v", &[96, 40])];
    for (text, shapes) in [
        ("gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter", shapes),
        ("gather(x) -> gemm(w) -> silu -> gemm(v) -> all_reduce", shapes),
        ("gather(x) -> gemm(w) -> cast(f32)", &shapes[..2]),
        ("gather(x) -> gemm(w) -> cast(f16)", &shapes[..2]),
        ("gemm(x, w) -> all_reduce", &shapes[..2]),
        ("reduce_scatter(x)", &shapes[..1]),
        ("all_reduce(x)", &shapes[..1]),
        ("gather(x)", &shapes[..1]),
    ] {
        let pipeline = bind_shapes(text, shapes);
        for ranks in [1, 3] {
            passes(&pipeline, &on(ranks), 0..2);
        }
    }
    let text = "pub fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2)) {
        let g = gather(x);
        let h = g -> gemm(w) -> swiglu;
        (g, h)
    }";
    passes(&bind(text, &[("M", 70), ("K", 64), ("F", 96)]), &on(2), 0..2);
}

/// Of a product of squares: what a right kernel leaves on rank 0, and what is expected.
fn square(n: u64) -> (Vec<f32>, Expected) {
    right("gather(a) -> gemm(b)", &[("a", &[n, 64]), ("b", &[64, n])], 1)
}

fn right(text: &str, shapes: &[(&str, &[u64])], ranks: usize) -> (Vec<f32>, Expected) {
    let (program, bound) = bind_shapes(text, shapes);
    let case = Case { program: &program, bound: &bound, ranks };
    let dense = Dense::new(Inputs::new(case, 7), 1);
    let expected = dense.expected(program.results()[0]).expect("evaluates").remove(0);
    let bf16 = |x: &f64| half_of(*x);
    (expected.matrix.data.iter().map(bf16).collect(), expected)
}

/// The nearest bf16; ties do not matter here.
fn half_of(x: f64) -> f32 {
    let bits = (x as f32).to_bits();
    f32::from_bits((bits + 0x8000) & 0xffff_0000)
}

#[test]
fn a_few_missing_elements_are_found() {
    for (n, zeros) in [(512, 8), (2048, 85), (512, 1)] {
        let (mut got, expected) = square(n);
        let judged = judge(&got, &expected);
        assert!(judged.passes(), "{judged}");
        let mut zeroed = 0;
        for i in 0..zeros {
            let place = (i * 7919 + 13) % got.len();
            zeroed += usize::from(got[place].abs() > 0.1);
            got[place] = 0.0;
        }
        let judged = judge(&got, &expected);
        assert!(!judged.passes() && judged.beyond >= zeroed as u64 && zeroed > 0, "{judged}");
        // The norms alone do not see them.
        assert!(judged.norms.global < 2e-2, "{judged}");
    }
}

#[test]
fn one_wrong_element_is_found() {
    let (right, expected) = square(512);
    for (place, off) in [(0, 1.03), (70_000, 0.97), (512 * 512 - 1, -1.0), (99, f32::NAN)] {
        let mut got = right.clone();
        got[place] *= off;
        let judged = judge(&got, &expected);
        let worst = judged.worst.expect("is found");
        assert_eq!((judged.beyond, worst.at), (1, (place / 512, place % 512)), "{judged}");
        assert!(!judged.passes());
    }
    let mut got = right;
    got[5] = f32::INFINITY;
    assert!(!judge(&got, &expected).passes());
}

#[test]
fn what_is_copied_is_exact() {
    let (mut got, expected) = right("gather(a)", &[("a", &[96, 40])], 3);
    assert!(judge(&got, &expected).passes());
    got[17] = f32::from_bits(got[17].to_bits() ^ 0x0001_0000);
    let judged = judge(&got, &expected);
    assert_eq!((judged.beyond, judged.passes()), (1, false), "{judged}");
}

#[test]
fn a_coarser_rounding_is_found() {
    // Each element within a unit in the last place, but as if cut off instead of rounded, or rounded twice.
    let (_, expected) = square(512);
    let cut = |x: &f64| f32::from_bits((*x as f32).to_bits() & 0xffff_0000);
    let got: Vec<f32> = expected.matrix.data.iter().map(cut).collect();
    assert!(!judge(&got, &expected).passes());
}

#[test]
fn another_function_does_not_pass() {
    let shapes: &[(&str, &[u64])] = &[("a", &[96, 40]), ("b", &[40, 64])];
    let (run, bound) = bind_shapes("gather(a) -> gemm(b)", shapes);
    let plan = lower(&run, &bound, &on(3)).expect("lowers");
    for (other, same) in [
        ("gather(a) -> gemm(b)", true),
        ("gather(a) -> gemm(b) -> relu", false),
        ("gather(a) -> gemm(b) -> scale(1.01)", false),
        ("gather(a) -> gemm(b) -> scale(1.003)", false),
    ] {
        let (program, bound) = bind_shapes(other, shapes);
        let case = Case { program: &program, bound: &bound, ranks: 3 };
        let done = run_on_cpu(case, &plan, &CpuOptions::default()).expect("runs");
        for judged in done.judged.iter().flatten() {
            assert_eq!(judged.passes(), same, "{other}: {judged}");
        }
    }
}

/// Norms of a whole result pass where its elements do, and a missing element shows in them.
#[test]
fn norms_have_tolerances_of_the_pipeline() {
    let shapes: &[(&str, &[u64])] = &[("a", &[512, 64]), ("b", &[64, 512])];
    for (text, shapes) in [("gather(a) -> gemm(b)", shapes), ("gather(a)", &shapes[..1])] {
        let (program, bound) = bind_shapes(text, shapes);
        let case = Case { program: &program, bound: &bound, ranks: 1 };
        let tolerance = Tolerance::new(case, 7).expect("evaluates");
        let (mut got, expected) = right(text, shapes, 1);
        let judged = judge(&got, &expected);
        assert!(tolerance.accepts(&judged.norms), "{judged} {tolerance:?}");
        assert!(tolerance.global < 1e-2 && tolerance.element < 0.2, "{tolerance:?}");
        let largest = (0..got.len()).max_by(|a, b| got[*a].total_cmp(&got[*b])).expect("some");
        got[largest] = 0.0;
        assert!(!tolerance.accepts(&judge(&got, &expected).norms));
    }
}

#[test]
fn nothing_is_right() {
    let layout = Layout::new(&[1], mk_syntax::Placement::Shard(0), 2, 1);
    let matrix = Matrix::exact(64, vec![0.0; layout.elements() * 64]);
    let none = Expected { matrix, dtype: mk_abi::DType::Bf16 };
    assert!(judge(&[], &none).passes());
}
