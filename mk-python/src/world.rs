//! The ranks that work together.

use crate::{
    errors::{self, Class},
    interrupt::release,
    options::{Ranks, seconds},
    store::{StoreBootstrap, blame},
    tensor::Home,
};
use mk::runtime;
use pyo3::{
    exceptions::{PyException, PyTypeError},
    prelude::*,
    types::{PyDict, PyType},
};
use std::ops::Range;

/// How a world is made.
const MADE_BY: &str = "World.from_torch(), World.from_env(), World.local(n), World.reference() or World.offline(ranks)";

/// The ranks that work together, and the GPUs that they own.
///
/// Made by ``World.from_torch()``, ``World.from_env()``, ``World.local(n)``, ``World.reference()`` or
/// ``World.offline(ranks)``. A copy of a world is the world; a pickle finds it in a process that has made such a one.
#[pyclass(frozen, weakref, subclass, module = "mk")]
pub struct World {
    place: Place,
    /// The axes of a mesh and the ranks along each, the last one's side by side; empty without a mesh.
    mesh: Vec<(String, u32)>,
}

/// Where functions run.
#[derive(Clone)]
pub enum Place {
    Gpus(runtime::World),
    /// Nowhere: they are checked, planned and simulated.
    Offline {
        ranks: u32,
        rank: u32,
    },
    /// On CPU tensors, by torch's operations (`python/mk/_reference.py`): here they are checked and planned.
    Reference {
        ranks: u32,
        rank: u32,
    },
}

impl World {
    /// A world that pickles find.
    fn made(py: Python<'_>, place: Place, mesh: Vec<(String, u32)>) -> PyResult<Py<World>> {
        let world = Py::new(py, World { place, mesh })?;
        py.import("mk._worlds")?.call_method1("register", (&world,))?;
        Ok(world)
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    pub fn mesh(&self) -> &[(String, u32)] {
        &self.mesh
    }
}

impl Place {
    pub fn size(&self) -> u32 {
        match self {
            Place::Gpus(world) => world.size(),
            Place::Offline { ranks, .. } | Place::Reference { ranks, .. } => *ranks,
        }
    }

    /// The ranks of this process.
    pub fn local(&self) -> Range<u32> {
        match self {
            Place::Gpus(world) => world.local_ranks(),
            Place::Offline { rank, .. } | Place::Reference { rank, .. } => *rank..*rank + 1,
        }
    }

    /// The GPU of a rank of this process, where something runs.
    pub fn gpu(&self, py: Python<'_>, rank: u32) -> PyResult<i32> {
        self.device(rank).ok_or_else(|| {
            let what = format!("internal error: rank {rank} has no GPU in this process");
            Class::Error.error(py, what)
        })
    }

    /// The GPU of a rank, where there are GPUs.
    pub fn device(&self, rank: u32) -> Option<i32> {
        match self {
            Place::Gpus(world) => world.device(rank).ok().map(|d| d.ordinal),
            Place::Offline { .. } | Place::Reference { .. } => None,
        }
    }

    /// Where the tensors of a rank must be.
    pub fn home(&self, rank: u32) -> Home {
        match self {
            Place::Gpus(_) => self.device(rank).map_or(Home::Anywhere, Home::Gpu),
            Place::Offline { .. } => Home::Anywhere,
            Place::Reference { .. } => Home::Cpu,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Dropping the world tells the other processes.
        release(std::mem::replace(&mut self.place, Place::Offline { ranks: 1, rank: 0 }));
    }
}

/// The current GPU, as torch counts them.
fn current_device(py: Python<'_>) -> PyResult<i32> {
    let found = py.import("torch.cuda")?.call_method0("current_device").and_then(|d| d.extract());
    found.map_err(|cause| {
        if !cause.is_instance_of::<PyException>(py) {
            return cause;
        }
        let what = format!(
            "torch has no GPU here: {}\n  help: mk.World.reference() computes on CPU tensors, with the same program",
            cause.value(py)
        );
        let error = Class::Device.error(py, what);
        error.set_cause(py, Some(cause));
        error
    })
}

#[pymethods]
impl World {
    /// Only for subclasses, and always of CPU tensors.
    #[new]
    #[classmethod]
    #[pyo3(signature = (ranks=None, rank=None, mesh=None))]
    fn derived(
        class: &Bound<'_, PyType>,
        ranks: Option<u32>,
        rank: Option<u32>,
        mesh: Option<Vec<(String, u32)>>,
    ) -> PyResult<World> {
        match (ranks, rank) {
            (Some(ranks), Some(rank)) if !class.is(class.py().get_type::<World>()) => {
                let mesh = mesh.unwrap_or_default();
                let size = mesh.iter().map(|(_, n)| u64::from(*n)).product::<u64>();
                if rank >= ranks || !mesh.is_empty() && size != u64::from(ranks) {
                    let what = format!("rank {rank} of {ranks}, with the mesh {mesh:?}");
                    return Err(PyTypeError::new_err(what));
                }
                Ok(World { place: Place::Reference { ranks, rank }, mesh })
            }
            _ => Err(PyTypeError::new_err(format!("a world is made by {MADE_BY}"))),
        }
    }

    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    fn __reduce__<'py>(
        this: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyAny>,))> {
        let worlds = this.py().import("mk._worlds")?;
        Ok((worlds.getattr("find")?, (worlds.call_method1("name", (this,))?,)))
    }

    /// One process per GPU, found through ``torch.distributed``. Collective: every rank of ``group``, by default of
    /// all, calls it, in the same order if it is called several times.
    ///
    /// ``group`` may be a DeviceMesh, whose named dimensions are then the axes of pipelines: the world is of all its
    /// ranks, and ``mesh["tp"]`` one of those along an axis.
    ///
    /// Ranks and world size are those of the process group; the default group's store carries the rendezvous, and no
    /// backend is used. Afterwards the processes talk by sockets of their own. ``store`` takes its place if given. The
    /// rank's GPU is ``device``, by default ``torch.cuda.current_device()``: set it before. ``timeout_s`` bounds the
    /// wait for the other ranks.
    ///
    /// Ranks may be on several hosts, neighbours together: all hosts then need the same token (MK_TOKEN_FILE), and have
    /// a network in common.
    ///
    /// Raises RendezvousError if torch.distributed is not initialised, a rank does not come in time, or hosts do not
    /// fit together, DeviceError for GPUs that cannot work together.
    #[staticmethod]
    #[pyo3(signature = (store=None, *, group=None, device=None, timeout_s=600.0))]
    fn from_torch(
        py: Python<'_>,
        store: Option<Py<PyAny>>,
        group: Option<Py<PyAny>>,
        device: Option<i32>,
        timeout_s: f64,
    ) -> PyResult<Py<World>> {
        let timeout = seconds(py, "timeout_s", timeout_s)?;
        let dist = py.import("torch.distributed")?;
        let ready = dist.call_method0("is_available")?.is_truthy()?
            && dist.call_method0("is_initialized")?.is_truthy()?;
        if !ready {
            let what = "torch.distributed is not initialised: call torch.distributed.init_process_group() first, or \
                        use World.from_env() or World.local(n)";
            return Err(Class::Rendezvous.error(py, what));
        }
        let of = match &group {
            Some(group) => Some(py.import("mk._meshes")?.call_method1("ranks", (group,))?),
            None => None,
        };
        let (group, mesh): (Option<Py<PyAny>>, Vec<(String, u32)>) = match of {
            Some(found) => found.extract()?,
            None => (None, Vec::new()),
        };
        let rank: i64 = dist.call_method1("get_rank", (&group,))?.extract()?;
        let Ok(rank) = u32::try_from(rank) else {
            let what = "this process is not in `group`\n  help: every rank of a group, and no other, makes its world";
            return Err(Class::Argument.error(py, what));
        };
        let world_size: u32 = dist.call_method1("get_world_size", (&group,))?.extract()?;
        let ranks = match &group {
            Some(group) => {
                let all: Vec<u64> =
                    dist.call_method1("get_process_group_ranks", (group,))?.extract()?;
                all.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
            }
            None => "all".into(),
        };
        let store = match store {
            Some(store) => store,
            // Private by its name; torch's own symmetric memory meets there, too.
            None => py
                .import("torch.distributed.distributed_c10d")?
                .call_method0("_get_default_store")?
                .unbind(),
        };
        let device = match device {
            Some(device) => device,
            None => current_device(py)?,
        };
        // Worlds of other ranks, and other worlds of these, do not meet there.
        let prefix: String = py
            .import("mk._rendezvous")?
            .getattr("meet")?
            .call1((&store, format!("mk/{ranks}"), rank, world_size, timeout_s))?
            .extract()?;
        let bootstrap = StoreBootstrap::new(store, rank, world_size, prefix, timeout);
        let cause = bootstrap.cause();
        let world = py.detach(|| runtime::World::connect(Box::new(bootstrap), device));
        let world = world.map_err(|e| blame(py, &cause, &e))?;
        World::made(py, Place::Gpus(world), mesh)
    }

    /// One process per GPU, found through the environment variables of torchrun, srun, mpirun or one's own, without
    /// torch.distributed, on one host or several. Collective.
    ///
    /// Raises RendezvousError or DeviceError.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Py<World>> {
        let world = py.detach(runtime::World::from_env).map_err(|e| errors::runtime(py, &e))?;
        World::made(py, Place::Gpus(world), Vec::new())
    }

    /// One process that owns GPUs ``0..n``, one rank each. Functions then take and return lists of ``n`` tensors,
    /// unless ``n`` is 1. With ``gpu`` all ranks share that GPU, to try things on one: their kernels split its SMs.
    /// ``devices`` says it rank by rank: ``World.local(devices=[0, 0, 1])``. For ``n`` a dict says how many ranks are
    /// along each axis of a mesh, the last one's side by side: ``World.local({"dp": 2, "tp": 2})``.
    ///
    /// Raises DeviceError, ArgumentError for a number of ranks that no world has.
    #[staticmethod]
    #[pyo3(signature = (n=None, *, gpu=None, devices=None))]
    fn local(
        py: Python<'_>,
        n: Option<&Bound<'_, PyAny>>,
        gpu: Option<i32>,
        devices: Option<Vec<i32>>,
    ) -> PyResult<Py<World>> {
        let on = n.map(Ranks::new).transpose()?;
        let n = on.as_ref().map(|on| on.ranks as usize);
        let make = || match (n, gpu, &devices) {
            (Some(n), Some(gpu), None) => Some(runtime::World::shared(gpu, n)),
            (Some(n), None, None) => Some(runtime::World::local(n)),
            (None, None, Some(devices)) => Some(runtime::World::on_devices(devices)),
            _ => None,
        };
        let Some(world) = py.detach(make) else {
            let what = "give the number of ranks, with `gpu` if they share one, or `devices` alone";
            return Err(Class::Argument.error(py, what));
        };
        let world = world.map_err(|e| errors::runtime(py, &e))?;
        World::made(py, Place::Gpus(world), on.unwrap_or_default().mesh)
    }

    /// Returns when every process of the world has called it.
    ///
    /// Raises RendezvousError.
    fn _barrier(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        let limit = seconds(py, "timeout_s", timeout_s)?;
        match &self.place {
            Place::Gpus(world) => {
                py.detach(|| world.barrier(limit)).map_err(|e| errors::runtime(py, &e))
            }
            Place::Offline { .. } | Place::Reference { .. } => Ok(()),
        }
    }

    /// No GPU: the processes of a process group of torch.distributed that can exchange CPU tensors (gloo), by default
    /// of all; or this process alone, where torch.distributed is not initialised. Functions compute with torch,
    /// operation by operation, on CPU tensors: the same program runs on a laptop. Tensors are checked as on GPUs, and
    /// each call is agreed upon by all ranks.
    ///
    /// Raises RendezvousError for a group without torch.distributed, ArgumentError for one that this process is not in.
    #[staticmethod]
    #[pyo3(signature = (group=None))]
    fn reference(py: Python<'_>, group: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let made = py.import("mk._reference")?.getattr("ReferenceWorld")?.call1((group,))?;
        Ok(made.unbind())
    }

    /// No GPU: plans as rank ``rank``; ``ranks`` is a number, or a dict of the axes of a mesh. Functions check their
    /// tensors and have plans, and calling them ends in a DeviceError.
    ///
    /// Raises ArgumentError.
    #[staticmethod]
    #[pyo3(signature = (ranks, rank=0))]
    fn offline(py: Python<'_>, ranks: &Bound<'_, PyAny>, rank: u32) -> PyResult<Py<World>> {
        let Ranks { ranks, mesh } = Ranks::new(ranks)?;
        if rank >= ranks {
            let what = format!("there is no rank {rank} of {ranks}: they are counted from 0");
            return Err(Class::Argument.error(py, what));
        }
        World::made(py, Place::Offline { ranks, rank }, mesh)
    }

    /// The axes of a mesh and the ranks along each, the last one's side by side; empty without a mesh.
    #[getter(mesh)]
    fn mesh_by_name(this: &Bound<'_, Self>) -> PyResult<Py<PyDict>> {
        let dict = PyDict::new(this.py());
        this.get().mesh.iter().try_for_each(|(name, size)| dict.set_item(name, size))?;
        Ok(dict.unbind())
    }

    /// Nodes that its ranks are on.
    #[getter(_nodes)]
    fn nodes(&self) -> u32 {
        match &self.place {
            Place::Gpus(world) => world.topology().nodes(),
            Place::Offline { .. } | Place::Reference { .. } => 1,
        }
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.place.size()
    }

    /// The ranks of this process.
    #[getter]
    fn ranks(&self) -> Vec<u32> {
        self.place.local().collect()
    }

    /// The GPUs of these ranks, as CUDA counts them; empty without.
    #[getter]
    fn devices(&self) -> Vec<i32> {
        self.place.local().filter_map(|rank| self.place.device(rank)).collect()
    }

    /// SMs that each rank's kernel may take so that those of all ranks which share a GPU run side by side; None without
    /// GPUs.
    #[getter]
    fn sm_budget(&self) -> Option<u32> {
        match &self.place {
            Place::Gpus(world) => Some(world.sm_budget(0)),
            Place::Offline { .. } | Place::Reference { .. } => None,
        }
    }

    fn __repr__(&self) -> String {
        let (ranks, devices) = (self.ranks(), self.devices());
        let mut size = mk::abi::count(self.size(), "rank");
        let axes: Vec<_> = self.mesh.iter().map(|(name, n)| format!("{name}={n}")).collect();
        if !axes.is_empty() {
            size += &format!(" as {}", axes.join(","));
        }
        match self.place {
            Place::Gpus(_) => {
                format!("<mk.World of {size}: {ranks:?} here, on GPUs {devices:?}>")
            }
            Place::Offline { .. } => {
                format!("<mk.World of {size}: {ranks:?}, offline>")
            }
            Place::Reference { .. } => {
                format!("<mk.World of {size}: {ranks:?} here, on CPU tensors>")
            }
        }
    }
}
