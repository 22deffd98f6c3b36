//! Messages of `rmsnorm`.

use super::{declare, placed, text};
use crate::diag::Text;

messages! {
    placed rmsnorm_rows(op: &str, name: &str, found: &str)
        "`{op}` needs whole rows, and {name} is `{found}`";
        => declare(name, "`@ shard(0)` or `@ replicate`", op);
    text rmsnorm_rank(op: &str, name: &str, shape: &str)
        "`{op}` needs rows, and {name} is `{shape}`";
        "give it two dimensions or more: the last one is normalised";
    text rmsnorm_eps(op: &str)
        "`{op}` divides by a root of at least `eps`, which is not positive";
        "write `eps = 1e-6`, or leave it out";
}
