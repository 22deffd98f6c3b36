//! Messages of `view`.

use super::{placed, text};
use crate::diag::Text;

messages! {
    text view_rank(name: &str, shape: &str, n_dims: usize)
        "`view` makes heads `[B, S, H, D]` of rows `[M, K]`, and rows of heads; {name} is `{shape}`, and {n_dims} \
         dimensions are given";
        "give `view(B, S, H, D)` of a matrix, or `view(M, K)` of heads";
    text view_dim()
        "a dimension of a `view` is a symbol or a number";
        "write it as in `view(1, S, H, 128)`";
    text view_runtime(name: &str)
        "`{name}` comes with each launch, and the dimensions of a `view` are fixed";
        "leave `{name}: dyn` out";
    placed view_placement(name: &str, found: &str)
        "`view` cannot keep {name}, which is `{found}`, where it is";
        "shard the batch, one sequence (of `view(1, S, H, D)`), or whole heads";
}
