//! What a compiled kernel is to the runtime: text, launch shape, memory layout and arguments.
//!
//! `mk-codegen` produces a [`KernelSource`]; `mk-runtime` compiles, binds and launches it. The runtime never sees a
//! plan, and code generation never sees a driver: this crate is the whole of what they share.
//!
//! The structs in [`device`] are read by both the host and the kernel. They are declared here once; the CUDA
//! declaration is printed from the same list of fields ([`device::cuda_declarations`]), and both sides assert the
//! offsets.

pub mod device;
mod host;
mod kernel;
mod net;
mod words;

pub use host::{HostOp, HostProgram};
pub use kernel::{
    EdgeInfo, KernelSource, MapBase, RankBinding, RoleInfo, RuntimeDim, RuntimeRows, Share,
    Swizzle, TensorArg, TensorDirection, TensorMapSpec, TraceFamily, TraceLayout, WorkspaceLayout,
};
pub use mk_dtype::DType;
pub use net::NetLayout;
pub use words::count;
