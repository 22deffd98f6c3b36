//! Messages of `ring`, `attention` and `lse`.

use super::{declare, placed, text};
use crate::diag::Text;

messages! {
    text attention_rank(name: &str, shape: &str)
        "`attention` reads `[B, S, H, D]`, and {name} is `{shape}`";
        "give it four dimensions: batch, sequence, heads, elements of a head";
    text attention_dim(what: &str, wanted: &str, name: &str, found: &str)
        "`attention` needs {what} `{wanted}` in {name}, and it has `{found}`";
        "queries are `[B, S, H, D]`, keys and values `[B, S, G, D]`";
    text attention_depth(depth: u64)
        "`attention` with heads of {depth} elements is not supported yet by this version";
        "use heads of 64, 128, 192 or 256 elements";
    text attention_depths(keys: u64, values: u64)
        "`attention` with heads of {keys} elements of keys and {values} of values is not supported yet by this version";
        "use heads of as many of both, or of 192 and 128";
    placed attention_placement(queries: &str, name: &str, wanted: &str, found: &str)
        "`attention` of `{queries}` queries needs {name} `{wanted}`, and it is `{found}`";
        => declare(name, &format!("`@ {wanted}`"), "attention");
    placed attention_queries(name: &str, found: &str)
        "`attention` cannot use {name}, which is `{found}`";
        => declare(name, "`@ replicate`, `@ shard(0)`, `@ shard(1)`, `@ zigzag(1)` or `@ shard(2)`", "attention");
    text attention_later(key: &str)
        "`attention` with `{key}` is not supported yet by this version";
        "remove it: `causal`, `window = 1024`, `softcap = 50`, `scale = 0.125`, `sinks = s` and `cu_seqlens = cu` are \
         known";
    placed sinks(wanted: &str, name: &str, found: &str)
        "`sinks` are a parameter `{wanted}`, and {name} is `{found}`";
        "give it one number of each head of queries";
    placed packed_documents(name: &str, found: &str)
        "`cu_seqlens` is a parameter `i32[N] @ replicate`, and {name} is `{found}`";
        "give it where each document begins, and where the last one ends";
    text packed_lengths(queries: &str, keys: &str)
        "with `cu_seqlens` queries and keys are the same tokens, and there are `{queries}` and `{keys}` of them";
        "give both one length";
    text attention_window(found: f64)
        "`window` is how many keys a query sees, and {found} is no such number";
        "write a whole number from 1 on, as in `causal, window = 1024`";
    text attention_window_causal()
        "a `window` ends at a query's own position, and this `attention` is not `causal`";
        "write `causal, window = 1024`";
    text attention_softcap(found: f64)
        "`softcap` is positive and finite, and {found} is not, as an f32";
        "write what scaled scores stay below, as in `softcap = 50`";
    placed ring_of(name: &str, found: &str)
        "`ring` passes on shards of the sequence, and {name} is `{found}`";
        "declare {name} `@ shard(1)` or `@ zigzag(1)`";
    placed ring_pair(keys: &str, name: &str, found: &str)
        "`ring` needs keys and values in one placement, `{keys}`, and {name} is `{found}`";
        "declare {name} `@ {keys}`";
    placed ring_queries(keys: &str, name: &str, found: &str)
        "`ring` passes on `{keys}` keys and values, and {name} is `{found}`";
        "declare {name} `@ {keys}`";
    text ring_elsewhere()
        "`ring` hands what it passes on to `attention`, `attention_dq` or `attention_dk`, and to nothing else";
        "write `ring(k, v) -> attention(q)`";
}

pub(crate) fn ring_parts(takes_stats: bool) -> Text {
    match takes_stats {
        true => text(
            "`attention_dk` meets queries, gradients of their results, and statistics, and `ring` passes on two \
             tensors",
            "write `ring(q, do, stats) -> attention_dk(k, v)`",
        ),
        false => text(
            "`ring` passes on three tensors, and this stage takes keys and values",
            "write `ring(k, v)` before it; `ring(q, do, stats)` is for `attention_dk(k, v)`",
        ),
    }
}

messages! {
    text attention_operand(op: &str, name: &str, wanted: &str, found: &str)
        "`{op}` needs {name} to be `{wanted}`, and it is `{found}`";
        "declare {name} as `{wanted}`";
    text attention_dv_of(name: &str)
        "`attention_dv` is of a result of `attention_dk`, and {name} is none";
        "write `let dk = attention_dk(k, v, q, do, stats);` and then `(dk, dk -> attention_dv)`";
    text lse_of(name: &str)
        "`lse` is of a result of `attention`, and {name} is none";
        "write `let o = attention(q, k, v);` and then `(o, o -> lse)`";
    placed zigzag_elsewhere(op: &str, name: &str)
        "`{op}` cannot use {name}, which is `zigzag`: each rank has two parts of it";
        => declare(name, "`@ shard(1)`", op);
}
