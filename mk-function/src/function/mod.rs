//! Pipelines as functions of tensors: compiled for the shapes that they are called with, once for each set of shapes.
//!
//! ```text
//! text ──> Program ──> Signature ──┬─ shapes of a call ──> Bound ──> build::plan ──> jit ──> Kernel::bind ──┐
//!                                  └─ the same shapes again ───────────────────────────────────────> Kernel::launch
//! ```
//!
//! Where one kernel would be slower than one for each operation, a function is a sequence of those, behind the same
//! calls: [`FunctionOptions::fuse`] and [`Function::verdict`].
//!
//! This is what a training job links against, and what the Python module is made of. [`Kernel`] is the lower layer: one
//! set of sizes, compiled by the caller.

mod bind;
mod kernel;
mod options;
mod sequence;
mod share;
mod sizes;
mod wiring;

use crate::Result;
pub use crate::error::{ArgumentError, FunctionError};
pub use kernel::{Argument, Call, Kernel};
pub use options::{FunctionOptions, Tuning};
pub use share::reserved_sms;
pub use sizes::{Signature, Sizes};
pub use wiring::{Place, Wires, Wiring};

use crate::{
    build::{Composition, Draft, Making, Planned},
    choice::{self, Cache, Choice, Conditions, Verdict},
    explain::explain_made,
    kept::{Choices, Proofs, Prove},
    progress::{doing, watch},
};
use bind::{Bind, Run};
use mk_abi::{DType, RuntimeDim, device::MAX_RUNTIME_DIMS};
use mk_codegen::{
    cost::Gpu,
    settings::{Config, NicOrdering},
    trace::Trace,
};
use mk_runtime::{Instance, StreamRef, World, net::Net};
use mk_syntax::{Bound, Dim, Program, SymbolId};
use options::PATIENCE;
use sequence::Sequence;
use share::Fork;
use std::{collections::HashMap, sync::Arc};

/// One set of sizes of a [`Function`], bound to its world: a kernel, and the values of its run-time dimensions; or
/// several kernels, without such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specialisation {
    kernel: usize,
    dims: [u32; MAX_RUNTIME_DIMS],
    n_dims: usize,
}

impl Specialisation {
    /// Values of the kernel's run-time dimensions, in its order.
    pub fn dims(&self) -> &[u32] {
        self.dims.get(..self.n_dims).unwrap_or_default()
    }
}

/// A pipeline on the GPUs of a world. Holds a kernel, with a workspace, for each set of sizes that it was called with,
/// or several kernels and the tensors between them, until it is dropped; drop graphs that captured it first.
///
/// In a world of several processes every process must make the same calls in the same order: a first call with new
/// sizes binds, which all processes do together.
///
/// Replays of a captured call must not run beside other calls or replays of the same function: one kernel finds that
/// out, several ([`Function::verdict`]) would mix the tensors between them.
pub struct Function {
    world: World,
    signature: Signature,
    options: FunctionOptions,
    bound: Vec<Bind>,
    /// Local shapes of a call, flattened, and what was bound for them.
    by_shapes: HashMap<Vec<u64>, Specialisation>,
    /// Where ranks share a GPU.
    fork: Option<Fork>,
}

impl Function {
    /// A function that has nothing compiled yet.
    ///
    /// # Errors
    /// [`FunctionError::Argument`] for given sizes that do not fit the pipeline; [`FunctionError::Runtime`].
    pub fn new(world: &World, program: Program, mut options: FunctionOptions) -> Result<Function> {
        options.config.ranks = world.size();
        options.config.nodes = world.topology().nodes();
        if options.config.nodes > 1 {
            let net = options.instance.net.clone().map_or_else(|| Net::of(world), Ok)?;
            options.config.net = match net.in_order() {
                true => NicOrdering::InOrder,
                false => NicOrdering::Unordered,
            };
            options.instance.net = Some(net);
        }
        if !share::communicates(&program) {
            options.instance.reserve_sms = 0;
        }
        let (target, reserve_sms) = (&options.config.target, options.instance.reserve_sms);
        options.config.reserved_sms = reserved_sms(world, target, reserve_sms);
        let fork = world.shares_gpus().then(|| Fork::new(world)).transpose()?;
        let mesh = &options.config.mesh;
        let signature = Signature::on(program, world.size(), mesh, options.sizes.clone())?;
        Ok(Function {
            world: world.clone(),
            signature,
            options,
            bound: Vec::new(),
            by_shapes: HashMap::new(),
            fork,
        })
    }

    /// The pipeline and what it takes.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What is bound for the local shapes of a call, by rank of this process and parameter; `None` if nothing is yet.
    /// Compiles and allocates nothing.
    ///
    /// # Errors
    /// [`FunctionError::Argument`] for shapes that do not fit.
    pub fn find<S: AsRef<[u64]>>(&mut self, shapes: &[Vec<S>]) -> Result<Option<Specialisation>> {
        let key = key(shapes);
        if let Some(known) = self.by_shapes.get(&key) {
            return Ok(Some(*known));
        }
        let sizes = self.infer(shapes)?;
        let bound = self.known(&sizes);
        if let Some(bound) = bound {
            self.by_shapes.insert(key, bound);
        }
        Ok(bound)
    }

    /// What is bound for the local shapes of a call. Compiles and binds the first time, which is collective.
    ///
    /// # Errors
    /// Any of [`FunctionError`]: shapes that do not fit, no plan, no compiler, no memory.
    pub fn specialise<S: AsRef<[u64]>>(&mut self, shapes: &[Vec<S>]) -> Result<Specialisation> {
        if let Some(known) = self.find(shapes)? {
            return Ok(known);
        }
        let sizes = self.infer(shapes)?;
        let made = self.bind(&sizes)?;
        self.by_shapes.insert(key(shapes), made);
        Ok(made)
    }

    fn infer<S: AsRef<[u64]>>(&self, shapes: &[Vec<S>]) -> Result<Bound> {
        let local = self.world.local_ranks();
        if shapes.len() != local.len() {
            return Err(ArgumentError::Count {
                what: "lists of tensors",
                given: shapes.len(),
                expected: local.len(),
                names: format!("one for each rank of this process ({local:?})"),
            }
            .into());
        }
        Ok(self.signature.infer(local.start, shapes)?)
    }

    /// Compiles and binds for these sizes, unless that was done. Collective.
    ///
    /// # Errors
    /// As [`Function::specialise`].
    pub fn bind(&mut self, sizes: &Bound) -> Result<Specialisation> {
        if let Some(known) = self.known(sizes) {
            return Ok(known);
        }
        let _watch = watch();
        let choice = self.choose(sizes)?;
        let (world, program) = (&self.world, self.signature.program());
        let (emission, jit) = (self.options.emission, &self.options.jit);
        let instead = self.settings_are_free().then_some(&self.options.config);
        let making = Making { program, bound: sizes, emission };
        // One proves, and the others see whether their plans are the same.
        let proves = world.local_ranks().start == 0;
        let proofs = proves.then(|| Proofs::new(jit, self.options.prove));
        let mut mine = Draft::new(making, &choice, jit, instead, proofs.as_ref());
        let options = &self.options.instance;
        let limit = options.entry_limit.max(PATIENCE);
        let said = mine.as_ref().map_or_else(|_| String::new(), Draft::say);
        let waiting = doing("waiting for other ranks".into());
        let said = world.from_rank_0("proving", said.into_bytes(), limit);
        if let (false, Ok(draft), Ok(said)) = (proves, &mut mine, &said) {
            // Nothing is said by a rank 0 that failed, which is told below.
            let heard = String::from_utf8_lossy(said);
            let heard = if heard.is_empty() {
                Ok(())
            } else {
                draft.hear(&heard, world.local_ranks().start)
            };
            mine = heard.and(mine);
        }
        // The others would wait for a rank that has no kernel.
        let made = world.agree("compiling", mine, limit)?;
        said?;
        drop(waiting);
        let (made, compiled) = made.finish()?;
        let run = match (made.kernels.as_slice(), compiled.as_slice()) {
            ([planned], [compiled]) if made.parts.is_empty() => {
                let options = planned.instance_options(options);
                Run::One(Kernel::bind(world, program, &planned.source, compiled, &options)?)
            }
            _ => {
                let signature = &self.signature;
                let bound = Sequence::bind(world, signature, sizes, &made, &compiled, options);
                Run::Apart(bound?)
            }
        };
        let bind = Bind { sizes: sizes.clone(), made: Arc::new(made), run };
        let made = specialisation(program, self.bound.len(), bind.runtime_dims(), sizes);
        self.bound.push(bind);
        Ok(made)
    }

    /// Chooses, proves and compiles for these sizes, so that [`Function::bind`] finds all of it in the caches: for
    /// several functions at a time, which bind one after the other. Waits for no other rank, and binds nothing. Does
    /// nothing where another rank chooses, or nothing is kept.
    ///
    /// # Errors
    /// What [`Function::bind`] will say, too.
    pub fn prepare(&self, sizes: &Bound) -> Result<()> {
        let chooses = self.world.local_ranks().start == 0;
        if !chooses || self.options.prove == Prove::Always || self.known(sizes).is_some() {
            return Ok(());
        }
        let _watch = watch();
        let mut choice = if self.searches() { self.search(sizes) } else { self.settled(sizes) };
        choice.configs.iter_mut().for_each(|c| c.reserved_sms = self.options.config.reserved_sms);
        let (program, jit) = (self.signature.program(), &self.options.jit);
        let instead = self.settings_are_free().then_some(&self.options.config);
        let making = Making { program, bound: sizes, emission: self.options.emission };
        let proofs = Proofs::new(jit, self.options.prove);
        Composition::make(making, &choice, jit, instead, &proofs).map(drop)
    }

    /// Whether no setting is given.
    fn settings_are_free(&self) -> bool {
        let given = &self.options.config;
        let Config { ranks, mesh, reserved_sms, .. } = given.clone();
        *given == Config { ranks, mesh, reserved_sms, ..Config::default() }
    }

    /// Whether settings are looked for: none is given, and GPUs are not shared, for which there are neither
    /// measurements nor a model.
    fn searches(&self) -> bool {
        self.options.tuning == Tuning::Auto
            && self.settings_are_free()
            && self.options.config.mesh.is_empty()
            && !self.world.shares_gpus()
    }

    fn terms(&self) -> Conditions<'_> {
        let (fuse, overlap) = (self.options.fuse, self.options.instance.overlap);
        Conditions { config: &self.options.config, fuse, overlap, search: None }
    }

    /// By the settings that are given.
    fn settled(&self, sizes: &Bound) -> Choice {
        choice::settle(self.signature.program(), sizes, &self.terms())
    }

    /// As this process finds it, for all ranks.
    fn search(&self, sizes: &Bound) -> Choice {
        let program = self.signature.program();
        let cache = Cache::new(&self.options.jit);
        // Of a GPU that the driver does not describe there is neither a measurement nor a model: the default.
        let gpu = choice::gpu_of(&self.world, 0).unwrap_or_else(|_| "".into());
        let terms = Conditions { search: Some((&gpu, cache.as_ref())), ..self.terms() };
        let _doing = doing(format!("choosing settings of `{}`", program.name()));
        Choices::new(&self.options.jit, self.options.prove).settle(program, sizes, &terms)
    }

    /// How to make it for these sizes. Collective where it is looked for.
    fn choose(&self, sizes: &Bound) -> Result<Choice> {
        if !self.searches() {
            return Ok(self.settled(sizes));
        }
        let (world, program) = (&self.world, self.signature.program());
        let mut said = Vec::new();
        if world.local_ranks().start == 0 {
            said = self.search(sizes).write(program, sizes).into_bytes();
        }
        let limit = self.options.instance.entry_limit.max(PATIENCE);
        let _doing = doing(format!("waiting for the settings of `{}`", program.name()));
        let said = world.from_rank_0("choosing how to lower", said, limit)?;
        let text = String::from_utf8_lossy(&said);
        Choice::read(&text, &self.options.config).map_err(|word| {
            FunctionError::mismatch(format!("rank 0 says `{word}`, which is no setting"))
        })
    }

    /// The kernel that serves these sizes, if there is one: fixed symbols are equal, run-time ones within their bounds.
    fn known(&self, sizes: &Bound) -> Option<Specialisation> {
        let program = self.signature.program();
        let serves = |b: &Bind| {
            let mut all = b.sizes.sizes().iter().zip(sizes.sizes()).zip(b.sizes.max_sizes());
            let mut symbols = 0..program.symbols().len();
            all.all(|((bound, wanted), max)| {
                let symbol = symbols.next().map(SymbolId::new);
                match symbol.is_some_and(|s| sizes.is_runtime(Dim::Sym(s))) {
                    true => wanted <= max,
                    false => bound == wanted,
                }
            })
        };
        let i = self.bound.iter().position(serves)?;
        let dims = self.bound.get(i)?.runtime_dims();
        Some(specialisation(program, i, dims, sizes))
    }

    /// Everything that is bound, in the order in which it was.
    pub fn specialisations(&self) -> impl Iterator<Item = Specialisation> + use<> {
        let each = |(i, b): (usize, &Bind)| {
            specialisation(self.signature.program(), i, b.runtime_dims(), &b.sizes)
        };
        self.bound.iter().enumerate().map(each).collect::<Vec<_>>().into_iter()
    }

    /// The plan of a specialisation of this function, or those of its parts in the order of their launches; none for a
    /// specialisation of another function.
    pub fn planned(&self, which: Specialisation) -> &[Planned] {
        self.composition(which).map_or(&[], |made| &made.kernels)
    }

    /// Whether a specialisation of this function is one kernel or several, and why; `None` for one of another function.
    pub fn verdict(&self, which: Specialisation) -> Option<Verdict> {
        self.composition(which).map(|made| made.verdict)
    }

    /// Why a specialisation of this function takes as long as it does for these sizes, as text: what was made, how long
    /// that should take, what bounds it, and what else there is. By the figures and measurements of rank 0. Collective.
    ///
    /// # Errors
    /// [`FunctionError::Mismatch`] for a specialisation of another function; [`FunctionError::Runtime`].
    pub fn explain(&self, which: Specialisation, sizes: &Bound) -> Result<String> {
        let made = self.composition(which);
        let made = made.ok_or_else(|| FunctionError::mismatch("no such specialisation"))?;
        let world = &self.world;
        let mut said = String::new();
        if world.local_ranks().start == 0 {
            let cache = Cache::new(&self.options.jit);
            let unknown = |e| Gpu::from(format!("a GPU without a name ({e})").as_str());
            let gpu = choice::gpu_of(world, 0).unwrap_or_else(unknown);
            let by = (&gpu, cache.as_ref());
            said = explain_made(self.signature.program(), sizes, world.size(), made, by);
        }
        let limit = self.options.instance.entry_limit.max(PATIENCE);
        let said = world.from_rank_0("explaining", said.into_bytes(), limit)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Everything that a specialisation of this function is made of; `None` for one of another function.
    pub fn composition(&self, which: Specialisation) -> Option<&Arc<Composition>> {
        self.bound.get(which.kernel).map(|b| &b.made)
    }

    /// The sizes for which a specialisation of this function was bound first; `None` for one of another function.
    pub fn sizes(&self, which: Specialisation) -> Option<&Bound> {
        self.bound.get(which.kernel).map(|b| &b.sizes)
    }

    /// The kernels of a specialisation of this function, in the order of their launches; none for one of another
    /// function.
    pub fn kernels(&mut self, which: Specialisation) -> &mut [Kernel] {
        self.bound.get_mut(which.kernel).map_or(&mut [], |b| b.run.kernels())
    }

    /// [`Function::results`] of a call with inputs of these shapes: a rank may have its own number of rows.
    pub fn results_of<S: AsRef<[u64]>>(
        &self,
        which: Specialisation,
        rank: u32,
        shapes: &[S],
    ) -> Vec<(DType, Vec<u64>)> {
        if let Some(Run::One(kernel)) = self.bound.get(which.kernel).map(|b| &b.run) {
            return kernel.results_of(rank, which.dims(), shapes);
        }
        let own = self.signature.own_rows(shapes);
        let results = self.results(which, rank).into_iter();
        let named = results.zip(self.signature.program().results());
        named.map(|((dtype, shape), id)| (dtype, self.signature.of_own(*id, shape, own))).collect()
    }

    /// Element type and local shape of each result on a rank of this process.
    pub fn results(&self, which: Specialisation, rank: u32) -> Vec<(DType, Vec<u64>)> {
        match self.bound.get(which.kernel).map(|b| &b.run) {
            Some(Run::One(kernel)) => kernel.results(rank, which.dims()),
            Some(Run::Apart(sequence)) => sequence.results(rank),
            None => Vec::new(),
        }
    }

    /// Launches a specialisation of this function: `streams[i]` and `calls[i]` are those of the i-th rank of this
    /// process. Returns when everything is enqueued. Ranks that share a GPU may share a stream.
    ///
    /// # Errors
    /// [`FunctionError::Mismatch`] for a specialisation of another function; as [`Kernel::launch`].
    pub fn launch(
        &mut self,
        which: Specialisation,
        streams: &[StreamRef],
        calls: &[Call],
    ) -> Result<()> {
        let run = &mut find_bind(&mut self.bound, which)?.run;
        let mut launch = |streams: &[StreamRef]| match run {
            Run::One(kernel) => kernel.launch(streams, calls, which.dims()),
            Run::Apart(sequence) => sequence.launch(streams, calls),
        };
        match &self.fork {
            Some(fork) => fork.launch(streams, launch),
            None => launch(streams),
        }
    }

    /// Launches for the shapes of `calls`, one for each rank of this process; compiles and binds the first time.
    /// Returns when everything is enqueued.
    ///
    /// # Errors
    /// As [`Function::specialise`] and [`Kernel::launch`].
    pub fn call(&mut self, streams: &[StreamRef], calls: &[Call]) -> Result<Specialisation> {
        for call in calls {
            for (i, input) in call.inputs.iter().enumerate() {
                self.signature.check_dtype(i, input.dtype)?;
            }
        }
        let shapes: Vec<Vec<&[u64]>> =
            calls.iter().map(|c| c.inputs.iter().map(|a| &*a.shape).collect()).collect();
        let which = self.specialise(&shapes)?;
        self.launch(which, streams, calls)?;
        Ok(which)
    }

    /// Whether a launch was captured: graphs may hold addresses of its workspace.
    pub fn captured(&self) -> bool {
        self.bound.iter().any(|b| b.run.instances().any(Instance::captured))
    }

    /// What this process's ranks did in the last launch of each kernel of a specialisation, in their order. Waits for
    /// them; needs [`FunctionOptions::emission`] to ask for it.
    ///
    /// # Errors
    /// [`FunctionError::Mismatch`] for a specialisation of another function; as [`Kernel::trace`].
    pub fn trace(&mut self, which: Specialisation) -> Result<Vec<Trace>> {
        let run = &mut find_bind(&mut self.bound, which)?.run;
        run.kernels().iter_mut().map(Kernel::trace).collect()
    }

    /// Looks for failures of earlier launches without waiting.
    ///
    /// # Errors
    /// [`FunctionError::Runtime`] when a kernel gave up.
    pub fn check(&mut self) -> Result<()> {
        self.bound.iter_mut().try_for_each(|b| Ok(b.run.each(Instance::check)?))
    }

    /// Waits for the last launch of every specialisation. Replays of captured graphs are waited for on their own
    /// streams.
    ///
    /// # Errors
    /// [`FunctionError::Runtime`] when a kernel gave up.
    pub fn synchronize(&mut self) -> Result<()> {
        self.bound.iter_mut().try_for_each(|b| Ok(b.run.each(Instance::synchronize)?))
    }
}

fn find_bind(bound: &mut [Bind], which: Specialisation) -> Result<&mut Bind> {
    let bind = bound.get_mut(which.kernel);
    bind.ok_or_else(|| FunctionError::mismatch("no such specialisation"))
}

fn specialisation(
    program: &Program,
    kernel: usize,
    runtime: &[RuntimeDim],
    sizes: &Bound,
) -> Specialisation {
    let mut dims = [0; MAX_RUNTIME_DIMS];
    for (to, dim) in dims.iter_mut().zip(runtime) {
        let value = program.symbol(&dim.name).and_then(|s| sizes.dim(Dim::Sym(s)));
        // Binding refuses what is above a bound, and bounds are 32-bit.
        *to = value.and_then(|v| u32::try_from(v).ok()).unwrap_or(dim.max);
    }
    Specialisation { kernel, dims, n_dims: runtime.len().min(MAX_RUNTIME_DIMS) }
}

/// Shapes as one list. Lengths go in, so that no two lists of shapes meet.
fn key<S: AsRef<[u64]>>(shapes: &[Vec<S>]) -> Vec<u64> {
    let mut key = Vec::with_capacity(3 * shapes.iter().map(Vec::len).sum::<usize>());
    for shape in shapes.iter().flatten() {
        key.push(shape.as_ref().len() as u64);
        key.extend_from_slice(shape.as_ref());
    }
    key
}
