//! A pipeline as a function: compiled for the shapes that it is called with.

use crate::{scenario::Res, worlds};
use mk::{
    Function, Program,
    abi::DType,
    function::{Argument, Call, FunctionError, FunctionOptions, Sizes},
    harness::{Case, Tolerance},
    runtime::{DeviceTensor, Graph, Operand, Reference, Stream, StreamRef, World, jit::JitOptions},
    tune::{Fuse, Made, Why},
};

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
                let error = reference.error(&r.c, &r.want)?;
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
            let error = reference.error(&r.c, &r.want)?;
            assert!(error.global < 4e-3 && error.nonfinite == 0, "ragged: {error:?}");
        }
    }
    Ok(())
}

#[test]
fn one_kernel_serves_every_number_of_rows() -> Res<()> {
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
                let error = reference.error(&r.c, &r.want)?;
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
            let error = reference.error(&r.c, &r.want)?;
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
