//! A pipeline bound to GPUs, with its inputs and an fp32 reference on the same GPUs.

use mk::{
    Program,
    abi::{DType, KernelSource, TensorDirection},
    emit,
    function::reserved_sms,
    passes,
    runtime::{
        DeviceTensor, ErrorNorm, Instance, InstanceOptions, MapOp, Operand, RankTensors, Reference,
        Stream, StreamRef, World,
        jit::{self, Compiled, JitOptions},
        reference::random_value,
    },
    settings::Config,
    syntax::Curve,
    trace::{self, RankBuffer, Trace},
};
use std::{collections::BTreeMap, error::Error};

/// Settings for a world: all SMs of a GPU, or a rank's share of them.
pub fn config_for(world: &World, config: &Config) -> Config {
    let reserved = reserved_sms(world, &config.target, 0);
    let reserved_sms = reserved.max(config.reserved_sms);
    Config { ranks: world.size(), reserved_sms, ..config.clone() }
}

/// Any failure, with its text.
pub type Res<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A pipeline, its global shapes and how it is compiled.
#[derive(Clone, Debug, Default)]
pub struct Case {
    pub pipeline: &'static str,
    pub shapes: Vec<(&'static str, Vec<u64>)>,
    pub config: Config,
}

pub struct Scenario {
    pub instance: Instance,
    pub streams: Vec<Stream>,
    pub source: KernelSource,
    /// By rank, then in argument order.
    pub tensors: Vec<Vec<DeviceTensor>>,
    reference: Reference,
    world: World,
    pipeline: &'static str,
}

/// A case's kernel for a world.
pub struct Kernel {
    pub case: Case,
    source: KernelSource,
    compiled: Compiled,
}

impl Kernel {
    pub fn source(&self) -> &KernelSource {
        &self.source
    }

    /// With the SMs that a rank of this world has.
    pub fn new(case: &Case, world: &World) -> Res<Kernel> {
        Kernel::with(case, &config_for(world, &case.config))
    }

    pub fn with(case: &Case, config: &Config) -> Res<Kernel> {
        Kernel::emitted(case, config, emit::Options::default())
    }

    /// With tracing, as [`Kernel::new`].
    pub fn traced(case: &Case, world: &World) -> Res<Kernel> {
        Kernel::emitted(case, &config_for(world, &case.config), emit::Options { trace: true })
    }

    fn emitted(case: &Case, config: &Config, options: emit::Options) -> Res<Kernel> {
        let program = Program::parse(case.pipeline)?;
        let shapes: BTreeMap<_, _> =
            case.shapes.iter().map(|(n, s)| (n.to_string(), s.clone())).collect();
        let bound = program.bind(&BTreeMap::new(), &shapes)?;
        let (plan, _proof) = passes::compile(&program, &bound, config)?;
        let source = emit::emit_with(&plan, options)?;
        let compiled = jit::compile(&source, &JitOptions::default())?;
        Ok(Kernel { case: case.clone(), source, compiled })
    }
}

impl Scenario {
    pub fn new(case: &Case, world: &World, options: &InstanceOptions) -> Res<Scenario> {
        Scenario::bind(&Kernel::new(case, world)?, world, options)
    }

    pub fn bind(kernel: &Kernel, world: &World, options: &InstanceOptions) -> Res<Scenario> {
        let source = kernel.source.clone();
        let instance = Instance::bind(world, &source, &kernel.compiled, options)?;
        let mut tensors = Vec::new();
        for rank in world.local_ranks() {
            let shapes = &source.ranks[rank as usize].tensor_shapes;
            let new = |(arg, shape): (&mk::abi::TensorArg, &Vec<u64>)| {
                DeviceTensor::new(world, rank, arg.dtype, shape)
            };
            tensors
                .push(source.tensors.iter().zip(shapes).map(new).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Scenario {
            instance,
            streams: Stream::per_rank(world)?,
            tensors,
            reference: Reference::new(world, &JitOptions::default())?,
            world: world.clone(),
            pipeline: kernel.case.pipeline,
            source,
        })
    }

    fn seed(epoch: u64, rank: u32, tensor: usize) -> u64 {
        epoch * 1_000_003 + u64::from(rank) * 101 + tensor as u64
    }

    /// Fresh inputs, poisoned outputs.
    pub fn refill(&self, epoch: u64) -> Res<()> {
        for (rank, tensors) in self.tensors.iter().enumerate() {
            for (i, (t, arg)) in tensors.iter().zip(&self.source.tensors).enumerate() {
                if t.elements() == 0 {
                    continue;
                }
                match arg.direction {
                    TensorDirection::In => {
                        self.reference.fill_random(t, Self::seed(epoch, rank as u32, i), 1.0)?
                    }
                    TensorDirection::Out => t.poison()?,
                }
            }
        }
        Ok(())
    }

    pub fn stream_refs(&self) -> Vec<StreamRef> {
        self.streams.iter().map(Stream::as_ref).collect()
    }

    pub fn args(&self) -> Vec<RankTensors> {
        self.tensors.iter().map(RankTensors::new).collect()
    }

    pub fn launch(&mut self) -> Res<()> {
        let (streams, args) = (self.stream_refs(), self.args());
        Ok(self.instance.launch(&streams, &args)?)
    }

    /// What agents of all ranks did in the last launch, where the kernel is traced.
    pub fn trace(&self) -> Res<Trace> {
        let ranks = 0..self.tensors.len() as u32;
        let buffers = ranks.map(|rank| Ok((rank, self.instance.trace(rank)?)));
        let buffers: Vec<_> = buffers.collect::<Res<_>>()?;
        let sym_stride_bytes = self.instance.symmetric().stride_bytes();
        let all =
            buffers.iter().map(|(rank, bytes)| RankBuffer { rank: *rank, bytes, sym_stride_bytes });
        Ok(trace::read(&self.source, &all.collect::<Vec<_>>())?)
    }

    /// Launches once with fresh inputs and compares every rank.
    pub fn step(&mut self, epoch: u64) -> Res<ErrorNorm> {
        self.refill(epoch)?;
        self.launch()?;
        self.instance.synchronize()?;
        self.worst(epoch)
    }

    fn named(&self, rank: usize, name: &str) -> Option<&DeviceTensor> {
        let i = self.source.tensors.iter().position(|t| t.name == name)?;
        self.tensors[rank].get(i)
    }

    /// Rank `q`'s input, made again on `rank`.
    fn input_of(&self, rank: usize, q: usize, name: &str, epoch: u64) -> Res<DeviceTensor> {
        let i = self.source.tensors.iter().position(|t| t.name == name);
        let i = i.ok_or_else(|| format!("the kernel has no input `{name}`"))?;
        let shape = &self.source.ranks[q].tensor_shapes[i];
        let t = DeviceTensor::new(&self.world, rank as u32, self.source.tensors[i].dtype, shape)?;
        if t.elements() > 0 {
            self.reference.fill_random(&t, Self::seed(epoch, q as u32, i), 1.0)?;
        }
        Ok(t)
    }

    /// All rows of an input that is sharded by rows, on `rank`.
    fn gathered(&self, rank: usize, name: &str, epoch: u64) -> Res<DeviceTensor> {
        let parts = (0..self.tensors.len())
            .map(|q| self.input_of(rank, q, name, epoch))
            .collect::<Res<Vec<_>>>()?;
        let rows = parts.iter().map(|p| p.shape()[0]).sum();
        let shape = [rows, parts[0].shape()[1]];
        let all = DeviceTensor::new(&self.world, rank as u32, parts[0].dtype(), &shape)?;
        let mut at = 0;
        for part in &parts {
            all.buffer().copy_range(
                at,
                part.buffer(),
                0,
                part.buffer().size_bytes().min(all.buffer().size_bytes() - at),
            )?;
            at += part.elements() * part.dtype().size_bytes();
        }
        Ok(all)
    }

    fn f32(&self, rank: usize, shape: &[u64]) -> Res<DeviceTensor> {
        Ok(DeviceTensor::new(&self.world, rank as u32, DType::F32, shape)?)
    }

    /// What rank `q` holds before a reduction (or in the end, if there is none), in f32 on `rank`.
    fn contribution(&self, rank: usize, q: usize, epoch: u64) -> Res<DeviceTensor> {
        let mut x: Option<DeviceTensor> = None;
        for stage in self.pipeline.split("->").map(str::trim) {
            let (op, args) =
                stage.split_once('(').map_or((stage, ""), |(n, r)| (n, r.trim_end_matches(')')));
            let args: Vec<_> = args.split(',').map(str::trim).filter(|a| !a.is_empty()).collect();
            if args.len() == 2 || (x.is_none() && op != "gather") {
                x = Some(self.input_of(rank, q, args[0], epoch)?);
            }
            let arg = |n: usize| args.get(n).copied().ok_or(format!("`{op}` has too few operands"));
            let map = match op {
                "gather" => {
                    x = Some(self.gathered(rank, arg(0)?, epoch)?);
                    continue;
                }
                "reduce_scatter" | "all_reduce" => continue,
                "gemm" => {
                    let b = self.input_of(rank, q, arg(args.len() - 1)?, epoch)?;
                    let a = x.take().ok_or("no operand A")?;
                    let c = self.f32(rank, &[a.shape()[0], b.shape()[1]])?;
                    if c.elements() > 0 {
                        self.reference.gemm(&c, Operand::new(&a), Operand::new(&b), false)?;
                    }
                    x = Some(c);
                    continue;
                }
                "bias" => MapOp::Bias,
                "gelu" => MapOp::Curve(Curve::Gelu),
                "silu" => MapOp::Curve(Curve::Silu),
                "relu" => MapOp::Curve(Curve::Relu),
                "mul" => MapOp::Mul,
                "add" => MapOp::Add,
                "scale" => MapOp::Scale(arg(0)?.parse()?),
                other => return Err(format!("the reference has no `{other}`").into()),
            };
            let y = match map {
                MapOp::Bias | MapOp::Mul | MapOp::Add => {
                    Some(self.input_of(rank, q, arg(0)?, epoch)?)
                }
                _ => None,
            };
            let from = x.take().ok_or("nothing to map")?;
            let to = self.f32(rank, from.shape())?;
            if to.elements() > 0 {
                self.reference.map(map, &to, &from, y.as_ref())?;
            }
            x = Some(to);
        }
        let from = x.ok_or("an empty pipeline")?;
        let to = self.f32(rank, from.shape())?;
        self.reference.map(MapOp::Cast, &to, &from, None)?;
        Ok(to)
    }

    /// What rank `rank` should hold, in f32.
    fn expected(&self, rank: usize, epoch: u64) -> Res<DeviceTensor> {
        let out = self.named(rank, "out").ok_or("the kernel has no result")?;
        if !self.pipeline.contains("reduce") {
            return self.contribution(rank, rank, epoch);
        }
        let mut sum = self.contribution(rank, 0, epoch)?;
        for q in 1..self.tensors.len() {
            let next = self.f32(rank, sum.shape())?;
            self.reference.map(
                MapOp::Add,
                &next,
                &sum,
                Some(&self.contribution(rank, q, epoch)?),
            )?;
            sum = next;
        }
        if self.pipeline.contains("all_reduce") {
            return Ok(sum);
        }
        let rows = sum.shape()[0].div_ceil(self.tensors.len() as u64);
        let own = self.f32(rank, out.shape())?;
        let row_bytes = sum.shape()[1] * 4;
        own.buffer().copy_range(
            0,
            sum.buffer(),
            rank as u64 * rows * row_bytes,
            out.shape()[0] * row_bytes,
        )?;
        Ok(own)
    }

    /// The worst error of any rank.
    pub fn worst(&self, epoch: u64) -> Res<ErrorNorm> {
        let mut worst = ErrorNorm::NONE;
        for rank in 0..self.tensors.len() {
            let out = self.named(rank, "out").ok_or("the kernel has no result")?;
            if out.elements() == 0 {
                continue;
            }
            let norm = self.reference.error(out, &self.expected(rank, epoch)?, None)?;
            if norm.worst_tile > worst.worst_tile
                || norm.global > worst.global
                || norm.nonfinite > 0
            {
                worst = ErrorNorm { global: norm.global.max(worst.global), ..norm };
            }
        }
        Ok(worst)
    }
}

impl Scenario {
    /// Three rows of every rank's result against f64 on the host, from inputs that the host makes for itself. For a
    /// product without epilogue or reduction, gathered or not; others have none to sample.
    pub fn sampled_rows(&self, epoch: u64) -> Res<f64> {
        let gathers = self.pipeline.starts_with("gather");
        if !["gather(a) -> gemm(b)", "gemm(a, b)"].contains(&self.pipeline) {
            return Ok(0.0);
        }
        let shape = |q: usize, i: usize| &self.source.ranks[q].tensor_shapes[i];
        let value = |q: usize, i: usize, index: u64| {
            f64::from(DType::Bf16.round(random_value(Self::seed(epoch, q as u32, i), index, 1.0)))
        };
        let mut worst = 0.0f64;
        for rank in 0..self.tensors.len() {
            let out = self.named(rank, "out").ok_or("the kernel has no result")?;
            let (rows, cols) = (out.shape()[0], out.shape()[1]);
            if rows == 0 || cols == 0 {
                continue;
            }
            let found = out.download_f32()?;
            let depth = shape(rank, 1)[0];
            let b: Vec<f64> = (0..depth * cols).map(|n| value(rank, 1, n)).collect();
            for row in [0, rows / 2, rows - 1] {
                // The shard that owns the row, and the row in it.
                let per_shard = shape(0, 0)[0];
                let (q, local) = if gathers {
                    ((row / per_shard) as usize, row % per_shard)
                } else {
                    (rank, row)
                };
                let a: Vec<f64> = (0..depth).map(|k| value(q, 0, local * depth + k)).collect();
                let (mut error, mut norm) = (0.0, 0.0);
                for col in 0..cols {
                    let want: f64 = a
                        .iter()
                        .enumerate()
                        .map(|(k, x)| x * b[k * cols as usize + col as usize])
                        .sum();
                    let x = f64::from(found[(row * cols + col) as usize]);
                    error += (x - want) * (x - want);
                    norm += want * want;
                }
                let relative = if norm > 0.0 { (error / norm).sqrt() } else { error };
                worst = if relative.is_nan() { f64::INFINITY } else { worst.max(relative) };
            }
        }
        Ok(worst)
    }
}

/// bf16 results: relative Frobenius error below 5e-3 in all, below 2e-2 in every 128 x 128 tile.
pub fn good(n: &ErrorNorm) -> bool {
    n.nonfinite == 0 && n.global < 5e-3 && n.worst_tile < 2e-2
}
