//! Pipelines as sequences of kernels: what is taken, where tensors go, and what comes out of it on the executor.

use mk::{
    Bound, Program,
    abi::{DType, TensorArg, TensorDirection},
    build::Composition,
    cost::{DeviceModel, Gpu},
    emit,
    function::{Place, Signature, Sizes, Wiring},
    plan::Space,
    runtime::jit::JitOptions,
    settings::{Config, LastWave, NicOrdering},
    sim::Options as SimOptions,
    tune::{
        self, CLEARLY, Cache, Choice, Conditions, Fuse, Fusion, Indivisible, Key, Part, Reason,
        Times, Verdict, Winner,
    },
};
use mk_harness::{Case, CpuOptions, run_made_on_cpu};
use std::collections::BTreeMap;

const MLP: &str = "
    pub fn mlp(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
        gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
    }";
/// The gathered rows are a result, and what both products read.
const TWICE: &str = "
    pub fn twice(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[K, F] @ shard(1))
        -> (bf16[M, K], bf16[M, F] @ shard(1), bf16[M, F] @ shard(1)) {
        let all = gather(x);
        let left = all -> gemm(w) -> silu;
        let right = all -> gemm(v) -> mul(left);
        (all, left, right)
    }";
/// What backward wants is a result, too.
const SAVING: &str = "
    pub fn saving(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0))
        -> (bf16[M, K] @ shard(0), bf16[M, F] @ shard(1), bf16[M, F] @ shard(1)) {
        let before = gather(x) -> gemm(w);
        let h = before -> gelu;
        let y = h -> gemm(v) -> reduce_scatter;
        (y, h, before)
    }";
/// Rows of experts go from kernel to kernel, and are those of the same routing.
const EXPERTS: &str = "
    pub fn moe(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
        dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
    }";
/// No pass gathers what was computed.
const GATHER_LAST: &str = "
    pub fn last(x: bf16[M, K] @ shard(0), w: bf16[K, F]) -> bf16[M, F] {
        gemm(x, w) -> gelu -> gather
    }";

fn bind(text: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(text).expect("parses");
    let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

fn default(ranks: u32) -> Config {
    Config { ranks, ..Config::default() }
}

/// What is made without looking for settings.
fn settle(program: &Program, bound: &Bound, config: &Config, fuse: Fuse) -> Choice {
    let terms = Conditions { config, fuse, overlap: false, search: None };
    tune::settle(program, bound, &terms)
}

#[test]
fn the_faster_one_is_taken() {
    let measured = |ms| Times { measured_ms: Some(ms), predicted_ms: None };
    let predicted = |ms| Times { measured_ms: None, predicted_ms: Some(ms) };
    let both = |m, p| Times { measured_ms: Some(m), predicted_ms: Some(p) };
    let nothing = Times::default();
    let of = |fused: Option<Times>, apart: Option<&[Times]>| {
        let v = tune::verdict(fused, apart, 2);
        (v.made, v.why)
    };
    use {Fusion::*, Reason::*};
    // Measured times are taken at their word.
    assert_eq!(of(Some(measured(1.0)), Some(&[measured(0.5), measured(0.499)])), (Apart, Measured));
    assert_eq!(of(Some(measured(1.0)), Some(&[measured(0.5), measured(0.5)])), (Fused, Measured));
    // A measurement is worth more than a prediction, where all are measured.
    assert_eq!(of(Some(both(1.0, 9.0)), Some(&[both(2.0, 1.0)])), (Fused, Measured));
    assert_eq!(
        of(Some(both(1.0, 9.0)), Some(&[both(2.0, 1.0), predicted(1.0)])),
        (Apart, Predicted)
    );
    // Predictions must differ by more than their error.
    let parts = [predicted(0.5), predicted(0.5)];
    assert_eq!(of(Some(predicted(1.0 + 0.9 * CLEARLY)), Some(&parts)), (Fused, Predicted));
    assert_eq!(of(Some(predicted(1.0 + 1.1 * CLEARLY)), Some(&parts)), (Apart, Predicted));
    // On one rank one kernel overlaps nothing: it must be ahead by more than the error.
    let alone = |fused| tune::verdict(Some(predicted(fused)), Some(&parts), 1).made;
    assert_eq!(alone(1.0 - 0.9 * CLEARLY), Apart);
    assert_eq!(alone(1.0 - 1.1 * CLEARLY), Fused);
    // What is not known is no reason.
    assert_eq!(of(Some(measured(1.0)), Some(&[measured(0.1), predicted(0.1)])), (Fused, Unknown));
    assert_eq!(of(Some(nothing), Some(&[nothing])), (Fused, Unknown));
    assert_eq!(of(None, Some(&[nothing])), (Apart, NoKernel));
    assert_eq!(of(Some(nothing), None), (Fused, NoPart));
    assert_eq!(of(None, None), (Fused, NoPart));

    let verdict = tune::verdict(Some(measured(0.2)), Some(&[measured(0.05), measured(0.06)]), 2);
    assert_eq!(verdict.to_string(), "apart: 110.0 us, as one kernel 200.0 us, measured");
    let verdict = Verdict::new(Fusion::Fused, Reason::Indivisible(tune::Indivisible::Runtime));
    assert_eq!(verdict.to_string(), "one kernel: some of its sizes come with each launch");
}

/// On four H200 (2026-11-28) one kernel took 231.5 us and two, cut between the GEMMs, 229.4: less than predictions tell
/// apart, so that `auto` keeps the one kernel.
#[test]
fn the_small_published_mlp_stays_one_kernel() {
    let (program, bound) = bind(MLP, &[("M", 2048), ("K", 4096), ("F", 16384)]);
    let (gpu, config) = (Gpu::from("NVIDIA H200"), default(4));
    let search = Some((&gpu, None));
    let terms = Conditions { config: &config, fuse: Fuse::Auto, overlap: false, search };
    let verdict = tune::settle(&program, &bound, &terms).verdict;
    assert_eq!((verdict.made, verdict.why), (Fusion::Fused, Reason::Predicted), "{verdict}");
    let halves = [
        "fn up(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) { gather(x) -> gemm(w) -> gelu }",
        "fn down(h: bf16[M, F] @ shard(1), v: bf16[F, K] @ shard(0)) { gemm(h, v) -> reduce_scatter }",
    ];
    let two_ms: f64 = halves
        .map(|half| {
            let (program, bound) = bind(half, &[("M", 2048), ("K", 4096), ("F", 16384)]);
            tune::decide_in(&program, &bound, &config, &gpu, None).ms.expect("is predicted")
        })
        .iter()
        .sum();
    let one_ms = verdict.fused_ms.expect("is predicted");
    assert!(one_ms < (1.0 + CLEARLY) * two_ms, "{one_ms} and {two_ms}");
    let (one, two) = (0.2315, 0.2294);
    assert!(one < (1.0 + CLEARLY) * two, "what was measured is within the margin");
}

#[test]
fn what_is_asked_for_is_made() {
    let (program, bound) = bind(MLP, &[("M", 256), ("K", 128), ("F", 256)]);
    let of = |config: &Config, fuse| {
        let choice = settle(&program, &bound, config, fuse);
        (choice.verdict.made, choice.verdict.why, choice.configs.len())
    };
    let plain = default(2);
    assert_eq!(of(&plain, Fuse::Auto), (Fusion::Fused, Reason::Given, 1));
    assert_eq!(of(&plain, Fuse::Always), (Fusion::Fused, Reason::Asked, 1));
    assert_eq!(of(&plain, Fuse::Never), (Fusion::Apart, Reason::Asked, 4));
    // Settings without a plan are a mistake, and no reason to do something else.
    let wrong = Config {
        last_wave: Some(LastWave { blocks: 9, columns: 64, parts: 1 }),
        block: [128, 136, 64],
        ..default(2)
    };
    assert_eq!(of(&wrong, Fuse::Auto), (Fusion::Fused, Reason::Given, 1));
    let choice = settle(&program, &bound, &wrong, Fuse::Auto);
    assert!(Composition::new(&program, &bound, &choice, emit::Options::default()).is_err());
    // Beside others, parts would write what the call before still reads.
    let terms = Conditions { config: &plain, fuse: Fuse::Auto, overlap: true, search: None };
    assert_eq!(tune::settle(&program, &bound, &terms).verdict.why, Reason::Overlap);
    for (fuse, word) in [(Fuse::Auto, "auto"), (Fuse::Always, "always"), (Fuse::Never, "never")] {
        assert_eq!((word.parse(), fuse.to_string()), (Ok(fuse), word.to_string()));
    }
    assert!("sometimes".parse::<Fuse>().is_err());
}

#[test]
fn a_pipeline_without_a_kernel_is_made_of_those_of_its_parts() {
    let (program, bound) = bind(GATHER_LAST, &[("M", 256), ("K", 128), ("F", 256)]);
    assert!(mk::build::plan(&program, &bound, &default(2)).is_err(), "find another example");
    for (fuse, why) in [(Fuse::Auto, Reason::NoKernel), (Fuse::Never, Reason::Asked)] {
        let choice = settle(&program, &bound, &default(2), fuse);
        assert_eq!((choice.verdict.made, choice.verdict.why), (Fusion::Apart, why));
    }
    let choice = settle(&program, &bound, &default(2), Fuse::Always);
    assert!(Composition::new(&program, &bound, &choice, emit::Options::default()).is_err());
}

#[test]
fn what_stays_in_one_piece_says_why() {
    let whole = |text: &str, dims: &[(&str, u64)]| {
        let (program, bound) = bind(text, dims);
        let verdict = settle(&program, &bound, &default(2), Fuse::Never).verdict;
        let why = tune::parts(&program, &bound).map(|p| p.len());
        assert_eq!(why.err().map(Reason::Indivisible), Some(verdict.why), "{text}");
        assert_eq!(verdict.made, Fusion::Fused);
        verdict.why
    };
    let sizes = [("M", 256), ("K", 128), ("F", 256)];
    let is = |found, why| assert_eq!(found, Reason::Indivisible(why));
    is(whole("fn f(x: bf16[M, K] @ shard(0)) { gather(x) }", &sizes[..2]), Indivisible::Single);
    let text = "fn f<M: dyn <= 512>(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) { gather(x) -> gemm(w) }";
    is(whole(text, &sizes), Indivisible::Runtime);
    let late = "fn f(x: bf16[M, K], w: bf16[K, F], v: bf16[K, F]) -> bf16[M, F] {
        let a = gemm(x, w);
        let b = gemm(x, v);
        a -> mul(b)
    }";
    is(whole(late, &sizes), Indivisible::Elementwise);
    let twice = "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) -> (bf16[M, F] @ shard(1), bf16[M, F] @ shard(1)) {
        let y = gather(x) -> gemm(w);
        (y, y)
    }";
    is(whole(twice, &sizes), Indivisible::Results);
}

fn wiring(text: &str, dims: &[(&str, u64)]) -> (Program, Bound, Vec<Part>, Wiring) {
    let (program, bound) = bind(text, dims);
    let parts = tune::parts(&program, &bound).expect("comes apart");
    let wiring = Wiring::new(&program, &parts).expect("its own");
    (program, bound, parts, wiring)
}

#[test]
fn tensors_go_where_they_are_read() {
    use Place::{Between, Input, Output};
    let places = |text: &str| {
        let (.., wiring) = wiring(text, &[("M", 5), ("K", 8), ("F", 8)]);
        let parts = wiring.parts.into_iter().map(|p| (p.inputs, p.outputs));
        (parts.collect::<Vec<_>>(), wiring.between.len())
    };
    let mlp = vec![
        (vec![Input(0)], vec![Between(0)]),
        (vec![Input(1), Between(0)], vec![Between(1)]),
        (vec![Input(2), Between(1)], vec![Between(2)]),
        (vec![Between(2)], vec![Output(0)]),
    ];
    assert_eq!(places(MLP), (mlp, 3));
    // Results are read where the caller wants them.
    let twice = vec![
        (vec![Input(0)], vec![Output(0)]),
        (vec![Input(1), Output(0)], vec![Output(1)]),
        (vec![Input(2), Output(0), Output(1)], vec![Output(2)]),
    ];
    assert_eq!(places(TWICE), (twice, 0));
    // What backward wants saved is a result of the kernel that makes it.
    let saving = vec![
        (vec![Input(0)], vec![Between(0)]),
        (vec![Input(1), Between(0)], vec![Output(1), Output(2)]),
        (vec![Input(2), Output(1)], vec![Between(1)]),
        (vec![Between(1)], vec![Output(0)]),
    ];
    assert_eq!(places(SAVING), (saving, 2));
}

/// What the function allocates, and what it hands on, is what the kernels on both sides expect.
#[test]
fn tensors_between_parts_fit_the_kernels() {
    for (text, rows) in [(MLP, 5), (TWICE, 5), (GATHER_LAST, 7), (MLP, 2), (SAVING, 5)] {
        let (program, bound, parts, wiring) = wiring(text, &[("M", rows), ("K", 16), ("F", 40)]);
        let signature = Signature::new(program.clone(), 3, Sizes::default()).expect("3 ranks");
        let choice = settle(&program, &bound, &default(3), Fuse::Never);
        let made = Composition::new(&program, &bound, &choice, emit::Options::default());
        let made = made.expect("has kernels");
        assert_eq!(made.kernels.len(), parts.len());
        for rank in 0..3 {
            let between = wiring.tensors(&signature, &bound, rank);
            let results = signature.results(&bound, rank);
            let at = |place: &Place| -> (DType, Vec<u64>) {
                match *place {
                    Place::Input(i) => {
                        let id = program.tensors()[i].id;
                        (DType::Bf16, signature.local_shape(&bound, id, rank))
                    }
                    Place::Output(i) => results[i].clone(),
                    Place::Between(i) => between[i].clone(),
                }
            };
            for ((part, planned), wires) in made.parts.iter().zip(&made.kernels).zip(&wiring.parts)
            {
                let source = &planned.source;
                // Launches hand results over in the order of the kernel's arguments, the executor in that of the plan's buffers.
                let out = |a: &&TensorArg| a.direction == TensorDirection::Out;
                let arguments: Vec<_> =
                    source.tensors.iter().filter(out).map(|a| &a.name).collect();
                let buffers = planned.plan.buffers.values().filter(|b| b.space == Space::Out);
                assert!(buffers.map(|b| &b.name).eq(arguments), "{}", part.name);
                let shapes = source.shapes(rank, &[]);
                let mut outputs = wires.outputs.iter();
                for (arg, shape) in source.tensors.iter().zip(&shapes) {
                    let names = part.program.tensors().iter();
                    let place = match arg.direction {
                        TensorDirection::Out => outputs.next().expect("as many"),
                        TensorDirection::In => {
                            let i = names.map(|t| &t.name).position(|n| *n == arg.name);
                            &wires.inputs[i.expect("a parameter")]
                        }
                    };
                    assert_eq!(at(place), (arg.dtype, shape.clone()), "{} {rank}", arg.name);
                }
            }
        }
        if (text, rows) == (MLP, 5) {
            // 5 rows, and 40 columns, over 3 ranks; partial sums are whole.
            let shapes = |rank| wiring.tensors(&signature, &bound, rank).into_iter().map(|t| t.1);
            assert!(shapes(0).eq([vec![5, 16], vec![5, 14], vec![5, 16]]));
            assert!(shapes(2).eq([vec![5, 16], vec![5, 12], vec![5, 16]]));
            assert_eq!(signature.results(&bound, 2), [(DType::Bf16, vec![1, 16])]);
        }
    }
}

#[test]
fn a_sequence_computes_what_the_pipeline_does() {
    let linear = "pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) { gather(x) -> gemm(w) }";
    let swiglu = "pub fn glu(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0), c: bf16[K]) {
        gather(x) -> gemm(w) -> swiglu -> gemm(v) -> all_reduce
    }"
    .replace(", c: bf16[K]", "");
    let gradient = "pub fn grad(dy: bf16[M, F] @ shard(0), w: bf16[K, F] @ shard(0)) { gather(dy) -> gemm(w.t) -> scale(0.5) }";
    let gated = "pub fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) {
        let before = gather(x) -> gemm(w);
        let h = before -> swiglu;
        let y = h -> gemm(v) -> reduce_scatter;
        (y, h, before)
    }";
    for text in [MLP, TWICE, GATHER_LAST, linear, &swiglu, gradient, SAVING, gated] {
        for ranks in [1, 2, 3] {
            let (program, bound) = bind(text, &[("M", 70), ("K", 40), ("F", 72)]);
            let choice = settle(&program, &bound, &default(ranks), Fuse::Never);
            assert_eq!(choice.verdict.made, Fusion::Apart, "{text}");
            let made = Composition::new(&program, &bound, &choice, emit::Options::default());
            let made = made.unwrap_or_else(|e| panic!("{text} on {ranks}: {e}"));
            let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
            let run = run_made_on_cpu(case, &made, &CpuOptions::default());
            let (reports, judged) = run.unwrap_or_else(|e| panic!("{text} on {ranks}: {e}"));
            assert_eq!((reports.len(), judged.len()), (made.parts.len(), 3));
            for judged in judged.iter().flatten() {
                assert!(judged.passes(), "{text} on {ranks}: {judged}");
                assert!(judged.norms.global > 0.0, "{text}: nothing was compared");
            }
        }
    }
}

/// Values of eight bits and their factors are made in one kernel, and go together to the next.
#[test]
fn eight_bits_go_from_kernel_to_kernel() {
    let gated = "pub fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2),
        v: e4m3[N, F] scaled(128, 128) @ shard(1)) -> bf16[M, N] @ shard(0) {
        gather(x) -> gemm(w) -> swiglu -> quantize(e4m3, 1, 128) -> gemm(v.t) -> reduce_scatter
    }";
    let twice =
        "pub fn twice(x: bf16[M, K] @ shard(0), w: e4m3[F, K] scaled(128, 128) @ shard(0)) {
        let q = x -> quantize(e4m3, 1, 128);
        let h = gather(q) -> gemm(w.t);
        (q, h, h -> quantize(e5m2, 1, 128) -> dequantize)
    }";
    // A GEMM quantises its result on the way, where the caller does not get that.
    for (text, kernels, steps) in [(gated, 4, 2), (twice, 4, 2)] {
        for ranks in [1, 2] {
            let dims = [("M", 70), ("K", 144), ("F", 512), ("N", 72)];
            let cut = |steps: Result<Vec<mk::cut::Step>, _>| steps.map(|s| s.len()).ok();
            let dims: Vec<_> = dims.into_iter().filter(|d| text == gated || d.0 != "N").collect();
            let (program, bound) = bind(text, &dims);
            assert_eq!(cut(mk::cut::cut(&program, &bound, ranks, &[])), Some(steps), "{text}");
            let choice = settle(&program, &bound, &default(ranks), Fuse::Auto);
            assert_eq!(choice.verdict.why, Reason::NoKernel, "{text}");
            let made = Composition::new(&program, &bound, &choice, emit::Options::default());
            let made = made.unwrap_or_else(|e| panic!("{text} on {ranks}: {e}"));
            let of_parts = made.parts.iter().map(|p| p.program.to_string()).collect::<Vec<_>>();
            assert_eq!(made.parts.len(), kernels, "{of_parts:#?}");
            let case = Case { program: &program, bound: &bound, ranks: ranks as usize };
            let run = run_made_on_cpu(case, &made, &CpuOptions::default());
            let (_, judged) = run.unwrap_or_else(|e| panic!("{text} on {ranks}: {e}"));
            for judged in judged.iter().flatten() {
                assert!(judged.passes(), "{text} on {ranks}: {judged}");
                assert!(judged.norms.global > 0.0, "{text}: nothing was compared");
            }
        }
    }
    // Two large GEMMs of one value are two kernels: a pair is a result of the first, and an operand of the second.
    let apart =
        "pub fn apart(x: bf16[M, K], w: e4m3[N, K] scaled(128, 128), v: e4m3[F, K] scaled(1, K)) {
        let q = x -> quantize(e4m3, 1, 128);
        (q, q -> gemm(w.t), q -> gemm(v.t))
    }";
    let dims = [("M", 16384), ("K", 4096), ("N", 8192), ("F", 8192)];
    let (program, bound) = bind(apart, &dims);
    let steps = mk::cut::cut(&program, &bound, 1, &[]).unwrap_or_else(|e| panic!("{e}"));
    assert!(steps.len() > 1 && steps.iter().all(|s| s.is_kernel));
    let ty = |id| program.ty(id).map(|t| (t.dtype, bound.shape(id).map(<[u64]>::len)));
    for step in &steps {
        let given = step.program.tensors().iter().map(|t| (t.ty.dtype, Some(t.ty.dims.len())));
        let made = step.program.results().iter().filter_map(|id| step.program.ty(*id));
        let made = made.map(|t| (t.dtype, Some(t.dims.len())));
        assert!(given.map(Some).eq(step.inputs.iter().map(|id| ty(*id))), "{}", step.text);
        assert!(made.map(Some).eq(step.results.iter().map(|id| ty(*id))), "{}", step.text);
    }
    assert!(steps[1].text.contains("scaled(1, 128)"), "{}", steps[1].text);
}

/// A layer's way back, of any number of tokens: over nodes its kernels are of one number where rows have weights, or were
/// dispatched before.
#[test]
fn any_number_of_tokens_on_one_node() {
    let layer = include_str!("../examples/moe_layer.mk");
    let layer = layer.replace("fn moe_layer(", "fn moe_layer<T: dyn <= 64>(");
    let program = Program::parse(&layer).unwrap_or_else(|e| panic!("{e}"));
    let derived = mk::syntax::grad::grad(&program, None, Default::default()).expect("gradients");
    let backward = derived.backward.expect("a backward");
    let room = backward.symbols().iter().find(|s| s.name.starts_with("room"));
    let room = room.map(|s| (s.name.clone(), 2048));
    let dims = [("T", 64), ("H", 64), ("I", 64), ("E", 8), ("K", 2)];
    let dims = dims.map(|(name, n)| (name.to_string(), n)).into_iter().chain(room).collect();
    let bound = backward.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    let steps = |nodes| mk::cut::cut_over(&backward, &bound, (4, nodes), &[]).expect("steps");
    let any = |steps: Vec<mk::cut::Step>| -> Vec<bool> {
        steps.iter().map(|step| step.text.contains("dyn")).collect()
    };
    assert_eq!(any(steps(1)), [true; 2]);
    assert_eq!(any(steps(2)), [false; 2]);
    // The first one has all of the data's way.
    let first = &steps(1)[0].text;
    let words = ["dispatch(", "(w2.t)", "swiglu_grad(", "weigh_grad(", "(w1.t)", "combine("];
    assert!(words.iter().all(|word| first.contains(word)), "{first}");
}

/// Each kernel makes its own tables of the routing: the same rows, and the same bits.
#[test]
fn experts_come_apart() {
    for (ranks, tokens, slots) in [(1, 37, 2), (2, 301, 3), (3, 25, 1)] {
        let dims = [("T", tokens), ("K", slots), ("E", 6), ("H", 24), ("F", 16)];
        let (program, bound) = bind(EXPERTS, &dims);
        let bound = bound.on(&program, ranks).expect("room");
        let options = emit::Options::default;
        let choice = settle(&program, &bound, &default(ranks), Fuse::Never);
        assert_eq!(choice.verdict.made, Fusion::Apart, "{}", choice.verdict);
        let apart = Composition::new(&program, &bound, &choice, options());
        let apart = apart.unwrap_or_else(|e| panic!("{ranks}: {e}"));
        let names: Vec<_> = apart.parts.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["dispatch -> grouped_gemm -> swiglu", "grouped_gemm -> combine"]);
        let choice = settle(&program, &bound, &default(ranks), Fuse::Always);
        let fused = Composition::new(&program, &bound, &choice, options()).expect("one kernel");
        let signature = Signature::new(program.clone(), ranks, Sizes::default()).expect("one axis");
        let numbers = |seed: u64, n: u64| -> Vec<f32> {
            (0..n)
                .map(|i| ((i + 3) * (seed + 5) * 40503 % 65521 % 33) as f32 / 16.0 - 1.0)
                .collect()
        };
        let held = |rank: u32| {
            let of = |(t, i): (&mk::syntax::Tensor, u64)| {
                let shape = signature.local_shape(&bound, t.id, rank);
                let n = shape.iter().product();
                let seed = u64::from(rank) * 31 + i;
                if t.name != "ids" {
                    return numbers(seed, n);
                }
                let expert = |i: u64| (i / slots * (7 + seed) / 3 + i % slots) % 6;
                (0..n).map(|i| expert(i) as f32).collect()
            };
            program.tensors().iter().zip(0..).map(of).collect::<Vec<_>>()
        };
        let inputs: Vec<_> = (0..ranks).map(held).collect();
        let bits = |made: &Composition| -> Vec<Vec<Vec<u32>>> {
            let found = mk::simulate(&signature, &bound, made, &inputs, &SimOptions::default());
            let found = found.unwrap_or_else(|e| panic!("{ranks}: {e}"));
            let of = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
            found.into_iter().map(|rank| rank.into_iter().map(of).collect()).collect()
        };
        let (apart, fused) = (bits(&apart), bits(&fused));
        assert_eq!(apart, fused, "{ranks} ranks");
        assert!(fused.iter().flatten().flatten().any(|x| *x != 0));
    }
}

#[test]
fn measured_winners_decide() {
    let (program, bound) = bind(MLP, &[("M", 512), ("K", 128), ("F", 512)]);
    let gpu = "NVIDIA H200";
    let parts = tune::parts(&program, &bound).expect("comes apart");
    let dir = std::env::temp_dir().join(format!("mk-apart-{}", std::process::id()));
    let options = JitOptions { cache_dir: Some(dir.clone()), ..JitOptions::default() };
    let cache = Cache::new(&options).expect("a place");
    let keep = |program: &Program, bound: &Bound, ms| {
        let config = default(4);
        let key = Key::new(program, bound, 4, &config.target, gpu);
        cache.store(&key, &Winner { config, ms }).expect("is written");
    };
    let settle = |fuse| {
        let config = default(4);
        let searched = Gpu::from(gpu);
        let search = Some((&searched, Some(&cache)));
        let terms = Conditions { config: &config, fuse, overlap: false, search };
        let choice = tune::settle(&program, &bound, &terms);
        // The other processes read what rank 0 found.
        let said = choice.write(&program, &bound);
        assert_eq!(Choice::read(&said, &config).as_ref(), Ok(&choice), "{said}");
        choice
    };
    // Nothing is measured: the model knows both.
    let predicted = settle(Fuse::Auto).verdict;
    assert_eq!(predicted.why, Reason::Predicted);
    assert!(predicted.fused_ms.is_some() && predicted.apart_ms.is_some());
    // The parts alone are no comparison.
    parts.iter().for_each(|p| keep(&p.program, &p.bound, 0.001));
    assert_eq!(settle(Fuse::Auto).verdict.why, Reason::Predicted);
    keep(&program, &bound, 1.0);
    let choice = settle(Fuse::Auto);
    assert_eq!((choice.verdict.made, choice.verdict.why), (Fusion::Apart, Reason::Measured));
    assert_eq!((choice.configs.len(), choice.verdict.fused_ms), (4, Some(1.0)));
    assert_eq!(settle(Fuse::Always).configs, [default(4)]);
    keep(&program, &bound, 0.003);
    assert_eq!(settle(Fuse::Auto).verdict.made, Fusion::Fused);
    assert_eq!(settle(Fuse::Never).verdict.made, Fusion::Apart);
    std::fs::remove_dir_all(&dir).expect("is removed");
    for bad in ["", "apart", "apart measured 1 x", "half measured - -", "fused asked - -\nblok=1"] {
        assert!(Choice::read(bad, &default(4)).is_err(), "{bad}");
    }
}

/// Settings are looked for in the world that a function has: on its nodes, by its network, and beside its mesh.
#[test]
fn settings_are_searched_over_nodes() {
    let (program, bound) = bind(MLP, &[("M", 2048), ("K", 1024), ("F", 2048)]);
    let config = Config { nodes: 2, net: NicOrdering::Unordered, reserved_sms: 4, ..default(4) };
    let gpu = Gpu::from("NVIDIA H200");
    for fuse in [Fuse::Auto, Fuse::Always, Fuse::Never] {
        let terms =
            Conditions { config: &config, fuse, overlap: false, search: Some((&gpu, None)) };
        let choice = tune::settle(&program, &bound, &terms);
        let world = |c: &Config| (c.ranks, c.nodes, c.net);
        assert!(choice.configs.iter().all(|c| world(c) == world(&config)), "{choice:?}");
        // The other processes read what rank 0 found.
        let said = Choice::read(&choice.write(&program, &bound), &config).expect("reads");
        assert_eq!(said.verdict, choice.verdict);
        assert!(said.configs.iter().all(|c| world(c) == world(&config) && c.reserved_sms == 4));
    }
    // By the model, the settings are no slower than the defaults, and all ranks on one node are faster.
    let model = DeviceModel::h200();
    let (found, best) = tune::choose_in(&program, &bound, &config, model).expect("a choice");
    let plain = tune::predict(&program, &bound, &tune::defaults(&config), model).expect("known");
    assert!(best.total_s <= plain.total_s, "{} of {}", best.total_s, plain.total_s);
    let (_, near) = tune::choose(&program, &bound, 4, model).expect("a choice");
    assert!(found.nodes == 2 && near.total_s < best.total_s);
}

#[test]
fn factors_stay_what_they_are() {
    for factor in ["1e-7", "-3", "0.1", "1e30"] {
        let text = format!(
            "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, F]) {{ gather(x) -> gemm(w) -> scale({factor}) }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let dims = [("M", 8), ("K", 8), ("F", 8)].map(|(n, v)| (n.to_string(), v)).into();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        let parts = tune::parts(&program, &bound).unwrap_or_else(|e| panic!("{factor}: {e}"));
        assert_eq!(parts[1].program.nodes()[1].op, program.nodes()[2].op, "{factor}");
    }
}

#[test]
fn names_of_the_caller_are_not_taken() {
    let text =
        "pub fn f(v2: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) { gather(v2) -> gemm(w) }";
    let (.., parts, wiring) = wiring(text, &[("M", 8), ("K", 8), ("F", 8)]);
    let names = parts[1].program.tensors().iter().map(|t| t.name.as_str());
    assert!(names.eq(["w", "v2_"]));
    assert_eq!(wiring.parts[1].inputs, [Place::Input(1), Place::Between(0)]);
}

#[test]
fn a_value_that_its_own_kernel_reads_again_has_a_name_there() {
    let text = "pub fn again(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1)) { let h = gather(x) -> gemm(w); h -> gelu -> mul(h) }";
    let (program, _, parts, _) = wiring(text, &[("M", 8), ("K", 8), ("F", 8)]);
    assert_eq!(
        (parts[1].results.as_slice(), parts[1].program.nodes().len()),
        (program.results(), 3)
    );
    let product = parts[1].program.nodes()[0].result;
    assert_eq!(parts[1].program.nodes()[2].inputs[1], product);
}
