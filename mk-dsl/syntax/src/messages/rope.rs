//! Messages of `rope`.

use super::{placed, reduce_before, text};
use crate::diag::Text;
use crate::program::DType;

pub(crate) fn rope_rank(op: &str, name: &str, shape: &str) -> Text {
    text(
        format!("`{op}` needs rows of heads side by side, and {name} is `{shape}`"),
        "give it two dimensions: `[M, H * D]`",
    )
}

pub(crate) fn rope_partial(op: &str, name: &str) -> Text {
    placed(
        format!("`{op}` is rounded, and {name} is `partial`: a sum not yet made"),
        reduce_before(op),
    )
}

pub(crate) fn rope_table(op: &str, name: &str, found: DType) -> Text {
    text(
        format!("`{op}` reads cosines and sines in f32, and {name} is `{found}`"),
        format!("declare {name} `f32[M, D]`: of a row D / 2 cosines, then D / 2 sines"),
    )
}
