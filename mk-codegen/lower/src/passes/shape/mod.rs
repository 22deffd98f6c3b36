//! The shape of a kernel: its operations and tensors, who owns which rows, and how rows are cut into blocks. Nothing
//! here knows families or signals.

pub(in crate::passes) mod attention;
pub(in crate::passes) mod chunks;
pub(in crate::passes) mod extents;
pub(in crate::passes) mod grouped;
pub(in crate::passes) mod ids;
pub(in crate::passes) mod kernel;
pub(in crate::passes) mod map;
pub(in crate::passes) mod pieces;
pub(in crate::passes) mod ranks;
pub(in crate::passes) mod rows;
pub(in crate::passes) mod tensor;
