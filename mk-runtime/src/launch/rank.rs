//! One rank's part of an instance: its module, its memory, its parameter block.

use super::contract::{own_rows, tensor_bytes};
use super::dims;
use super::engine::Engine;
use super::maps::{Bases, encode};
use super::options::{InstanceOptions, RankTensors};
use super::params::{MAX_PARAM_BYTES, ParamBlock};
use super::residency::{Attributes, prepare};
use crate::driver::{self, Place, cu};
use crate::error::{Error, Result};
use crate::gpu::{Event, Kernel, Module, StreamRef, TensorRef};
use crate::jit::Compiled;
use crate::mem::{DeviceBuffer, FaultRecords, SymmetricMemory};
use crate::net::Leased;
use crate::world::World;
use mk_abi::device::{ControlBlock, LaunchHeader};
use mk_abi::{KernelSource, MapBase};
use std::mem::size_of;
use std::sync::Arc;

/// No tensor is here, so whatever a launch passes is new.
const NO_POINTER: u64 = u64::MAX;

/// A kernel bound on one rank.
pub(super) struct Rank {
    pub(super) rank: u32,
    /// SMs that the grid takes.
    pub(super) sms: u32,
    pub(super) kernel: Kernel,
    params: ParamBlock,
    bases: Bases,
    pub(super) expected_bytes: Vec<u64>,
    /// Pointers that the parameter block holds now.
    tensors: Vec<u64>,
    /// Run-time dimensions that it holds now.
    dims: Vec<u32>,
    pub(super) done: Arc<Event>,
    pub(super) scratch: DeviceBuffer,
    pub(super) trace: Option<DeviceBuffer>,
    engine: Option<Engine>,
    _control: DeviceBuffer,
}

/// Memory beyond a rank's own that its kernel reaches.
#[derive(Clone, Copy)]
pub(super) struct Shared<'m> {
    pub symmetric: &'m SymmetricMemory,
    pub faults: &'m FaultRecords,
    /// Its range of the net arena, where ranks are on several nodes.
    pub net: Option<&'m Leased>,
}

impl Rank {
    pub(super) fn bind(
        world: &World,
        rank: u32,
        source: &KernelSource,
        compiled: &Compiled,
        options: &InstanceOptions,
        shared: Shared<'_>,
    ) -> Result<Rank> {
        let Shared { symmetric, faults, net } = shared;
        let net = net.and_then(|net| net.place(rank)).unwrap_or_default();
        let (wait_limit_ns, entry_limit_ns, chaos_max_ns) = options.nanoseconds(source)?;
        let module = Module::load(world.context(rank)?, &compiled.cubin)?;
        let kernel = Kernel::new(&module, &source.entry, &source.name)?;
        let sms = prepare(world, rank, source, &kernel, options.reserve_sms)?;
        let poison = options.poison.unwrap_or(0);
        let scratch = DeviceBuffer::filled(world, rank, source.workspace.scratch_bytes, poison)?;
        let control = DeviceBuffer::zeroed(world, rank, size_of::<ControlBlock>() as u64)?;
        let trace = source.trace.as_ref().map(|layout| layout.bytes(source.grid));
        let trace = trace.map(|bytes| DeviceBuffer::zeroed(world, rank, bytes)).transpose()?;
        let header = LaunchHeader {
            sym_base: symmetric.base(rank)?,
            sym_stride_bytes: symmetric.stride_bytes(),
            scratch: scratch.ptr(),
            control: control.ptr(),
            fault: faults.device_ptr(rank),
            trace: trace.as_ref().map_or(0, DeviceBuffer::ptr),
            wait_limit_ns,
            entry_limit_ns,
            rank,
            world: world.size(),
            launch_hash: source.plan_hash,
            chaos_seed: options.chaos_seed,
            chaos_max_ns,
            instance: net.instance,
            net: net.net,
            fifo: net.fifo,
            ..LaunchHeader::default()
        };
        let binding = &source.ranks[rank as usize];
        let dims: Vec<_> = source.runtime_dims.iter().map(|d| d.max).collect();
        let params = ParamBlock::new(binding.maps.len(), source.tensors.len(), header);
        check_param(source, &kernel, &params)?;
        let engine = match &source.host {
            Some(program) => {
                let control = control.ptr();
                let symmetric = symmetric.layout(rank)?;
                let engine =
                    Engine::new(world, rank, source, program, &module, control, symmetric)?;
                check_param(source, engine.gate(), &params)?;
                Some(engine)
            }
            None => None,
        };
        let mut this = Rank {
            rank,
            sms,
            kernel,
            params,
            bases: Bases {
                rank,
                symmetric: symmetric.layout(rank)?.clone(),
                scratch: scratch.ptr(),
                net: net.net,
                somewhere: control.ptr(),
            },
            expected_bytes: tensor_bytes(source, rank, &binding.tensor_shapes)?,
            tensors: vec![NO_POINTER; source.tensors.len()],
            dims: Vec::new(),
            done: Arc::new(Event::untimed(world, rank)?),
            scratch,
            trace,
            engine,
            _control: control,
        };
        this.set_dims(source, &dims)?;
        let context = this.kernel.context().clone();
        let _in = context.enter()?;
        for (i, map) in binding.maps.iter().enumerate() {
            if let Some(address) = this.bases.resolve(map.base)? {
                encode(source, i, map, address, &this.bases, this.params.map_mut(i))?;
            }
        }
        Ok(this)
    }

    /// Puts the values of run-time dimensions into the parameter block.
    pub(super) fn set_dims(&mut self, source: &KernelSource, dims: &[u32]) -> Result<()> {
        if self.dims == dims {
            return Ok(());
        }
        self.expected_bytes = tensor_bytes(source, self.rank, &source.shapes(self.rank, dims))?;
        self.params.update_header(|header| {
            header.dims[..dims.len()].copy_from_slice(dims);
            header.launch_hash = dims::launch_hash(source.plan_hash, dims);
        });
        // Maps over tensors that are longer or shorter now must be encoded again.
        for (t, pointer) in self.tensors.iter_mut().enumerate() {
            if dims::decides(source, t) {
                *pointer = NO_POINTER;
            }
        }
        self.dims = dims.to_vec();
        Ok(())
    }

    /// Puts the number of its own rows into the parameter block.
    pub(super) fn set_own_rows(&mut self, source: &KernelSource, args: &RankTensors) -> Result<()> {
        let rows = own_rows(source, self.rank, &self.expected_bytes, args)?;
        self.params.update_header(|header| header.own_rows = rows);
        Ok(())
    }

    /// Puts the caller's pointers into the parameter block, and encodes the maps of those that changed.
    ///
    /// # Errors
    /// [`Error::Tensor`] for memory that is not on this rank's GPU; the block then holds no pointer of that tensor.
    pub(super) fn set_tensors(&mut self, source: &KernelSource, given: &RankTensors) -> Result<()> {
        for (t, tensor) in given.tensors.iter().enumerate() {
            if self.tensors[t] == tensor.ptr {
                continue;
            }
            let context = self.kernel.context().clone();
            let _in = context.enter()?;
            // Until all its maps are encoded the old pointer does not count either.
            self.tensors[t] = NO_POINTER;
            self.check_place(source, t, tensor)?;
            for (i, map) in source.ranks[self.rank as usize].maps.iter().enumerate() {
                if map.base == MapBase::Tensor(t as u32) {
                    let slot = self.params.map_mut(i);
                    // A tensor without elements may come with any pointer; its map lies over nothing of the caller's.
                    let address = if tensor.bytes == 0 { 0 } else { tensor.ptr };
                    let map = dims::map(source, self.rank, map, &self.dims);
                    encode(source, i, &map, address, &self.bases, slot)?;
                }
            }
            self.params.set_tensor(t, tensor.ptr);
            self.tensors[t] = tensor.ptr;
        }
        Ok(())
    }

    /// A pointer into another GPU's memory, or into none, would end the context of the rank that follows it.
    fn check_place(&self, source: &KernelSource, t: usize, tensor: &TensorRef) -> Result<()> {
        if tensor.bytes == 0 {
            return Ok(());
        }
        let ordinal = self.kernel.context().ordinal();
        let what = match driver::place(tensor.ptr)? {
            Place::Device(on) if on != ordinal => {
                format!("is on GPU {on}, and this rank's is GPU {ordinal}")
            }
            Place::Nowhere => {
                format!("is at {:#x}, which is neither a GPU's memory nor pinned", tensor.ptr)
            }
            Place::Device(_) | Place::Host => return Ok(()),
        };
        let (kernel, tensor) = (source.name.clone(), source.tensors[t].name.clone());
        Err(Error::Tensor { kernel, rank: self.rank, tensor, what })
    }

    /// Whether a stream is being captured. The context is current.
    pub(super) fn is_captured(&self, stream: StreamRef) -> Result<bool> {
        Ok(stream.capture(self.kernel.context().ordinal())?.is_some())
    }

    /// Whether this rank's launch may be captured. The context is current.
    pub(super) fn may_capture(&self, stream: StreamRef) -> Result<bool> {
        self.engine.as_ref().map_or(Ok(true), |engine| engine.may_capture(stream))
    }

    /// Enqueues the host operations that go beside the kernel, if there are and all before them is enqueued (nothing
    /// else keeps them from memory that peers still read), and marks the end of all unless it is captured: also where
    /// something failed, because the rest runs. The context is current.
    pub(super) fn finish(&self, stream: StreamRef, eager: bool, whole: bool) -> Result<()> {
        let copied = match &self.engine {
            Some(engine) if whole => engine.carry_out(stream, eager, &self.tensors),
            _ => Ok(()),
        };
        let marked = if eager { self.done.record_entered(stream) } else { Ok(()) };
        copied.and(marked)
    }

    /// Enqueues the kernel, behind its gate if it has one; [`Rank::finish`] follows. The context is current.
    pub(super) fn enqueue(
        &mut self,
        source: &KernelSource,
        attributes: &mut Attributes,
        stream: StreamRef,
        eager: bool,
    ) -> Result<()> {
        let device = Some(self.kernel.context().ordinal());
        let config = attributes.config(source, stream.raw());
        if self.engine.is_some() {
            self.params.update_header(|header| header.gated = u32::from(!eager));
        }
        let mut params = [self.params.as_param()];
        if let (Some(engine), false) = (&self.engine, eager) {
            // SAFETY: the block has the size that the gate declares (checked at bind), and the driver copies it.
            unsafe { engine.open(stream, params[0]) }?;
        }
        // SAFETY: the block has the size that the kernel declares (checked at bind) and the driver copies it; the
        // configuration points to attributes that outlive the call; the stream belongs to the current context.
        unsafe {
            cu!(
                device,
                cuLaunchKernelEx(
                    &config,
                    self.kernel.function(),
                    params.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
        }
    }
}

/// The kernel must take one by-value struct of the block's size.
fn check_param(source: &KernelSource, kernel: &Kernel, params: &ParamBlock) -> Result<()> {
    let content = ParamBlock::bytes_for(source.ranks[0].maps.len(), source.tensors.len());
    let given = kernel.only_param_bytes()?;
    if given.is_some_and(|bytes| params.fits(bytes)) && content <= MAX_PARAM_BYTES {
        return Ok(());
    }
    Err(Error::BadSource {
        kernel: source.name.clone(),
        what: format!(
            "its entry point must take one struct of {content} bytes (at most {MAX_PARAM_BYTES}), and takes {}",
            given.map_or_else(|| "something else".into(), |b| format!("one of {b}"))
        ),
    })
}
