//! `dispatch` and `combine`: types, and what is said of mistakes.

use mk_syntax::{BindError, Excerpt, Program, grad};
use std::collections::BTreeMap;

fn said(source: &str) -> String {
    Program::parse(source).map_or_else(|e| e.to_string(), |p| p.to_string())
}

/// A pipeline of these tensors.
fn of(x: &str, ids: &str, gate: &str, body: &str) -> String {
    said(&format!(
        "fn f(x: {x}, ids: {ids}, gate: {gate}, w: bf16[E, H, N] @ shard(0)) {{ {body} }}"
    ))
}

const X: &str = "bf16[T, H] @ shard(0)";
const IDS: &str = "i32[T, K] @ shard(0)";
const GATE: &str = "f32[T, K] @ shard(0)";
const BODY: &str = "dispatch(x, ids, capacity = R) -> grouped_gemm(w) -> combine(gate)";

const COUNTED: &str = "let rows = dispatch(x, ids, capacity = R, drop); (rows -> grouped_gemm(w) -> combine(gate), rows -> dropped)";

#[test]
fn types() {
    let text = of(X, IDS, GATE, BODY);
    for line in [
        "%4 = dispatch(%0, %1): bf16[R, H] @ shard(0)",
        "%5 = grouped_gemm(%4, %3, %1): bf16[R, N] @ shard(0)",
        "%6 = combine(%5, %1, %2): bf16[T, N] @ shard(0)",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let wide = of(X, "i64[T, K] @ shard(0)", GATE, BODY);
    assert!(wide.contains("i64[T, K]") && wide.contains("%6 = combine"), "{wide}");
    let before = of(
        "bf16[R, H] @ shard(0)",
        IDS,
        GATE,
        "ragged(x, ids) -> grouped_gemm(w) -> combine(gate)",
    );
    for line in ["grouped_gemm(%0, %3, %1): bf16[R, N]", "combine(%4, %1, %2): bf16[T, N]"] {
        assert!(before.contains(line), "{line}\n{before}");
    }
    let drops = of(X, IDS, GATE, &BODY.replace("= R", "= R, drop"));
    assert!(drops.contains("%4 = dispatch(%0, %1, drop): bf16[R, H]"), "{drops}");
    let counted = of(X, IDS, GATE, COUNTED);
    assert!(counted.contains("%7 = dropped(%4, %1): i32[1] @ partial"), "{counted}");
    let number = of(X, IDS, GATE, &BODY.replace('R', "1024"));
    assert!(number.contains("bf16[1024, H]"), "{number}");
}

#[test]
fn mistakes() {
    for (text, says) in [
        (of(X, IDS, GATE, &BODY.replace("= R", "= 0.5")), "a capacity is a number of rows"),
        (
            of(X, IDS, GATE, &BODY.replace("capacity = R", "drop")),
            "nothing is dropped without a capacity",
        ),
        (
            of(
                X,
                IDS,
                GATE,
                "let a = dispatch(x, ids, capacity = R, drop) -> grouped_gemm(w); (a -> combine(gate), dispatch(x, ids, capacity = R) -> grouped_gemm(w))",
            ),
            "rows by `ids` are dropped in one place, and not in another",
        ),
        (
            of("bf16[R, H]", "i32[E]", GATE, "ragged(x, ids, drop) -> grouped_gemm(w)"),
            "`drop` is of rows that experts of tokens route, and `ids` counts rows",
        ),
        (of("bf16[T, H] @ replicate", "i32[T, K]", GATE, BODY), "sends each rank's own tokens"),
        (of(X, "i32[T, K] @ replicate", GATE, BODY), "`dispatch` needs `ids` as `shard(0)`"),
        (of(X, "f32[T, K] @ shard(0)", GATE, BODY), "needs the experts of each token"),
        (of("i64[T, H] @ shard(0)", IDS, GATE, BODY), "take `bf16`, `f16`"),
        (of(X, "i32[T] @ shard(0)", GATE, BODY), "needs the experts of each token"),
        (of(X, "i32[M, K] @ shard(0)", GATE, BODY), "a route needs `T` in `ids`, and it has `M`"),
        (of(X, IDS, "f32[T, J] @ shard(0)", BODY), "a route needs `K` in `gate`, and it has `J`"),
        (of(X, IDS, "bf16[T, K] @ shard(0)", BODY), "needs a weight for each expert of a token"),
        (of(X, IDS, "f32[T, K] @ replicate", BODY), "`combine` needs `gate` as `shard(0)`"),
        (of("f32[T, H] @ shard(0)", IDS, GATE, BODY), "take `bf16`, `f16`"),
        (of(X, IDS, GATE, "combine(x, gate)"), "brings back what was dispatched"),
        (of(X, IDS, GATE, &BODY.replace("grouped_gemm", "gemm")), "does not take ragged rows"),
        (of(X, IDS, GATE, &COUNTED.replace(", drop)", ")")), "and `rows` has none of those"),
        (of(X, IDS, GATE, "x -> dropped"), "and `x` has none of those"),
        (
            of(X, IDS, GATE, &COUNTED.replace("dropped)", "dropped -> scale(2))")),
            "`scale` reads how many rows",
        ),
        (
            of(X, IDS, GATE, &COUNTED.replace("dropped)", "dropped -> all_reduce)")),
            "`all_reduce` reads how many rows",
        ),
    ] {
        assert!(text.contains(says), "{says}\n{text}");
    }
}

/// Without a capacity there is room for any routing, by the number of ranks: all tokens in as many experts of a rank as a token may name, and a last block
/// of each expert.
#[test]
fn room_for_any_routing() {
    let text = |body: &str, to: &str| {
        format!(
            "fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, N] @ shard(0)) {to} {{ {body} }}"
        )
    };
    let body = "dispatch(x, ids) -> grouped_gemm(w)";
    let dims = |more: &[(&str, u64)]| -> BTreeMap<String, u64> {
        let all = [("T", 100), ("H", 8), ("K", 4), ("E", 10), ("N", 8)];
        all.iter().chain(more).map(|(name, n)| (name.to_string(), *n)).collect()
    };
    let two = format!("let y = {body}; (y, y -> combine(gate))");
    // A name for the rows changes nothing.
    for (body, to) in [(two.as_str(), ""), (body, "-> bf16[R, N] @ shard(0)")] {
        let program = Program::parse(&text(body, to).replace(
            ", gate: f32[T, K] @ shard(0)",
            if to.is_empty() { ", gate: f32[T, K] @ shard(0)" } else { "" },
        ));
        let program = program.unwrap_or_else(|e| panic!("{e}"));
        let bound = program.bind(&dims(&[]), &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
        let rows = |ranks: u32| {
            let bound = bound.on(&program, ranks).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(bound.on(&program, 1).as_ref(), Ok(&bound.on(&program, 1).expect("one")));
            assert_eq!(bound.on(&program, ranks).as_ref(), Ok(&bound));
            bound.shape(program.results()[0]).expect("its shape")[0]
        };
        // 400 rows and 10 experts: (400 + 1270) / 128. On 4 ranks of 3: 300 rows; on 8 of 2: 200.
        assert_eq!([rows(1), rows(4), rows(8)], [13 * 128, 4 * 5 * 128, 8 * 3 * 128]);
        if !to.is_empty() {
            let given = program.bind(&dims(&[("R", 512)]), &BTreeMap::new()).expect("binds");
            let given = given.on(&program, 8).expect("binds");
            assert_eq!(given.shape(program.results()[0]).expect("its shape")[0], 512);
        }
    }
    let program = Program::parse(&text(&two, "")).expect("a pipeline");
    let many = dims(&[("T", 1 << 30), ("E", 64)]);
    let error = program.bind(&many, &BTreeMap::new()).expect_err("too many");
    assert!(error.iter().any(|e| matches!(e, BindError::OutOfRange { .. })), "{error}");
    assert!(error.to_string().contains("by the rows of any routing"), "{error}");
    // An excerpt says the same.
    let text = program.to_string();
    assert!(text.contains("dispatch(%0, %1): bf16[room_0, H] @ shard(0)"), "{text}");
}

/// The gradient of tokens goes the way of the tokens, and comes back as they do; with those of weights and matrices its
/// rows have weights on their way.
#[test]
fn derivatives() {
    let source =
        format!("fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, N] @ shard(0)) {{ {BODY} }}");
    let program = Program::parse(&source).expect("a pipeline");
    let of = |wanted: &[usize]| grad::grad(&program, Some(wanted), grad::Saves::default());
    let made = of(&[0]).expect("a derivative").backward.expect("a backward").to_string();
    assert_eq!(
        made,
        "pipeline f_backward(world):
  %0 = d_out: bf16[T, N] @ shard(0)
  %1 = ids: i32[T, K] @ shard(0)
  %2 = w: bf16[E, H, N] @ shard(0)
  %3 = gate: f32[T, K] @ shard(0)
  %4 = dispatch(%0, %1): bf16[R, N] @ shard(0)
  %5 = grouped_gemm(%4, %2.t, %1): bf16[R, H] @ shard(0)
  %6 = combine(%5, %1, %3): bf16[T, H] @ shard(0)
  return %6"
    );
    let found = of(&[0, 2, 3]).expect("derivatives");
    let backward = found.backward.clone().expect("a backward");
    let made = backward.to_string();
    let (_, made) = made.split_once("  %4 = ones: f32[T, K] @ shard(0)\n").expect("ones");
    assert_eq!(
        made,
        "  %5 = v4: bf16[R, H] @ shard(0)
  %6 = dispatch(%0, %1, %2): bf16[R, N] @ shard(0)
  %7 = grouped_gemm(%6, %3.t, %1): bf16[R, H] @ shard(0)
  %8 = combine(%7, %1, %4): bf16[T, H] @ shard(0)
  %9 = grouped_gemm(%5, %3, %1): bf16[R, N] @ shard(0)
  %10 = combine_grad(%9, %1, %0): f32[T, K] @ shard(0)
  %11 = grouped_wgrad(%5, %6, %1): bf16[E, H, N] @ shard(0)
  return %8, %10, %11"
    );
    // As it is written, too.
    let text = Excerpt::whole(&backward).text();
    assert_eq!(Program::parse(&text).map_err(|e| format!("{e}\n{text}")), Ok(backward));
}

/// Behind `swiglu` weights have their gradients before the product, which is not made once more.
#[test]
fn weights_behind_an_activation() {
    let of = |body: &str, wanted: &[usize]| {
        let source = format!(
            "fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, 2, I] @ shard(0), v: bf16[E, I, H] @ shard(0)) {{ {body} }}"
        );
        let program = Program::parse(&source).unwrap_or_else(|e| panic!("{e}"));
        let made = grad::grad(&program, Some(wanted), grad::Saves::default());
        let backward = made.unwrap_or_else(|e| panic!("{e}")).backward.expect("a backward");
        // What is read once stands where it is read, so that operations may come in another order.
        let text = Excerpt::whole(&backward).text();
        let again = Program::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again.nodes().len(), backward.nodes().len(), "{text}");
        text
    };
    let layer = "dispatch(x, ids, capacity = R) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)";
    let all = of(layer, &[0, 2, 3, 4]);
    assert!(all.contains("weigh_grad") && !all.contains("combine_grad"), "{all}");
    assert_eq!(all.matches("weigh(gate)").count(), 2, "{all}");
    assert!(all.contains("dispatch(ids, capacity = R)"), "{all}");
    // Of matrices that are not trained, no rows have weights for their gradients.
    assert_eq!(of(layer, &[0, 2]).matches("weigh(gate)").count(), 1);
    // Of any gradients no activation is saved, as of all of them.
    for wanted in [&[0, 3, 4][..], &[2], &[2, 4], &[4]] {
        let text = of(layer, wanted);
        assert!(text.contains("-> swiglu"), "{wanted:?}: {text}");
    }
    // Weights without gradients, or an activation that somebody else reads, take the other way.
    for (body, wanted) in [
        (layer.to_string(), &[0, 3, 4][..]),
        (layer.replace("combine(gate)", "silu -> combine(gate)"), &[0, 3, 4]),
        (layer.replace("swiglu ->", "swiglu -> scale(0.5) ->"), &[0, 2, 3, 4]),
    ] {
        let text = of(&body, wanted);
        assert!(!text.contains("weigh"), "{text}");
    }
}

/// Every kernel of a backward knows that rows were dropped, those that dispatch none too.
#[test]
fn derivatives_of_kept_rows() {
    let body = BODY.replace("= R", "= R, drop");
    let source =
        format!("fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, N] @ shard(0)) {{ {body} }}");
    let program = Program::parse(&source).expect("a pipeline");
    for (wanted, rows, says) in
        [(&[0, 2, 3][..], "R, drop", 2), (&[2], "", 1), (&[3], "R, drop", 1), (&[0], "R, drop", 0)]
    {
        let made = grad::grad(&program, Some(wanted), grad::Saves::default());
        let backward = made.unwrap_or_else(|e| panic!("{e}")).backward.expect("a backward");
        let text = Excerpt::whole(&backward).text();
        assert_eq!(text.contains("dispatch("), !rows.is_empty(), "{text}");
        assert!(text.contains(rows), "{text}");
        assert_eq!(text.matches("ragged(ids, drop)").count(), says, "{text}");
        assert_eq!(Program::parse(&text).map_err(|e| format!("{e}\n{text}")), Ok(backward));
    }
}

/// A backward that computes activations again says whose rows they are.
#[test]
fn activations_again() {
    let source = format!(
        "fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, 2, N] @ shard(0), v: bf16[E, N, H] @ shard(0)) {{
            dispatch(x, ids) -> grouped_gemm(w) -> swiglu -> grouped_gemm(v) -> combine(gate)
        }}"
    );
    let program = Program::parse(&source).unwrap_or_else(|e| panic!("{e}"));
    let saves = grad::Saves { activations: grad::Keep::Again, ..grad::Saves::default() };
    let made = grad::grad(&program, Some(&[0, 2, 3, 4]), saves).unwrap_or_else(|e| panic!("{e}"));
    let backward = made.backward.expect("a backward");
    let text = Excerpt::whole(&backward).text();
    assert!(
        text.contains("-> swiglu") && text.contains("-> ragged(ids) -> weigh(gate) ->"),
        "{text}"
    );
    assert_eq!(Program::parse(&text).map_err(|e| format!("{e}\n{text}")), Ok(backward));
}

/// What has no derivative, and why.
#[test]
fn no_derivatives() {
    for (said, body, wanted) in [
        (
            "something stands between its weights and the product",
            "dispatch(x, ids) -> grouped_gemm(w) -> scale(0.5) -> combine(gate)",
            2,
        ),
        (
            "its rows have weights already",
            "dispatch(x, ids, gate) -> grouped_gemm(w) -> combine(gate)",
            0,
        ),
    ] {
        let source = format!(
            "fn f(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, N] @ shard(0)) {{ {body} }}"
        );
        let program = Program::parse(&source).unwrap_or_else(|e| panic!("{e}"));
        let made = grad::grad(&program, Some(&[wanted]), grad::Saves::default());
        let found = made.map_or_else(|e| e.to_string(), |_| "one".into());
        assert!(found.contains(said), "{found}");
    }
}

/// Rows with weights, and products of rows of tokens: types, and what is said of mistakes.
#[test]
fn weights() {
    let of = |gate: &str, body: &str| {
        Program::parse(&format!(
            "fn f(x: {X}, ids: {IDS}, gate: {gate}, w: bf16[E, H, N] @ shard(0), dy: bf16[T, N] @ shard(0)) {{ {body} }}"
        ))
        .map_or_else(|e| e.to_string(), |p| p.to_string())
    };
    let both = "dispatch(x, ids, gate, capacity = R) -> grouped_gemm(w) -> combine_grad(dy)";
    let text = of(GATE, both);
    for line in [
        "dispatch(%0, %1, %2): bf16[R, H] @ shard(0)",
        "combine_grad(%6, %1, %4): f32[T, K] @ shard(0)",
    ] {
        assert!(text.contains(line), "{text}");
    }
    for (said, gate, body) in [
        ("`dispatch` needs a weight for each expert of a token", "bf16[T, K] @ shard(0)", both),
        ("a route needs `K` in `gate`", "f32[T, J] @ shard(0)", both),
        ("`dispatch` needs `gate` as `shard(0)`", "f32[T, K] @ replicate", both),
        (
            "`combine_grad` needs gradients `bf16[T, N] @ shard(0)` of tokens",
            GATE,
            "dispatch(x, ids, gate) -> grouped_gemm(w) -> combine_grad(x)",
        ),
        ("`combine_grad` brings back what was dispatched", GATE, "combine_grad(x, dy)"),
        ("`weigh` is of rows that a route names", GATE, "weigh(x, gate)"),
        ("`weigh_grad` is of rows that a route names", GATE, "weigh_grad(x, dy)"),
        (
            "`weigh` needs a weight for each expert of a token",
            "bf16[T, K] @ shard(0)",
            "dispatch(x, ids, capacity = R) -> weigh(gate) -> grouped_gemm(w) -> combine_grad(dy)",
        ),
        (
            "`weigh_grad` needs the rows `bf16[R, N] @ shard(0)` that were weighed",
            GATE,
            "dispatch(x, ids, gate, capacity = R) -> grouped_gemm(w) -> weigh_grad(dy)",
        ),
    ] {
        let found = of(gate, body);
        assert!(found.contains(said), "{found}");
    }
}

/// Each rank's own number of tokens: a bound that ranks share, as it is written or a smaller one.
#[test]
fn own_numbers_of_tokens() {
    let layer = |head: &str| {
        let text = format!(
            "fn f{head}(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, H] @ shard(0)) {{ dispatch(x, ids) -> grouped_gemm(w) -> combine(gate) }}"
        );
        Program::parse(&text).unwrap_or_else(|e| panic!("{e}"))
    };
    let bind = |program: &Program, tokens: Option<u64>| {
        let dims = [("H", 16), ("K", 2), ("E", 4)].into_iter().chain(tokens.map(|n| ("T", n)));
        let dims: BTreeMap<_, _> = dims.map(|(n, v)| (n.to_string(), v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new());
        bound
            .map(|b| (b.sizes()[0], b.max_sizes()[0], b.runtime().len()))
            .map_err(|e| e.to_string())
    };
    let program = layer("<T: own <= 300>");
    assert!(program.to_string().starts_with("pipeline f<T: own <= 300>(world):"), "{program}");
    assert_eq!(bind(&program, None), Ok((300, 300, 0)));
    assert_eq!(bind(&program, Some(100)), Ok((100, 100, 0)));
    assert!(bind(&program, Some(301)).expect_err("above").contains("above its upper bound 300"));
    assert!(bind(&layer("<T: own>"), None).expect_err("no bound").contains("`T` has no value"));
    let back = mk_syntax::grad::grad(&program, Some(&[0, 2, 3]), Default::default());
    let back = back.expect("has a backward").backward.expect("a backward").to_string();
    assert!(back.starts_with("pipeline f_backward<T: own <= 300>(world):"), "{back}");
}

/// Launches may have no tokens, where nothing sums over them, and a bound is known.
#[test]
fn tokens_may_be_none() {
    let bind = |head: &str, tokens: u64, body: &str| {
        let text = format!(
            "fn f{head}(x: {X}, ids: {IDS}, gate: {GATE}, w: bf16[E, H, H] @ shard(0)) {{ {body} }}"
        );
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let dims = [("T", tokens), ("H", 16), ("K", 2), ("E", 4)];
        let dims: BTreeMap<_, _> = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new());
        bound.map(|b| (b.sizes().to_vec(), b.max_sizes().to_vec())).map_err(|e| e.to_string())
    };
    let layer = "dispatch(x, ids) -> grouped_gemm(w) -> combine(gate)";
    let (sizes, most) = bind("<T: dyn <= 300>", 0, layer).expect("binds");
    assert_eq!((sizes[0], most[0]), (0, 300));
    let room = |tokens| bind("<T: dyn <= 300>", tokens, layer).expect("binds").0.pop();
    assert_eq!(room(0), room(300));
    let summed = format!("let y = {layer}; (y, gemm(x.t, x))");
    for (head, body) in [("", layer), ("<T: dyn>", layer), ("<T: dyn <= 300>", summed.as_str())] {
        let says = bind(head, 0, body).expect_err("no tokens");
        assert!(says.contains("`T` is 0 by") && says.contains("outside 1..="), "{head}: {says}");
    }
}
