//! Memory: device, pinned host, and symmetric.
//!
//! Never managed memory, never a multicast object.

mod device;
mod host;
mod symmetric;

pub use device::DeviceBuffer;
pub(crate) use host::FaultRecords;
pub use symmetric::SymmetricMemory;
