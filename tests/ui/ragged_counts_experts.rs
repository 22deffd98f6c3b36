//! Counts of other experts than there are matrices of.

mk::pipeline! {
    pub fn experts(
        x: bf16[R, H] @ shard(0),
        counts: i32[C] @ shard(0),
        w: bf16[E, H, I] @ shard(0),
    ) -> bf16[R, I] @ shard(0) {
        x -> ragged(counts) -> grouped_gemm(w)
    }
}

fn main() {}
