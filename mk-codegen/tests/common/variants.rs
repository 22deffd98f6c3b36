//! Every strategy that a config has beside the defaults, on shapes that have something to get wrong.

use super::Case;
use mk_codegen::{
    passes::{LowerError, lower},
    plan::Plan,
    settings::{AllReduce, Config, Consumers, Gather, LastWave, Multicast, Reduction, Schedule},
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

/// A pipeline that is lowered in another than the default way.
pub struct Variant {
    pub case: Case,
    pub set: fn(&mut Config),
}

const fn variant(case: Case, set: fn(&mut Config)) -> Variant {
    Variant { case, set }
}

const ALL_REDUCE_MLP: &str = "gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> all_reduce";
const ALL_REDUCE_DYN: &str = "fn f<M: dyn <= 512>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }";
const FEW_ROWS: &[(&str, &[u64])] = &[("a", &[64, 1536]), ("b", &[1536, 1032])];
const RAGGED: &[(&str, &[u64])] = &[("a", &[1900, 1536]), ("b", &[1536, 1032])];
/// Columns that are rows of a multiple of 16 bytes, also a quarter of them.
const RAGGED_ALIGNED: &[(&str, &[u64])] = &[("a", &[1900, 1536]), ("b", &[1536, 1056])];

/// Rows of more than the 8 KiB that are copied at once.
const LONG_ROWS: &[(&str, &[u64])] = &[("a", &[1301, 192]), ("b", &[192, 4872])];

/// Several tiles a CTA.
const SEVERAL_WAVES: &[(&str, &[u64])] = &[("a", &[1900, 1536]), ("b", &[1536, 3080])];

/// The same with rows that TMA can store, a quarter as long as well.
const SEVERAL_WAVES_ALIGNED: &[(&str, &[u64])] = &[("a", &[1900, 1536]), ("b", &[1536, 3136])];

fn ping_pong(c: &mut Config, columns: u32) {
    c.block = [128, columns, 64];
    c.consumers = Consumers::PingPong;
}

const REPLICATED: &str = "fn f(a: bf16[M, K] @ replicate, b: bf16[K, N] @ replicate) -> bf16[M, N] @ replicate { gemm(a, b) -> relu }";
const REPLICATED_GATED: &str = "fn f(a: bf16[M, K] @ replicate, w: bf16[K, 2, N] @ replicate) -> bf16[M, N] @ replicate { gemm(a, w) -> swiglu }";

/// Every strategy that a [`Config`] has beside the defaults, on shapes that have something to get wrong.
#[allow(dead_code)]
pub const VARIANTS: &[Variant] = &[
    variant(
        (
            "gather_few_rows_in_pieces",
            "gather(a) -> gemm(b)",
            4,
            &[("a", &[100, 512]), ("b", &[512, 2048])],
        ),
        |c| c.chunk_bytes = 8 << 10,
    ),
    variant(("one_shot_few_rows", "gemm(a, b) -> all_reduce", 4, FEW_ROWS), |c| {
        c.all_reduce = AllReduce::OneShot;
    }),
    variant(
        (
            "one_shot_mlp_few_rows",
            ALL_REDUCE_MLP,
            3,
            &[("x", &[200, 256]), ("w1", &[256, 520]), ("w2", &[520, 256])],
        ),
        |c| c.all_reduce = AllReduce::OneShot,
    ),
    variant(("one_shot_dyn_few_rows", ALL_REDUCE_DYN, 2, &[("w", &[264, 328])]), |c| {
        c.all_reduce = AllReduce::OneShot
    }),
    variant(("sums_after_scatter", "gemm(a, b) -> reduce_scatter", 3, RAGGED), |c| {
        c.reduction = Reduction::AfterLastWave;
    }),
    variant(("sums_after_all", "gemm(a, b) -> all_reduce", 3, RAGGED), |c| {
        c.reduction = Reduction::AfterLastWave
    }),
    variant(
        (
            "sums_after_dyn",
            "fn f<M: dyn <= 700>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }",
            2,
            &[("w", &[264, 328])],
        ),
        |c| c.reduction = Reduction::AfterLastWave,
    ),
    variant(
        (
            "sums_after_mlp",
            "gather(x) -> gemm(w1) -> silu -> gemm(w2) -> reduce_scatter",
            2,
            &[("x", &[700, 256]), ("w1", &[256, 520]), ("w2", &[520, 256])],
        ),
        |c| c.reduction = Reduction::AfterLastWave,
    ),
    variant(("ring", "gemm(a, b) -> reduce_scatter", 4, RAGGED_ALIGNED), |c| {
        (c.reduction, c.group_m) = (Reduction::Ring, Some(3));
    }),
    variant(
        ("ring_of_two", "gemm(a, b) -> scale(0.5) -> reduce_scatter", 2, RAGGED_ALIGNED),
        |c| {
            c.reduction = Reduction::Ring;
        },
    ),
    variant(
        (
            "ring_dyn",
            "fn f<M: dyn <= 700>(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> reduce_scatter }",
            3,
            &[("w", &[264, 352])],
        ),
        |c| c.reduction = Reduction::Ring,
    ),
    variant(
        (
            "ring_mlp_f32",
            "fn f(x: bf16[M, K] @ shard(0), w1: bf16[K, F] @ shard(1), w2: bf16[F, K] @ shard(0)) { gather(x) -> gemm(w1) -> silu -> gemm(w2) -> cast(f32) -> reduce_scatter }",
            3,
            &[("x", &[700, 256]), ("w1", &[256, 520]), ("w2", &[520, 256])],
        ),
        |c| c.reduction = Reduction::Ring,
    ),
    variant(("split_one_shot", "gemm(a, b) -> all_reduce", 4, FEW_ROWS), |c| {
        (c.reduction, c.split_k, c.all_reduce) = (Reduction::AfterLastWave, 4, AllReduce::OneShot);
    }),
    variant(("split_two_phase", "gemm(a, b) -> all_reduce", 3, RAGGED), |c| {
        (c.reduction, c.split_k) = (Reduction::AfterLastWave, 3);
    }),
    variant(("split_beside", "gemm(a, b) -> reduce_scatter", 2, RAGGED), |c| c.split_k = 2),
    variant(("tail_gathered", "gather(a) -> gemm(b)", 3, RAGGED), |c| {
        c.last_wave = Some(LastWave { blocks: 1, columns: 64, parts: 1 });
    }),
    variant(
        (
            "tail_odd",
            "gather(a) -> gemm(b) -> bias(c) -> gelu",
            3,
            &[("a", &[1000, 1033]), ("b", &[1033, 3001]), ("c", &[3001])],
        ),
        |c| c.last_wave = Some(LastWave { blocks: 2, columns: 64, parts: 1 }),
    ),
    variant(
        (
            "tail_dyn",
            "fn f<M: dyn <= 700>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }",
            2,
            &[("b", &[264, 656])],
        ),
        |c| c.last_wave = Some(LastWave { blocks: 1, columns: 64, parts: 1 }),
    ),
    variant(
        (
            "split_dyn_f32",
            "fn f<M: dyn <= 700>(x: f16[M, K] @ shard(1), w: f16[K, N] @ shard(0)) { gemm(x, w) -> cast(f32) -> reduce_scatter }",
            2,
            &[("w", &[1536, 328])],
        ),
        |c| (c.reduction, c.split_k) = (Reduction::AfterLastWave, 2),
    ),
    variant(("tail_alone", "gemm(a, b)", 1, RAGGED), |c| {
        c.last_wave = Some(LastWave { blocks: 20, columns: 64, parts: 1 });
    }),
    variant(("slices", "gather(a) -> gemm(b)", 4, RAGGED), |c| c.k_slices = 4),
    variant(
        (
            "slices_chain",
            "gather(x) -> gemm(w1) -> silu -> gemm(w2) -> reduce_scatter",
            2,
            &[("x", &[700, 256]), ("w1", &[256, 520]), ("w2", &[520, 256])],
        ),
        |c| c.k_slices = 2,
    ),
    variant(("slices_tail", "gather(a) -> gemm(b)", 3, RAGGED), |c| {
        c.k_slices = 8;
        c.last_wave = Some(LastWave { blocks: 2, columns: 128, parts: 3 });
        c.chunk_bytes = 16 << 10;
    }),
    variant(("slices_all", "gather(a) -> gemm(b)", 2, RAGGED), |c| {
        c.k_slices = 3;
        c.last_wave = Some(LastWave { blocks: 20, columns: 64, parts: 2 });
    }),
    variant(("tail_parts", "gather(a) -> gemm(b)", 3, RAGGED), |c| {
        c.last_wave = Some(LastWave { blocks: 1, columns: 128, parts: 3 });
    }),
    variant(
        (
            "tail_parts_odd",
            "gather(a) -> gemm(b)",
            3,
            &[("a", &[1000, 1033]), ("b", &[1033, 3001])],
        ),
        |c| c.last_wave = Some(LastWave { blocks: 2, columns: 128, parts: 2 }),
    ),
    variant(
        (
            "tail_parts_dyn",
            "fn f<M: dyn <= 700>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }",
            2,
            &[("b", &[264, 656])],
        ),
        |c| c.last_wave = Some(LastWave { blocks: 1, columns: 128, parts: 2 }),
    ),
    variant(("tail_parts_alone", "gemm(a, b) -> cast(f32)", 1, RAGGED), |c| {
        c.last_wave = Some(LastWave { blocks: 2, columns: 64, parts: 4 });
    }),
    variant(("tail_parts_all", "gather(a) -> gemm(b)", 2, RAGGED), |c| {
        c.last_wave = Some(LastWave { blocks: 20, columns: 64, parts: 2 });
    }),
    variant(("rows64_one_shot", "gemm(a, b) -> all_reduce", 4, FEW_ROWS), |c| {
        (c.block, c.reduction, c.split_k) = ([64, 256, 64], Reduction::AfterLastWave, 4);
        c.stages = Some(4);
        c.all_reduce = AllReduce::OneShot;
    }),
    variant(("by_columns", "gemm(a, b) -> all_reduce", 4, FEW_ROWS), |c| {
        (c.block, c.reduction, c.split_k) = ([64, 128, 64], Reduction::AfterLastWave, 2);
        c.stages = Some(4);
        c.all_reduce = AllReduce::ByColumns;
    }),
    variant(
        (
            "by_columns_mlp",
            ALL_REDUCE_MLP,
            3,
            &[("x", &[200, 256]), ("w1", &[256, 520]), ("w2", &[520, 328])],
        ),
        |c| c.all_reduce = AllReduce::ByColumns,
    ),
    variant(("by_columns_dyn", ALL_REDUCE_DYN, 2, &[("w", &[264, 328])]), |c| {
        (c.block[0], c.all_reduce) = (128, AllReduce::ByColumns)
    }),
    variant(("rows64_scatter", "gemm(a, b) -> reduce_scatter", 3, RAGGED), |c| {
        c.block = [64, 128, 64];
        c.stages = Some(4);
    }),
    // Copies of 32 rows, two and eight for each sum, of two parts of a row.
    variant(("rows64_all_beside", "gemm(a, b) -> all_reduce", 3, LONG_ROWS), |c| {
        c.block = [64, 256, 64];
    }),
    variant(("tall_all_beside", "gemm(a, b) -> all_reduce", 3, LONG_ROWS), |c| {
        c.block = [256, 128, 64];
    }),
    variant(
        (
            "rows64_odd",
            "gather(a) -> gemm(b) -> bias(c) -> gelu",
            3,
            &[("a", &[1000, 1033]), ("b", &[1033, 3001]), ("c", &[3001])],
        ),
        |c| {
            c.block = [64, 256, 64];
            c.stages = Some(4);
        },
    ),
    variant(("rows64_ring", "gemm(a, b) -> reduce_scatter", 4, RAGGED_ALIGNED), |c| {
        (c.block, c.reduction) = ([64, 256, 64], Reduction::Ring);
        c.stages = Some(4);
    }),
    variant(
        (
            "rows64_dyn_f32",
            "fn f<M: dyn <= 700>(x: f16[M, K] @ shard(1), w: f16[N, K] @ shard(1)) { gemm(x, w.t) -> cast(f32) -> all_reduce }",
            2,
            &[("w", &[328, 1536])],
        ),
        |c| {
            (c.block, c.reduction, c.split_k) = ([64, 128, 64], Reduction::AfterLastWave, 2);
            c.stages = Some(4);
        },
    ),
    variant(("rows64_tail", "gather(a) -> gemm(b)", 3, RAGGED), |c| {
        c.block = [64, 256, 64];
        c.stages = Some(4);
        c.last_wave = Some(LastWave { blocks: 2, columns: 128, parts: 3 });
    }),
    // Several tiles a CTA, each with as many steps as there are stages.
    variant(
        ("borrowed_least_steps", "gemm(a, b)", 1, &[("a", &[3000, 256]), ("b", &[256, 6152])]),
        |c| c.block = [128, 256, 64],
    ),
    variant(("borrowed_tall", "gemm(a, b) -> reduce_scatter", 4, SEVERAL_WAVES), |c| {
        c.block = [256, 128, 64];
    }),
    variant(("borrowed_f32", "gemm(a, b) -> cast(f32)", 1, SEVERAL_WAVES), |c| {
        c.block = [128, 192, 64];
    }),
    // Behind them tiles of two steps, which lend nothing.
    variant(
        ("borrowed_then_parts", "gemm(a, b)", 1, &[("a", &[3000, 512]), ("b", &[512, 6152])]),
        |c| {
            c.block = [128, 256, 64];
            c.last_wave = Some(LastWave { blocks: 8, columns: 256, parts: 4 });
        },
    ),
    variant(("rows64_alone", "gemm(a, b)", 1, FEW_ROWS), |c| {
        c.block = [64, 128, 64];
        c.stages = Some(4);
        c.last_wave = Some(LastWave { blocks: 1, columns: 128, parts: 2 });
    }),
    variant(("ping_pong", "gemm(a, b)", 1, RAGGED), |c| ping_pong(c, 160)),
    variant(("ping_pong_scatter", "gemm(a, b) -> reduce_scatter", 4, RAGGED), |c| {
        ping_pong(c, 128);
    }),
    variant(
        (
            "ping_pong_odd",
            "gather(a) -> gemm(b) -> bias(c) -> gelu",
            3,
            &[("a", &[1000, 1033]), ("b", &[1033, 3001]), ("c", &[3001])],
        ),
        |c| ping_pong(c, 160),
    ),
    variant(("ping_pong_ring", "gemm(a, b) -> reduce_scatter", 4, RAGGED_ALIGNED), |c| {
        ping_pong(c, 128);
        (c.reduction, c.group_m) = (Reduction::Ring, Some(3));
    }),
    variant(("ping_pong_slices_tail", "gather(a) -> gemm(b)", 3, RAGGED), |c| {
        ping_pong(c, 128);
        c.k_slices = 8;
        c.last_wave = Some(LastWave { blocks: 2, columns: 128, parts: 3 });
    }),
    variant(("ping_pong_tail", "gather(a) -> gemm(b)", 2, RAGGED), |c| {
        ping_pong(c, 128);
        c.last_wave = Some(LastWave { blocks: 1, columns: 64, parts: 1 });
    }),
    variant(
        (
            "ping_pong_swiglu",
            "fn f(x: f16[M, K] @ shard(0), w1: f16[K, 2, F] @ shard(2), y: f16[M, F] @ shard(1), w2: f16[F, K] @ shard(0)) { gather(x) -> gemm(w1) -> swiglu -> mul(y) -> gemm(w2) -> all_reduce }",
            3,
            &[("x", &[700, 256]), ("w1", &[256, 2, 520]), ("y", &[700, 520]), ("w2", &[520, 256])],
        ),
        |c| ping_pong(c, 128),
    ),
    variant(
        (
            "ping_pong_dyn_f32",
            "fn f<M: dyn <= 700>(x: f16[M, K] @ shard(1), w: f16[N, K] @ shard(1)) { gemm(x, w.t) -> cast(f32) -> all_reduce }",
            2,
            &[("w", &[328, 1536])],
        ),
        |c| {
            ping_pong(c, 64);
            (c.reduction, c.split_k) = (Reduction::AfterLastWave, 2);
        },
    ),
    // Whoever is free takes the next tile, sum or copy: more tiles than CTAs, and fewer.
    variant(("queued", "gemm(a, b) -> reduce_scatter", 3, SEVERAL_WAVES), |c| {
        (c.reduction, c.tile_scheduler) = (Reduction::AfterLastWave, Schedule::Dynamic);
    }),
    variant(("queued_ring", "gemm(a, b) -> reduce_scatter", 4, SEVERAL_WAVES_ALIGNED), |c| {
        (c.reduction, c.tile_scheduler) = (Reduction::Ring, Schedule::Dynamic);
    }),
    variant(("queued_all", "gemm(a, b) -> all_reduce", 3, SEVERAL_WAVES), |c| {
        c.tile_scheduler = Schedule::Dynamic;
    }),
    variant(("queued_all_after", "gemm(a, b) -> all_reduce", 2, SEVERAL_WAVES), |c| {
        ping_pong(c, 128);
        (c.reduction, c.tile_scheduler) = (Reduction::AfterLastWave, Schedule::Dynamic);
    }),
    variant(("queued_tail", "gemm(a, b)", 1, FEW_ROWS), |c| {
        c.last_wave = Some(LastWave { blocks: 1, columns: 128, parts: 2 });
        c.tile_scheduler = Schedule::Dynamic;
    }),
    variant(("queued_slices_tail", "gather(a) -> gemm(b)", 3, SEVERAL_WAVES), |c| {
        c.k_slices = 8;
        c.last_wave = Some(LastWave { blocks: 2, columns: 128, parts: 3 });
        c.tile_scheduler = Schedule::Dynamic;
    }),
    variant(
        (
            "queued_swiglu",
            "fn f(x: f16[M, K] @ shard(0), w1: f16[K, 2, F] @ shard(2), y: f16[M, F] @ shard(1), w2: f16[F, K] @ shard(0)) { gather(x) -> gemm(w1) -> swiglu -> mul(y) -> gemm(w2) -> all_reduce }",
            3,
            &[("x", &[700, 256]), ("w1", &[256, 2, 520]), ("y", &[700, 520]), ("w2", &[520, 256])],
        ),
        |c| c.tile_scheduler = Schedule::Dynamic,
    ),
    variant(
        (
            "queued_dyn_f32",
            "fn f<M: dyn <= 700>(x: f16[M, K] @ shard(1), w: f16[N, K] @ shard(1)) { gemm(x, w.t) -> cast(f32) -> all_reduce }",
            2,
            &[("w", &[328, 1536])],
        ),
        |c| {
            (c.reduction, c.split_k, c.tile_scheduler) =
                (Reduction::AfterLastWave, 2, Schedule::Dynamic);
        },
    ),
    variant(("queued_engine", "gather(a) -> gemm(b)", 4, SEVERAL_WAVES_ALIGNED), |c| {
        (c.gather, c.tile_scheduler) = (Gather::CopyEngine { parts: 2 }, Schedule::Dynamic);
    }),
    variant(("engine", "gather(a) -> gemm(b)", 4, RAGGED), |c| {
        c.gather = Gather::CopyEngine { parts: 1 };
    }),
    variant(("engine_parts", "gather(a) -> gemm(b)", 3, RAGGED), |c| {
        c.gather = Gather::CopyEngine { parts: 2 };
        c.last_wave = Some(LastWave { blocks: 2, columns: 128, parts: 3 });
    }),
    variant(
        (
            "engine_chain",
            "gather(x) -> gemm(w1) -> silu -> gemm(w2) -> reduce_scatter",
            2,
            &[("x", &[700, 256]), ("w1", &[256, 520]), ("w2", &[520, 256])],
        ),
        |c| c.gather = Gather::CopyEngine { parts: 16 },
    ),
    variant(("cluster_of_four", REPLICATED, 1, &[("a", &[200, 992]), ("b", &[992, 352])]), |c| {
        (c.block, c.cluster) = ([128, 128, 64], 4);
    }),
    variant(
        (
            "cluster_of_blocks",
            "fn f(a: e4m3[M, K] scaled(1, 128), b: e5m2[N, K] scaled(128, 128)) { gemm(a, b.t) -> gelu }",
            1,
            &[("a", &[200, 992]), ("b", &[352, 992])],
        ),
        |c| (c.block, c.cluster) = ([128, 128, 64], 3),
    ),
    variant(
        ("cluster_gated", REPLICATED_GATED, 2, &[("a", &[70, 480]), ("w", &[480, 2, 192])]),
        |c| (c.block, c.cluster) = ([128, 128, 64], 2),
    ),
    variant(
        ("multicast_of_four", "gemm(a, b) -> relu", 1, &[("a", &[600, 480]), ("b", &[480, 704])]),
        |c| {
            (c.block, c.multicast) = ([128, 128, 64], Some(Multicast { below: 2, beside: 2 }));
        },
    ),
    variant(
        ("multicast_gated", REPLICATED_GATED, 1, &[("a", &[600, 480]), ("w", &[480, 2, 288])]),
        |c| {
            (c.block, c.multicast) = ([128, 128, 64], Some(Multicast { below: 2, beside: 2 }));
        },
    ),
    variant(
        ("parts_together", "gemm(a, b) -> relu", 1, &[("a", &[600, 960]), ("b", &[960, 288])]),
        |c| {
            (c.block, c.cluster) = ([128, 128, 64], 3);
            c.multicast = Some(Multicast { below: 2, beside: 1 });
        },
    ),
    variant(("swapped", "gemm(a, b)", 1, &[("a", &[600, 480]), ("b", &[480, 704])]), |c| {
        (c.block, c.multicast) = ([80, 128, 64], Some(Multicast { below: 2, beside: 1 }));
    }),
    variant(("swapped_parts", "gemm(a, b)", 1, &[("a", &[300, 960]), ("b", &[960, 320])]), |c| {
        (c.block, c.cluster) = ([112, 256, 64], 2);
    }),
    variant(
        (
            "swapped_chain",
            "fn f(a: bf16[M, K], b: bf16[K, N], c: bf16[N], y: bf16[M, N]) { gemm(a, b) -> bias(c) -> gelu -> add(y) }",
            1,
            &[("a", &[300, 480]), ("b", &[480, 320])],
        ),
        |c| (c.block, c.cluster) = ([80, 128, 64], 2),
    ),
    variant(
        (
            "swapped_gated",
            "fn f(a: bf16[M, K], w: bf16[K, 2, N], c: bf16[N]) { gemm(a, w) -> swiglu -> bias(c) }",
            1,
            &[("a", &[300, 480]), ("w", &[480, 2, 288])],
        ),
        |c| c.block = [96, 256, 64],
    ),
    // Three warpgroups multiply: several tiles a CTA, a chain over operands that lie across, edges that TMA cannot store, others' sums.
    variant(("three", "gemm(a, b)", 1, SEVERAL_WAVES), |c| {
        (c.block, c.compute_sms) = ([192, 192, 64], Some(7));
    }),
    variant(("three_few_steps", "gemm(a, b)", 1, LONG_ROWS), |c| c.block = [192, 192, 64]),
    variant(
        (
            "three_chain",
            "fn f(a: bf16[K, M], b: bf16[N, K], c: bf16[N], y: bf16[M, N]) { gemm(a.t, b.t) -> bias(c) -> gelu -> add(y) }",
            1,
            &[("a", &[1536, 1904]), ("b", &[1032, 1536])],
        ),
        |c| (c.block, c.compute_sms) = ([192, 192, 64], Some(7)),
    ),
    variant(
        (
            "three_odd",
            "gather(a) -> gemm(b) -> bias(c) -> gelu",
            3,
            &[("a", &[1000, 1033]), ("b", &[1033, 3001]), ("c", &[3001])],
        ),
        |c| c.block = [192, 192, 64],
    ),
    variant(
        (
            "three_dyn",
            "fn f<M: dyn <= 700>(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }",
            2,
            &[("b", &[264, 656])],
        ),
        |c| c.block = [192, 192, 64],
    ),
    variant(("three_slices", "gather(a) -> gemm(b)", 3, SEVERAL_WAVES), |c| {
        (c.block, c.k_slices, c.tile_scheduler) = ([192, 192, 64], 4, Schedule::Dynamic);
    }),
    variant(("three_scatter", "gemm(a, b) -> reduce_scatter", 4, RAGGED), |c| {
        c.block = [192, 192, 64];
    }),
    variant(
        (
            "three_mlp_all",
            ALL_REDUCE_MLP,
            3,
            &[("x", &[200, 256]), ("w1", &[256, 520]), ("w2", &[520, 328])],
        ),
        |c| (c.block, c.tile_scheduler) = ([192, 192, 64], Schedule::Dynamic),
    ),
    variant(("three_f32", "gemm(a, b) -> cast(f32)", 1, SEVERAL_WAVES), |c| {
        (c.block, c.compute_sms) = ([192, 192, 64], Some(7));
    }),
    variant(("three_split", "gemm(a, b) -> reduce_scatter", 2, RAGGED), |c| {
        (c.block, c.split_k) = ([192, 192, 64], 2);
    }),
    variant(
        ("three_multicast", "gemm(a, b) -> relu", 1, &[("a", &[900, 480]), ("b", &[480, 704])]),
        |c| {
            (c.block, c.multicast) = ([192, 192, 64], Some(Multicast { below: 2, beside: 2 }));
        },
    ),
    // Operands swapped, for three warpgroups and for one.
    variant(("swapped_three", "gemm(a, b)", 1, SEVERAL_WAVES_ALIGNED), |c| {
        (c.block, c.compute_sms) = ([176, 192, 64], Some(7));
    }),
    variant(
        (
            "swapped_three_chain",
            "fn f(a: bf16[M, K], b: bf16[N, K], c: bf16[N], y: bf16[M, N]) { gemm(a, b.t) -> bias(c) -> gelu -> add(y) }",
            1,
            &[("a", &[700, 480]), ("b", &[832, 480])],
        ),
        |c| {
            (c.block, c.multicast) = ([144, 192, 64], Some(Multicast { below: 1, beside: 2 }));
        },
    ),
    variant(("swapped_one", "gemm(a, b)", 1, &[("a", &[600, 1472]), ("b", &[1472, 704])]), |c| {
        (c.block, c.multicast) = ([64, 64, 64], Some(Multicast { below: 2, beside: 2 }));
    }),
    variant(
        (
            "swapped_one_parts",
            "fn f(a: bf16[M, K], b: bf16[N, K], c: bf16[N]) { gemm(a, b.t) -> bias(c) -> silu }",
            1,
            &[("a", &[60, 1472]), ("b", &[544, 1472])],
        ),
        |c| (c.block, c.cluster) = ([16, 64, 64], 4),
    ),
    variant(("swapped_one_tall", "gemm(a, b)", 1, SEVERAL_WAVES_ALIGNED), |c| {
        c.block = [240, 64, 64]
    }),
    // Rows of B that begin at any element: shared by a cluster beside repacked rows of A, of one warpgroup and of three.
    variant(("shifted", "gemm(a, b)", 1, &[("a", &[33, 1003]), ("b", &[1003, 1217])]), |c| {
        (c.block, c.cluster) = ([48, 64, 64], 4)
    }),
    variant(("shifted_even", "gemm(a, b)", 1, &[("a", &[16, 1472]), ("b", &[1472, 705])]), |c| {
        c.block = [16, 128, 64]
    }),
    variant(
        (
            "shifted_chain",
            "fn f(a: f16[M, K], b: f16[K, N], c: f16[N], y: f16[M, N]) { gemm(a, b) -> bias(c) -> gelu -> add(y) }",
            1,
            &[("a", &[130, 331]), ("b", &[331, 1218])],
        ),
        |c| c.block = [144, 192, 64],
    ),
    variant(("engine_alone", "gather(a)", 3, &[("a", &[1000, 1056])]), |c| {
        c.gather = Gather::CopyEngine { parts: 2 };
    }),
];

impl Variant {
    /// Lowers it for so many ranks.
    #[allow(dead_code)]
    pub fn plan(&self, ranks: u32) -> Result<Plan, LowerError> {
        let (_, source, _, shapes) = self.case;
        let program = Program::parse(source).expect("parses");
        let shapes: BTreeMap<_, _> =
            shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
        let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
        self.lower(&program, &bound, ranks)
    }

    /// Lowers its pipeline with these sizes.
    #[allow(dead_code)]
    pub fn lower(&self, program: &Program, bound: &Bound, ranks: u32) -> Result<Plan, LowerError> {
        let mut config = Config { ranks, ..Config::default() };
        (self.set)(&mut config);
        lower(program, bound, &config)
    }
}
