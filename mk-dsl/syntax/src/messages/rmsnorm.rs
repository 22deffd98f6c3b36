//! Messages of `rmsnorm`.

use super::{declare, placed, text};
use crate::diag::Text;

pub(crate) fn rmsnorm_rows(op: &str, name: &str, found: &str) -> Text {
    placed(
        format!("`{op}` needs whole rows, and {name} is `{found}`"),
        declare(name, "`@ shard(0)` or `@ replicate`", op),
    )
}

pub(crate) fn rmsnorm_rank(op: &str, name: &str, shape: &str) -> Text {
    text(
        format!("`{op}` needs rows, and {name} is `{shape}`"),
        "give it two dimensions or more: the last one is normalised",
    )
}

pub(crate) fn rmsnorm_eps(op: &str) -> Text {
    text(
        format!("`{op}` divides by a root of at least `eps`, which is not positive"),
        "write `eps = 1e-6`, or leave it out",
    )
}
