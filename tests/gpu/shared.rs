//! Ranks that share one GPU, each with its part of the SMs.

use crate::{
    rig::alone,
    scenario::{Case, Kernel, Res, Scenario, good},
    shared_world,
};
use mk::{
    Function, Program,
    abi::DType,
    function::{Argument, Call, FunctionError, FunctionOptions},
    runtime::{
        DeviceTensor, Error, Graph, InstanceOptions, Operand, Reference, Stream, StreamRef, World,
        jit::JitOptions,
    },
    settings::Config,
};
use std::time::Duration;

const PIPELINES: [&str; 4] = [
    "gather(a) -> gemm(b)",
    "gemm(a, b) -> reduce_scatter",
    "gemm(a, b) -> all_reduce",
    "gather(a) -> gemm(b) -> reduce_scatter",
];

fn options() -> InstanceOptions {
    let limit = Duration::from_secs(10);
    InstanceOptions {
        poison: Some(0xFF),
        wait_limit: limit,
        entry_limit: limit,
        ..InstanceOptions::default()
    }
}

#[test]
fn default_splits_fit_side_by_side() -> Res<()> {
    let _alone = alone();
    for ranks in [2, 3, 4, 8] {
        let Some(world) = shared_world("default_splits_fit_side_by_side", ranks) else {
            return Ok(());
        };
        let (budget, sms) = (world.sm_budget(0), world.device(0)?.sms);
        assert_eq!(budget, sms / ranks as u32);
        for pipeline in PIPELINES {
            let shapes = vec![("a", vec![1024, 512]), ("b", vec![512, 768])];
            let case = Case { pipeline, shapes, config: Config::default() };
            let mut s = Scenario::new(&case, &world, &options())?;
            assert!(s.source.grid <= budget, "{pipeline}: {} CTAs of {budget}", s.source.grid);
            for epoch in 1..=5 {
                let norm = s.step(epoch)?;
                assert!(good(&norm), "{pipeline} on {ranks} ranks, launch {epoch}: {norm:?}");
            }
            println!("ok {pipeline}: {ranks} ranks with {} CTAs each", s.source.grid);
        }
    }
    Ok(())
}

#[test]
fn a_grid_without_a_share_is_refused() -> Res<()> {
    let _alone = alone();
    let Some(world) = shared_world("a_grid_without_a_share_is_refused", 3) else { return Ok(()) };
    let shapes = vec![("a", vec![1024, 512]), ("b", vec![512, 768])];
    let case = Case { pipeline: PIPELINES[0], shapes, config: Config::default() };
    let whole = Config { ranks: 3, ..Config::default() };
    let refused = Scenario::bind(&Kernel::with(&case, &whole)?, &world, &options())
        .err()
        .ok_or("it was bound")?;
    let refused = refused.downcast::<Error>()?;
    assert!(matches!(*refused, Error::NotCoResident { sharing: 3, .. }), "{refused}");
    Ok(())
}

fn argument(t: &DeviceTensor) -> Argument {
    Argument { tensor: t.as_arg(), dtype: t.dtype(), shape: t.shape().to_vec() }
}

/// Four ranks of `gather(a) -> gemm(b)` in one stream, as frameworks have it.
struct OneStream {
    f: Function,
    stream: [Stream; 1],
    reference: Reference,
    a: Vec<DeviceTensor>,
    c: Vec<DeviceTensor>,
    b: DeviceTensor,
    /// All rows of `a`, and the result.
    all: DeviceTensor,
    want: DeviceTensor,
    /// A result on the reference's rank.
    got: DeviceTensor,
}

impl OneStream {
    fn new(world: &World) -> Res<OneStream> {
        let (rows, k, n) = (128, 256, 512);
        let new = |rank, shape: &[u64]| DeviceTensor::new(world, rank, DType::Bf16, shape);
        let reference = Reference::new(world, &JitOptions::default())?;
        let b = new(0, &[k, n])?;
        reference.fill_random(&b, 7, 1.0)?;
        let instance = InstanceOptions { poison: None, ..options() };
        let program = Program::parse("gather(a) -> gemm(b)")?;
        let options = FunctionOptions { instance, ..FunctionOptions::default() };
        Ok(OneStream {
            f: Function::new(world, program, options)?,
            stream: [Stream::new(world, 0)?],
            reference,
            a: (0..4).map(|r| new(r, &[rows, k])).collect::<Result<_, _>>()?,
            c: (0..4).map(|r| new(r, &[4 * rows, n])).collect::<Result<_, _>>()?,
            b,
            all: new(0, &[4 * rows, k])?,
            want: DeviceTensor::new(world, 0, DType::F32, &[4 * rows, n])?,
            got: new(0, &[4 * rows, n])?,
        })
    }

    fn streams(&self) -> Vec<StreamRef> {
        vec![self.stream[0].as_ref(); 4]
    }

    fn calls(&self) -> Vec<Call> {
        let call = |(a, c)| Call {
            inputs: vec![argument(a), argument(&self.b)],
            outputs: vec![argument(c)],
        };
        self.a.iter().zip(&self.c).map(call).collect()
    }

    /// New rows of `a`, and outputs of NaN.
    fn fill(&self, seed: u64) -> Res<()> {
        for (rank, (a, c)) in (0..).zip(self.a.iter().zip(&self.c)) {
            self.reference.fill_random(a, 10 * seed + rank, 1.0)?;
            let bytes = a.buffer().size_bytes();
            self.all.buffer().copy_range(rank * bytes, a.buffer(), 0, bytes)?;
            c.poison()?;
        }
        let (all, b) = (Operand::new(&self.all), Operand::new(&self.b));
        Ok(self.reference.gemm(&self.want, all, b, false)?)
    }

    fn judge(&self, what: &str) -> Res<()> {
        // Behind the launch of every rank.
        self.stream[0].synchronize()?;
        for c in &self.c {
            self.got.buffer().copy_range(0, c.buffer(), 0, c.buffer().size_bytes())?;
            let error = self.reference.error(&self.got, &self.want, None)?;
            assert!(error.global < 4e-3 && error.nonfinite == 0, "{what}: {error:?}");
        }
        Ok(())
    }
}

#[test]
fn a_function_takes_one_stream_for_all_ranks() -> Res<()> {
    let _alone = alone();
    let Some(world) = shared_world("a_function_takes_one_stream_for_all_ranks", 4) else {
        return Ok(());
    };
    let mut s = OneStream::new(&world)?;
    for call in 0..20 {
        s.fill(call)?;
        s.f.call(&s.streams(), &s.calls())?;
        s.judge("a call")?;
    }
    Ok(s.f.synchronize()?)
}

#[test]
fn one_graph_holds_all_ranks() -> Res<()> {
    let _alone = alone();
    let Some(world) = shared_world("one_graph_holds_all_ranks", 4) else { return Ok(()) };
    let mut s = OneStream::new(&world)?;
    let (streams, calls) = (s.streams(), s.calls());
    s.fill(0)?;
    let which = s.f.call(&streams, &calls)?;
    s.judge("a call")?;
    let mut graphs = Graph::capture(&s.stream, || match s.f.launch(which, &streams, &calls) {
        Err(FunctionError::Runtime(error)) => Err(error),
        Err(other) => panic!("{other}"),
        Ok(()) => Ok(()),
    })?;
    for replay in 1..=20 {
        s.fill(replay)?;
        graphs.iter_mut().try_for_each(|g| g.launch(streams[0]))?;
        s.judge("a replay")?;
    }
    drop(graphs);
    Ok(s.f.synchronize()?)
}

/// Under a function, streams are the caller's: two ranks in one would wait for ever.
#[test]
fn one_stream_for_two_kernels_is_refused() -> Res<()> {
    let _alone = alone();
    let Some(world) = shared_world("one_stream_for_two_kernels_is_refused", 2) else {
        return Ok(());
    };
    let shapes = vec![("a", vec![256, 128]), ("b", vec![128, 256])];
    let case = Case { pipeline: PIPELINES[0], shapes, config: Config::default() };
    let mut s = Scenario::new(&case, &world, &options())?;
    let stream = s.stream_refs()[0];
    let args = s.args();
    let refused = s.instance.launch(&[stream, stream], &args);
    assert!(matches!(refused, Err(Error::SameStream { ranks: (0, 1), .. })), "{refused:?}");
    // Nothing was launched, and the instance goes on.
    assert!(good(&s.step(1)?));
    Ok(())
}
