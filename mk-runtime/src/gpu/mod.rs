//! Streams, events, graphs and tensors: what a caller of [`crate::launch`] needs, without a CUDA binding of its own.

mod graph;
mod kernel;
mod stream;
mod tensor;

pub use crate::driver::{Event, StreamRef};
pub use graph::Graph;
pub(crate) use graph::{Usable, note_capture};
pub(crate) use kernel::{Kernel, Module};
pub use stream::Stream;
pub use tensor::{DeviceTensor, TensorRef};
