//! Storage precision.

use half::{bf16, f16};
use mk_abi::DType;

/// The value that memory of this type holds after `x` was stored to it, round to nearest even.
pub(in super::super) fn round(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::F32 => x,
        DType::I32 | DType::I64 => x.round_ties_even(),
    }
}
