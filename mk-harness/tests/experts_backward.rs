//! What the way back through experts is made of: rows by transposed matrices and with weights, gradients of gates and
//! ups, and of weights, what forward saves. Plans, proofs, kernels and numbers on the executor against f64.

#[path = "sweep/drawn.rs"]
mod drawn;
mod experts;

use drawn::some;
use experts::Size;

const IDS: &str = "ids: i32[T, K] @ shard(0)";
const GATE: &str = "gate: f32[T, K] @ shard(0)";

/// Each kind of pipeline: its name and text.
fn kinds() -> [(&'static str, String); 11] {
    let forward = format!(
        "fn forward(x: bf16[T, H] @ shard(0), {IDS}, {GATE}, w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) {{
    let h = dispatch(x, ids, capacity = R) -> grouped_gemm(w1);
    (h -> swiglu -> grouped_gemm(w2) -> combine(gate), h)
}}"
    );
    let hidden = format!(
        "fn hidden(dy: bf16[T, H] @ shard(0), {IDS}, w2: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0)) {{
    dispatch(dy, ids, capacity = R) -> grouped_gemm(w2.t) -> swiglu_grad(h)
}}"
    );
    let back = format!(
        "fn back(dh: bf16[R, I] @ shard(0), {IDS}, {GATE}, w: bf16[E, H, I] @ shard(0)) {{
    ragged(dh, ids) -> grouped_gemm(w.t) -> combine(gate)
}}"
    );
    let ungated = format!(
        "fn ungated(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, v: bf16[E, I, H] @ shard(0), w: bf16[E, H, I] @ shard(0), h: bf16[R, I] @ shard(0)) {{
    dispatch(dy, ids, capacity = R) -> grouped_gemm(v.t) -> silu_grad(h) -> grouped_gemm(w.t) -> combine(gate)
}}"
    );
    let weighted = format!(
        "fn weighted(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, w2: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0)) {{
    let rows = dispatch(dy, ids, gate, capacity = R);
    (rows -> grouped_gemm(w2.t) -> swiglu_grad(h), rows)
}}"
    );
    let unsaved = format!(
        "fn unsaved(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, w2: bf16[E, I, H] @ shard(0)) {{
    dispatch(dy, ids, gate) -> grouped_gemm(w2.t)
}}"
    );
    let gate = format!(
        "fn gate(a: bf16[R, I] @ shard(0), {IDS}, dy: bf16[T, H] @ shard(0), w2: bf16[E, I, H] @ shard(0)) {{
    ragged(a, ids) -> grouped_gemm(w2) -> combine_grad(dy)
}}"
    );
    const W1: &str = "w1: bf16[E, H, 2, I] @ shard(0)";
    let whole = format!(
        "fn whole(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, w2: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0), {W1}) {{
    dispatch(dy, ids, capacity = R) -> grouped_gemm(w2.t) -> swiglu_grad(h) -> grouped_gemm(w1.t) -> combine(gate)
}}"
    );
    let kept = format!(
        "fn kept(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, w2: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0), {W1}, one: f32[T, K] @ shard(0)) {{
    let rows = dispatch(dy, ids, gate, capacity = R);
    let dh = rows -> grouped_gemm(w2.t) -> swiglu_grad(h);
    (rows, dh, dh -> grouped_gemm(w1.t) -> combine(one))
}}"
    );
    let weighed = format!(
        "fn weighed(dy: bf16[T, H] @ shard(0), {IDS}, {GATE}, w2: bf16[E, I, H] @ shard(0), h: bf16[R, 2, I] @ shard(0), {W1}, one: f32[T, K] @ shard(0)) {{
    let rows = dispatch(dy, ids, capacity = R);
    let u = rows -> grouped_gemm(w2.t);
    let dh = u -> weigh(gate) -> swiglu_grad(h);
    let a = h -> swiglu;
    let made = dh -> grouped_gemm(w1.t) -> combine(one);
    (rows, dh, a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a), made)
}}"
    );
    let any = whole.replace("fn whole(", "fn any<T: dyn <= 150>(");
    [
        ("whole", whole),
        ("kept", kept),
        ("weighed", weighed),
        ("any", any),
        ("forward", forward),
        ("hidden", hidden),
        ("back", back),
        ("ungated", ungated),
        ("weighted", weighted),
        ("unsaved", unsaved),
        ("gate", gate),
    ]
}

#[test]
fn rows_go_back_through_their_experts() {
    for (name, source) in some(kinds(), 2) {
        let sizes = [(1, 3, 1), (2, 40, 2), (3, 4, 2), (4, 150, 8)];
        for (ranks, tokens, slots) in some(sizes, 4) {
            experts::right(name, &source, Size { ranks, tokens, slots }, tokens);
        }
    }
}

/// One kernel for every number of tokens, with weights on the way in, or of rows that another kernel dispatched.
#[test]
fn weights_of_any_number_of_tokens() {
    let kinds = kinds();
    for name in ["kept", "weighed", "back", "gate"] {
        let (_, source) = kinds.iter().find(|(n, _)| *n == name).expect(name);
        for (ranks, tokens, slots) in some([(1, 5, 2), (2, 12, 2), (4, 8, 1)], 3) {
            let any =
                source.replace(&format!("fn {name}("), &format!("fn {name}<T: dyn <= {tokens}>("));
            experts::any_number(name, &any, Size { ranks, tokens, slots }, 1);
        }
    }
}
