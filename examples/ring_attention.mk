// Attention over a sequence that ranks share: each rank has its queries, keys and values of two parts of the sequence, such that a
// causal mask gives every rank as much to do, and attends to the keys and values of all while they arrive.
//
// B = 1, S = 1024, H = 4, G = 2, D = 64

/// ring -> attention, causal, with the logarithms that a backward pass, or a merge, needs.
pub fn ring_attention(
    q: bf16[B, S, H, D] @ zigzag(1),
    k: bf16[B, S, G, D] @ zigzag(1),
    v: bf16[B, S, G, D] @ zigzag(1),
) -> (bf16[B, S, H, D] @ zigzag(1), f32[B, H, S] @ zigzag(2)) {
    let o = ring(k, v) -> attention(q, causal);
    (o, o -> lse)
}
