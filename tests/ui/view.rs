//! Neither rows nor heads, a dimension that is no whole number, one that each launch gives, parts of several sequences.

mk::pipeline! {
    pub fn f<L: dyn <= 64>(x: bf16[M, K], y: bf16[L, K], q: bf16[B, S, H, 64] @ shard(1)) {
        (x -> view(B, S, 64), x -> view(B, S, H, 0.5), y -> view(1, L, H, 64), q -> view(M, K))
    }
}

fn main() {}
