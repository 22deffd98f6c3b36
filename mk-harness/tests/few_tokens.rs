//! Experts of few tokens: plans, proofs, kernels and numbers on the executor, with ranks that have none, and beyond a block of 128 rows.

mod experts;
mod sweep;

use experts::Size;
use sweep::drawn;

const HEAD: &str = "x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0)";
const EXPERTS: &str = "w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)";

/// Each kind of pipeline: its name and text.
fn kinds() -> [(&'static str, String); 10] {
    let layer = |args: &str| {
        format!(
            "fn layer({HEAD}, gate: f32[T, K] @ shard(0), {EXPERTS}) -> bf16[T, H] @ shard(0) {{
    dispatch(x, ids{args}) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}}"
        )
    };
    let wide = layer("").replace("ids: i32", "ids: i64");
    let dispatched = format!(
        "fn dispatched({HEAD}, w: bf16[E, H, I] @ shard(0)) {{ dispatch(x, ids, capacity = R) -> grouped_gemm(w) }}"
    );
    // Beside an expert of all tokens, whose results are given.
    let shared = layer(", capacity = R, drop")
        .replace("shard(0)) -> bf16", "shard(0), s: bf16[T, H] @ shard(0)) -> bf16")
        .replace("combine(gate)", "combine(gate) -> add(s)");
    let own = |text: &str| text.replace("fn layer(", "fn layer<T: own>(");
    let (own_drop, own_shared) =
        (own(&wide.replace("ids)", "ids, capacity = R, drop)")), own(&shared));
    // Who also says how many rows are lost.
    let counts = own_drop
        .replace("-> bf16[T, H] @ shard(0) {", "-> (bf16[T, H] @ shard(0), i32[1] @ partial) {")
        .replace("    dispatch(", "    let rows = dispatch(")
        .replace("drop) ->", "drop);\n    (rows ->")
        .replace("(gate)", "(gate), rows -> dropped)");
    let biased = layer("")
        .replace(
            "shard(0)) ->",
            "shard(0), b: bf16[E, 2, I] @ shard(0), c: bf16[E, H] @ shard(0)) ->",
        )
        .replace("(w1)", "(w1) -> bias(b)")
        .replace("(w2)", "(w2) -> bias(c)");
    let turned = layer("")
        .replace("[E, H, 2, I]", "[E, 2, I, H]")
        .replace("[E, I, H]", "[E, H, I]")
        .replace("(w1)", "(w1.t)")
        .replace("(w2)", "(w2.t)");
    [
        ("dispatch", dispatched),
        ("layer", layer("")),
        ("wide", wide),
        ("capacity", layer(", capacity = R")),
        ("drop", layer(", capacity = R, drop")),
        ("shared", shared),
        ("own", counts),
        ("own_shared", own_shared),
        ("biased", biased),
        ("turned", turned),
    ]
}

fn right(kind: usize, ranks: u64, tokens: u64, slots: u64, seed: u64) {
    let (name, source) = &kinds()[kind];
    experts::right(name, source, Size { ranks, tokens, slots }, seed);
}

/// Those that once had no plan: ranks without tokens, a token each, and none of them a flag.
#[test]
fn every_small_number_of_tokens_has_a_plan() {
    for kind in 0..kinds().len() {
        for (ranks, tokens) in drawn::some([(2, 1), (2, 2), (3, 4), (4, 5)], 4) {
            right(kind, ranks, tokens, 1 + tokens % 2, tokens);
        }
    }
    for (ranks, tokens) in drawn::some([(1, 1), (1, 2), (4, 1), (8, 9)], 2) {
        right(1, ranks, tokens, 2, tokens);
    }
}

/// A kernel for up to five tokens: of four, the last rank has more than of five.
#[test]
fn any_number_up_to_an_uneven_bound() {
    let layer = kinds()[1].1.replace("fn layer(", "fn layer<T: dyn <= 5>(");
    for (ranks, tokens) in [(2, 1), (3, 5), (4, 4)] {
        experts::right("layer", &layer, Size { ranks, tokens, slots: 2 }, 3);
    }
}

/// Sizes of all kinds: ranks, tokens, slots.
fn grid() -> impl Iterator<Item = (usize, u64, u64, u64)> {
    let tokens = || (1..=70).chain([127, 128, 129, 255, 256, 257, 300]);
    let sizes =
        [1, 2, 3, 4, 8].into_iter().flat_map(move |ranks| tokens().map(move |t| (ranks, t)));
    let sizes = sizes.flat_map(|(ranks, t)| [1, 2, 8].map(|slots| (ranks, t, slots)));
    sizes.flat_map(|(ranks, t, slots)| (0..kinds().len()).map(move |kind| (kind, ranks, t, slots)))
}

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

/// Ranks have their own number of tokens, none of them among others.
#[test]
fn every_rank_has_its_own_number() {
    for kind in [6, 7] {
        let sizes = [(1, 5), (1, 300), (2, 40), (3, 6), (4, 1100), (8, 24)];
        for (ranks, tokens) in drawn::some(sizes, 3) {
            for seed in 0..2 {
                right(kind, ranks, tokens, 2, seed);
            }
        }
    }
}

/// Others, as many as fit, in an order that the printed seed decides; all of the grid for `cargo xtask sweep experts`.
#[test]
fn any_number_of_tokens_has_a_plan() {
    let check = |&(kind, ranks, t, slots): &_, seed: u64| right(kind, ranks, t, slots, seed);
    sweep::run("sizes of experts", grid().collect(), SECONDS, check);
}
