//! What the fields of a struct with `#[mk::pipelined(..)]` may be.

use mk_runtime::{DeviceTensor, TensorRef};
use std::{rc::Rc, sync::Arc};

/// A tensor on one rank that a launch can be given.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tensor that a kernel can be given",
    label = "not an `mk::AsTensor`",
    note = "use `mk::runtime::DeviceTensor`, `mk::runtime::TensorRef` for memory of somebody else, or a reference to \
        one"
)]
pub trait AsTensor {
    /// Its address and size. Launches check the size.
    fn as_tensor(&self) -> TensorRef;
}

impl AsTensor for DeviceTensor {
    fn as_tensor(&self) -> TensorRef {
        self.as_arg()
    }
}

impl AsTensor for TensorRef {
    fn as_tensor(&self) -> TensorRef {
        *self
    }
}

macro_rules! by_reference {
    ($($pointer:ty),*) => {$(
        impl<T: AsTensor + ?Sized> AsTensor for $pointer {
            fn as_tensor(&self) -> TensorRef {
                T::as_tensor(self)
            }
        }
    )*};
}
by_reference!(&T, Box<T>, Rc<T>, Arc<T>);
