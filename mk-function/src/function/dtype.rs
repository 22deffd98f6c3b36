//! Element types of the language and of the ABI.

/// The element type as the ABI calls it.
pub fn abi_dtype(dtype: mk_syntax::DType) -> mk_abi::DType {
    match dtype {
        mk_syntax::DType::Bf16 => mk_abi::DType::Bf16,
        mk_syntax::DType::F16 => mk_abi::DType::F16,
        mk_syntax::DType::F32 => mk_abi::DType::F32,
        mk_syntax::DType::I32 => mk_abi::DType::I32,
        mk_syntax::DType::I64 => mk_abi::DType::I64,
    }
}
