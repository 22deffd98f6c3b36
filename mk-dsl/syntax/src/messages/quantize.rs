//! Messages of `quantize` and `dequantize`.

use super::{placed, reduce_before, text};
use crate::diag::Text;
use crate::program::DType;

messages! {
    text quantize_to(found: DType)
        "`quantize` makes values of eight bits, and `{found}` has more";
        "write `e4m3` or `e5m2`, or `cast` to 16 bits";
    text quantize_blocks()
        "`quantize` gives a factor to each 128 elements of a row, and to no other block";
        "write `quantize(e4m3, 1, 128)`; quantise weights before the pipeline, and declare them `scaled(128, 128)`";
    text quantize_rank(name: &str, shape: &str)
        "`quantize` needs rows, and {name} is `{shape}`";
        "give it two dimensions: `[M, K]`";
    text quantize_of(name: &str, found: DType)
        "`quantize` reads bf16 or f16, and {name} is `{found}`";
        "put `cast(bf16)` before it, or leave it out where values are of eight bits";
    placed quantize_partial(name: &str)
        "`quantize` is rounded, and {name} is `partial`: a sum not yet made";
        => reduce_before("quantize");
}

pub(crate) fn dequantize_of(name: &str, scaled: bool) -> Text {
    match scaled {
        true => text(
            format!("`dequantize` reads factors of 128 elements of a row, and {name} has others"),
            "declare it `scaled(1, 128)`, or read it in `gemm`",
        ),
        false => text(
            format!("{name} has no factors"),
            "write `cast(bf16)`, or declare it `scaled(1, 128)`",
        ),
    }
}
