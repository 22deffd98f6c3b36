//! A pipeline as a function: compiled for the shapes that it is called with.

use crate::{rig::alone, scenario::Res, worlds};
use mk::{
    Bound, Function, Program,
    abi::DType,
    function::{Argument, Call, FunctionError, FunctionOptions, Sizes, Specialisation},
    runtime::{DeviceTensor, Graph, Operand, Reference, Stream, StreamRef, World, jit::JitOptions},
    tune::{Fuse, Fusion, Reason},
};
use mk_harness::{Case, Dense, Inputs, judge};

/// Tensors of one rank: its rows of `a`, its columns of `b`, and what it shall hold of the result.
struct Rank {
    a: DeviceTensor,
    b: DeviceTensor,
    c: DeviceTensor,
    want: DeviceTensor,
}

fn argument(t: &DeviceTensor) -> Argument {
    Argument { tensor: t.as_arg(), dtype: t.dtype(), shape: t.shape().to_vec() }
}

/// Random inputs, with `rows[p]` rows of `a` on rank p.
fn ranks(world: &World, reference: &Reference, rows: &[u64], k: u64, n: u64) -> Res<Vec<Rank>> {
    let m = rows.iter().sum();
    let mut out = Vec::new();
    for (rank, rows) in (0..).zip(rows) {
        let new = |dtype, shape: &[u64]| DeviceTensor::new(world, rank, dtype, shape);
        let r = Rank {
            a: new(DType::Bf16, &[*rows, k])?,
            b: new(DType::Bf16, &[k, n])?,
            c: new(DType::Bf16, &[m, n])?,
            want: new(DType::F32, &[m, n])?,
        };
        reference.fill_random(&r.a, 1 + u64::from(rank), 1.0)?;
        reference.fill_random(&r.b, 100 + u64::from(rank), 1.0)?;
        r.c.poison()?;
        out.push(r);
    }
    for (rank, r) in (0..).zip(&out) {
        let all = DeviceTensor::new(world, rank, DType::Bf16, &[m, k])?;
        let mut at = 0;
        for part in out.iter().map(|r| r.a.buffer()) {
            all.buffer().copy_range(at, part, 0, part.size_bytes())?;
            at += part.size_bytes();
        }
        reference.gemm(&r.want, Operand::new(&all), Operand::new(&r.b), false)?;
    }
    Ok(out)
}

fn calls(ranks: &[Rank]) -> Vec<Call> {
    let call = |r: &Rank| Call {
        inputs: vec![argument(&r.a), argument(&r.b)],
        outputs: vec![argument(&r.c)],
    };
    ranks.iter().map(call).collect()
}

#[test]
fn shapes_are_bound_as_they_come() -> Res<()> {
    let _alone = alone();
    for world in worlds("shapes_are_bound_as_they_come") {
        let n = u64::from(world.size());
        let reference = Reference::new(&world, &JitOptions::default())?;
        let streams = Stream::per_rank(&world)?;
        let streams: Vec<StreamRef> = streams.iter().map(Stream::as_ref).collect();
        let program = Program::parse("gather(a) -> gemm(b)")?;
        let mut f = Function::new(&world, program.clone(), FunctionOptions::default())?;
        let mut seen = Vec::new();
        for rows in [128, 200, 128] {
            let ranks = ranks(&world, &reference, &vec![rows; n as usize], 256, 512)?;
            seen.push(f.call(&streams, &calls(&ranks))?);
            f.synchronize()?;
            for r in &ranks {
                let error = reference.error(&r.c, &r.want, None)?;
                assert!(error.global < 4e-3 && error.nonfinite == 0, "{rows} rows: {error:?}");
            }
        }
        assert!(seen[0] == seen[2] && seen[0] != seen[1]);
        // Ragged rows: refused when they are guessed at, right when they are given.
        let m = 100 * n - 3;
        let rows: Vec<u64> = (0..n).map(|p| m.div_ceil(n).min(m - p * m.div_ceil(n))).collect();
        let ranks = ranks(&world, &reference, &rows, 256, 512)?;
        if rows.last() != rows.first() {
            let refused = f.call(&streams, &calls(&ranks));
            assert!(matches!(refused, Err(FunctionError::Argument(_))), "{refused:?}");
        }
        let shapes = [("a".to_string(), vec![m, 256])].into();
        let sizes = Sizes { shapes, ..Sizes::default() };
        let options = FunctionOptions { sizes, ..FunctionOptions::default() };
        let mut f = Function::new(&world, program, options)?;
        f.call(&streams, &calls(&ranks))?;
        f.synchronize()?;
        for r in &ranks {
            let error = reference.error(&r.c, &r.want, None)?;
            assert!(error.global < 4e-3 && error.nonfinite == 0, "ragged: {error:?}");
        }
    }
    Ok(())
}

#[test]
fn one_kernel_serves_every_number_of_rows() -> Res<()> {
    let _alone = alone();
    for world in worlds("one_kernel_serves_every_number_of_rows") {
        let n = world.size() as usize;
        let reference = Reference::new(&world, &JitOptions::default())?;
        let streams = Stream::per_rank(&world)?;
        let streams: Vec<StreamRef> = streams.iter().map(Stream::as_ref).collect();
        let program = Program::parse(
            "fn f<M: dyn <= 2048>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }",
        )?;
        let mut f = Function::new(&world, program, FunctionOptions::default())?;
        for rows in [128, 1, 200, 512, 7] {
            let ranks = ranks(&world, &reference, &vec![rows; n], 256, 512)?;
            f.call(&streams, &calls(&ranks))?;
            f.synchronize()?;
            for r in &ranks {
                let error = reference.error(&r.c, &r.want, None)?;
                assert!(error.global < 4e-3 && error.nonfinite == 0, "{rows} rows: {error:?}");
            }
        }
        assert_eq!(f.specialisations().count(), 1);
        let long = ranks(&world, &reference, &vec![2048 / n as u64 + 1; n], 256, 512)?;
        let refused = f.call(&streams, &calls(&long)).expect_err("above the bound").to_string();
        assert!(refused.contains("bound 2048"), "{refused}");
        println!("ok one kernel for five numbers of rows on {n} ranks");
    }
    Ok(())
}

#[test]
fn a_call_is_traced() -> Res<()> {
    let _alone = alone();
    for world in worlds("a_call_is_traced") {
        let n = world.size() as usize;
        let reference = Reference::new(&world, &JitOptions::default())?;
        let streams = Stream::per_rank(&world)?;
        let streams: Vec<StreamRef> = streams.iter().map(Stream::as_ref).collect();
        let program = Program::parse("gather(a) -> gemm(b)")?;
        let emission = mk::emit::Options { trace: true };
        let fuse = Fuse::Always;
        let options = FunctionOptions { emission, fuse, ..FunctionOptions::default() };
        let mut f = Function::new(&world, program.clone(), options)?;
        let ranks = ranks(&world, &reference, &vec![512; n], 512, 1024)?;
        for launch in 1..=3 {
            let which = f.call(&streams, &calls(&ranks))?;
            let [trace] = &f.trace(which)?[..] else { panic!("one kernel") };
            assert_eq!((trace.epoch, trace.ranks().count()), (launch, n));
            let source = &f.planned(which)[0].source;
            let is = |s: &&mk::trace::Span, want| s.what == want;
            let ctas = trace.spans.iter().filter(|s| is(s, mk::trace::What::Cta)).count();
            assert_eq!(ctas, n * source.grid as usize);
            // Of agents that are one lane of a warp, too, whichever lane that is.
            for agent in [mk::trace::Agent::Loader, mk::trace::Agent::Storer] {
                let tasks = |s: &&mk::trace::Span| matches!(s.what, mk::trace::What::Task { .. });
                assert!(trace.spans.iter().filter(tasks).any(|s| s.agent == agent), "{agent:?}");
            }
            assert!(
                trace.clocks.iter().all(|c| c.lost == 0 && c.disordered == 0),
                "{:?}",
                trace.clocks
            );
            // Less than a tick of the timer.
            assert!(trace.alignment.contradiction_ns < 32.0, "{:?}", trace.alignment);
            assert!(mk::trace::chain(trace).steps.len() <= 3 * n);
        }
        for r in &ranks {
            let error = reference.error(&r.c, &r.want, None)?;
            assert!(error.global < 4e-3 && error.nonfinite == 0, "{error:?}");
        }
        let mut plain = Function::new(&world, program, FunctionOptions::default())?;
        let which = plain.call(&streams, &calls(&ranks))?;
        let refused = plain.trace(which).expect_err("records nothing").to_string();
        assert!(refused.contains("was emitted without tracing"), "{refused}");
        println!("ok a trace of {n} ranks");
    }
    Ok(())
}

/// Pipelines on ragged shards, made of parts: the chain, one whose results its own parts read, and one that has no kernel as
/// a whole.
const APART: [&str; 3] = [
    "fn mlp(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
         gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
     }",
    "fn twice(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[K, F] @ shard(1))
         -> (bf16[M, K], bf16[M, F] @ shard(1), bf16[M, F] @ shard(1)) {
         let all = gather(x);
         let left = all -> gemm(w) -> silu;
         let right = all -> gemm(v) -> mul(left);
         (all, left, right)
     }",
    "fn last(x: bf16[M, K] @ shard(0), w: bf16[K, F]) -> bf16[M, F] { gemm(x, w) -> gelu -> gather }",
];

/// Tensors of all ranks for one call, and what to compare them with.
struct Set {
    launch: u64,
    /// Parameters, then results, by rank.
    tensors: Vec<Vec<DeviceTensor>>,
    n_params: usize,
}

impl Set {
    fn new(world: &World, f: &Function, which: Specialisation, bound: &Bound) -> Res<Set> {
        let (signature, mut tensors) = (f.signature(), Vec::new());
        let params = signature.program().tensors();
        for rank in world.local_ranks() {
            let inputs =
                params.iter().map(|t| (DType::Bf16, signature.local_shape(bound, t.id, rank)));
            let all = inputs.chain(f.results(which, rank));
            let new = |(dtype, shape): (_, Vec<u64>)| DeviceTensor::new(world, rank, dtype, &shape);
            tensors.push(all.map(new).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Set { launch: 0, tensors, n_params: params.len() })
    }

    fn fill(&mut self, reference: &Reference, inputs: Inputs<'_>, launch: u64) -> Res<()> {
        self.launch = launch;
        for (rank, tensors) in self.tensors.iter().enumerate() {
            let (given, results) = tensors.split_at(self.n_params);
            for (t, param) in given.iter().zip(inputs.case().program.tensors()) {
                if t.elements() > 0 {
                    reference.fill_random(t, inputs.seed(launch, param, rank), 1.0)?;
                }
            }
            results.iter().filter(|t| t.elements() > 0).try_for_each(DeviceTensor::poison)?;
        }
        Ok(())
    }

    fn calls(&self) -> Vec<Call> {
        let list = |ts: &[DeviceTensor]| ts.iter().map(argument).collect();
        let call = |ts: &Vec<DeviceTensor>| {
            let (inputs, outputs) = ts.split_at(self.n_params);
            Call { inputs: list(inputs), outputs: list(outputs) }
        };
        self.tensors.iter().map(call).collect()
    }

    fn judge(&self, inputs: Inputs<'_>, what: &str) -> Res<()> {
        let program = inputs.case().program;
        for (i, result) in program.results().iter().enumerate() {
            let want = Dense::new(inputs, self.launch).expected(*result)?;
            for (rank, (tensors, want)) in self.tensors.iter().zip(want).enumerate() {
                let got = &tensors[self.n_params + i];
                let judged = judge(&got.download_f32()?, &want);
                assert!(judged.passes(), "{what}: result {i}, rank {rank}: {judged}");
            }
        }
        Ok(())
    }
}

#[test]
fn parts_are_launched_one_after_the_other() -> Res<()> {
    let _alone = alone();
    for world in worlds("parts_are_launched_one_after_the_other") {
        let n = world.size() as usize;
        let reference = Reference::new(&world, &JitOptions::default())?;
        let owned = [Stream::per_rank(&world)?, Stream::per_rank(&world)?];
        let streams = owned.each_ref().map(|s| s.iter().map(Stream::as_ref).collect::<Vec<_>>());
        for text in APART {
            let program = Program::parse(text)?;
            let dims = [("M", 70 * n as u64 - 3), ("K", 128), ("F", 200)];
            let dims = dims.map(|(name, size)| (name.to_string(), size)).into();
            let bound = program.bind(&dims, &Default::default())?;
            let sizes = Sizes { dims, ..Sizes::default() };
            let options =
                FunctionOptions { sizes, fuse: Fuse::Never, ..FunctionOptions::default() };
            let mut f = Function::new(&world, program.clone(), options)?;
            let which = f.bind(&bound)?;
            let verdict = f.verdict(which).ok_or("nothing bound")?;
            assert_eq!((verdict.made, verdict.why), (Fusion::Apart, Reason::Asked));
            assert_eq!(
                f.planned(which).len(),
                mk::tune::parts(&program, &bound).map_or(0, |p| p.len())
            );
            let inputs = Inputs::new(Case { program: &program, bound: &bound, ranks: n }, 7);
            let new = || Set::new(&world, &f, which, &bound);
            let mut sets = [new()?, new()?];
            for launch in 1..=3 {
                // Two sequential calls on other streams: they share what lies between parts.
                for (i, set) in sets.iter_mut().enumerate() {
                    set.fill(&reference, inputs, 2 * launch + i as u64)?;
                }
                for (set, streams) in sets.iter().zip(&streams) {
                    assert_eq!(f.call(streams, &set.calls())?, which);
                }
                f.synchronize()?;
                sets.iter().try_for_each(|s| s.judge(inputs, text))?;
            }
            // A call that fits no part is refused before any of them.
            let mut calls = sets[0].calls();
            calls[n - 1].outputs.pop();
            let refused = f.launch(which, &streams[0], &calls);
            assert!(matches!(refused, Err(FunctionError::Argument(_))), "{refused:?}");
            let mut calls = sets[0].calls();
            calls[0].outputs[0].tensor = calls[0].inputs[0].tensor;
            assert!(f.launch(which, &streams[0], &calls).is_err());
            // One graph of all parts.
            let calls = sets[1].calls();
            let mut graphs =
                Graph::capture(&owned[0], || match f.launch(which, &streams[0], &calls) {
                    Err(FunctionError::Runtime(error)) => Err(error),
                    Err(other) => panic!("{other}"),
                    Ok(()) => Ok(()),
                })?;
            for launch in 10..15 {
                sets[1].fill(&reference, inputs, launch)?;
                for (graph, stream) in graphs.iter_mut().zip(&streams[0]) {
                    graph.launch(*stream)?;
                }
                owned[0].iter().try_for_each(Stream::synchronize)?;
                f.check()?;
                sets[1].judge(inputs, text)?;
            }
            drop(graphs);
        }
        println!("ok {} pipelines of parts on {n} ranks, eager and captured", APART.len());
    }
    Ok(())
}

#[test]
fn what_has_no_kernel_as_a_whole_is_called_all_the_same() -> Res<()> {
    let _alone = alone();
    for world in worlds("what_has_no_kernel_as_a_whole_is_called_all_the_same") {
        if world.size() == 1 {
            continue;
        }
        let program = Program::parse(APART[2])?;
        let dims = [("M", 256), ("K", 128), ("F", 256)].map(|(n, v)| (n.to_string(), v)).into();
        let bound = program.bind(&dims, &Default::default())?;
        let mut f = Function::new(&world, program.clone(), FunctionOptions::default())?;
        let which = f.bind(&bound)?;
        let verdict = f.verdict(which).ok_or("nothing bound")?;
        assert_eq!((verdict.made, verdict.why), (Fusion::Apart, Reason::NoKernel));
        let options = FunctionOptions { fuse: Fuse::Always, ..FunctionOptions::default() };
        let refused = Function::new(&world, program, options)?.bind(&bound);
        assert!(matches!(refused, Err(FunctionError::Lower(_))), "{refused:?}");
    }
    Ok(())
}
