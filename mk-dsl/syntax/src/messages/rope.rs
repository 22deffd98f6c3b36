//! Messages of `rope`.

use super::{placed, reduce_before, text};
use crate::diag::Text;
use crate::program::DType;

messages! {
    text rope_rank(op: &str, name: &str, shape: &str)
        "`{op}` needs rows of heads side by side, and {name} is `{shape}`";
        "give it two dimensions: `[M, H * D]`";
    placed rope_partial(op: &str, name: &str)
        "`{op}` is rounded, and {name} is `partial`: a sum not yet made";
        => reduce_before(op);
    text rope_table(op: &str, name: &str, found: DType)
        "`{op}` reads cosines and sines in f32, and {name} is `{found}`";
        "declare {name} `f32[M, D]`: of a row D / 2 cosines, then D / 2 sines";
}
