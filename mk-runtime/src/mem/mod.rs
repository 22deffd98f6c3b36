//! Memory: device, pinned host, and symmetric.
//!
//! Never managed memory, never a multicast object.

mod device;
mod exchange;
mod host;
mod layout;
mod pinned;
mod pool;
mod symmetric;
mod vmm;

pub use device::DeviceBuffer;
pub(crate) use device::drain;
pub(crate) use host::FaultRecords;
pub(crate) use layout::Layout;
pub(crate) use pinned::Pinned;
pub use symmetric::SymmetricMemory;
