//! No input makes the parser panic, overflow its stack, or work for long.

use mk_syntax::{Program, file};
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// Generous for a busy machine and an unoptimised build; the work itself takes milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// Parses, renders, and checks the time.
fn parse(source: &str) -> Result<Program, String> {
    let start = Instant::now();
    let parsed = Program::parse(source).map_err(|mistakes| {
        for mistake in &mistakes {
            assert!(source.get(mistake.span.start..mistake.span.end).is_some(), "{mistake:?}");
            assert!(!mistake.message.is_empty() && !mistake.help.is_empty(), "{mistake:?}");
        }
        mistakes.to_string()
    });
    let _ = file::defaults(source);
    assert!(start.elapsed() < LIMIT, "took {:?}", start.elapsed());
    parsed
}

fn error(source: &str) -> String {
    parse(source).unwrap_err()
}

#[test]
fn a_megabyte_is_refused() {
    let message = error(&"x -> gelu ".repeat(100_000));
    assert!(message.starts_with("error: the text has 1000000 bytes, more than 65536"), "{message}");
}

/// Edits are tried for mistakes in placements: of as many parameters and mistakes as a text that is tried may have.
#[test]
fn many_mistakes_in_placements_take_no_longer() {
    let params: Vec<String> =
        (0..40).map(|i| format!("w{i}: bf16[A, B, C, D] @ zigzag(1)")).collect();
    let stages: Vec<String> = (0..40).map(|i| format!("mul(w{i})")).collect();
    let text = format!(
        "fn f(x: bf16[A, B, C, D] @ partial, {}) {{ x -> {} }}",
        params.join(", "),
        stages.join(" -> ")
    );
    assert!((1800..2048).contains(&text.len()), "{}", text.len());
    assert!(error(&text).contains("needs `w0` to be `replicate` here"));
}

#[test]
fn ten_thousand_brackets_are_refused() {
    for (open, close) in [("(", ")"), ("[", "]"), ("{", "}"), ("f(", ")"), ("([{", "}])")] {
        let message = error(&(open.repeat(10_000) + &close.repeat(10_000)));
        assert!(message.contains("brackets are nested more than 32 deep"), "{message}");
        error(&open.repeat(10_000));
        error(&close.repeat(10_000));
    }
    error(&"/*".repeat(30_000));
    error(&"fn f<".repeat(10_000));
}

#[test]
fn the_longest_text_is_read_quickly() {
    let max = 64 * 1024;
    let repeated =
        |head: &str, part: &str| head.to_owned() + &part.repeat((max - head.len()) / part.len());
    assert!(parse(&repeated("gather(x)", "->relu")).is_ok());
    assert!(parse(&repeated("gather(x)", "->gemm(w)->relu->scale(2)")).is_ok());
    let names: String = (0..4_000).map(|i| format!("->gemm(w{i})")).collect();
    assert_eq!(parse(&format!("gather(x){names}->all_reduce")).unwrap().tensors().len(), 4_001);
    let lets: String = (0..2_000).map(|i| format!("let v{i} = x -> gelu;")).collect();
    error(&format!("{lets} v1"));
    let params: String = (0..2_500).map(|i| format!("parameter{i}: bf16[M],")).collect();
    error(&format!("fn f({params}) {{ x }}"));
    error(&format!("fn f({params}) {{ {} }}", "parametr->".repeat(500)));
    error(&repeated("x", "->gulu"));
    error(&repeated("fn f(x: bf16[", "M,"));
    error(&repeated("fn f(x: bf16[M]", "@shard(0,a)"));
    error(&repeated("x->gather(a)", "->gather(b)"));
    error(&repeated("", "é "));
    error(&repeated("", "\""));
    error(&repeated("", "a"));
    error(&repeated("x -> scale(", "9"));
    assert!(parse(&repeated("x", "->gemm(w.t)->gemm(w)")).is_ok());
    error(&repeated("x", "->swiglu"));
    error(&repeated("x", ".t->gemm(x"));
    error(&repeated("gemm(", "gemm(x,"));
    error(&repeated("fn f<", "M: dyn <= 9,"));
    let runtime: String = (0..3_000).map(|i| format!("M{i}: dyn,")).collect();
    error(&format!("fn f<{runtime}>(x: bf16[M0]) {{ x }}"));
    let dims: String = (0..7).map(|i| format!("M{i},")).collect();
    let params: String = (0..1_000).map(|i| format!("x{i}: bf16[{dims}],")).collect();
    error(&format!("fn f<{}>({params}) {{ x1 }}", &runtime[..20_000]));
    // Every result has a name.
    let results: String = (0..2_000).map(|i| format!("v{i}, x,")).collect();
    let few: String = (0..2_000).map(|i| format!("let v{i}=x->relu;")).collect();
    assert_eq!(parse(&format!("{few}({results})")).unwrap().result_names().len(), 4_000);
}

/// Pieces that get further into the checker than random characters do.
const PIECES: [&str; 50] = [
    "gather",
    "gemm",
    "reduce_scatter",
    "all_reduce",
    "bias",
    "gelu",
    "mul",
    "add",
    "scale",
    "cast",
    "swiglu",
    "x.t",
    "fn f<M: dyn <= 64>(",
    "2",
    "let h = ",
    "x",
    "w",
    "c",
    "M",
    "K",
    "tp",
    "dp",
    "bf16",
    "f32",
    "shard",
    "replicate",
    "partial",
    "pub",
    "fn",
    "let",
    "dyn",
    "dim",
    "t",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ":",
    ";",
    "@",
    "->",
    "=",
    ".",
    "0",
    "1.5",
];

/// Stages that mostly type-check.
const STAGES: [&str; 23] = [
    "gather",
    "gather(tp)",
    "gemm(w)",
    "gemm(v)",
    "gemm(u)",
    "gemm(w.t)",
    "gemm(x.t)",
    "swiglu",
    "reduce_scatter",
    "reduce_scatter(dim = 1)",
    "reduce_scatter(dp)",
    "gather(dp)",
    "all_reduce",
    "bias(c)",
    "bias(b)",
    "gelu",
    "relu",
    "mul(y)",
    "add(z)",
    "add(x)",
    "scale(0.5)",
    "cast(f32)",
    "cast(bf16)",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_text(source in any::<String>()) {
        let _ = parse(&source);
    }

    #[test]
    fn random_ascii(source in "[ -~\n]{0,200}") {
        let _ = parse(&source);
    }

    #[test]
    fn random_pieces(pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60)) {
        let _ = parse(&pieces.join(" "));
        let _ = parse(&format!("fn f(x: bf16[M, K] @ shard(0)) {{ {} }}", pieces.join(" ")));
    }

    #[test]
    fn random_header(source in "(//[ =,A-C0-9_]{0,12}\n){0,6}[a-z(){}]{0,9}") {
        let _ = parse(&source);
    }

    /// What [`Program`] promises about itself.
    #[test]
    fn random_chains(stages in prop::collection::vec(prop::sample::select(&STAGES[..]), 0..8)) {
        let Ok(program) = parse(&format!("x -> {}", stages.join(" -> "))) else { return Ok(()) };
        let n_axes = program.mesh_axes().len();
        for i in 0..program.n_values() {
            let ty = program.ty(mk_syntax::ValueId::new(i)).unwrap();
            prop_assert_eq!(ty.placement.len(), n_axes);
            for placement in &ty.placement {
                if let mk_syntax::Placement::Shard(dim) = placement {
                    prop_assert!(*dim < ty.dims.len());
                }
            }
        }
        for node in program.nodes() {
            prop_assert!(node.inputs.iter().all(|input| input < &node.result));
            // Collectives are over the innermost axis of a dimension.
            let (axis, dim, sharded) = match node.op {
                mk_syntax::Op::Gather { axis, dim } => (axis, dim, node.inputs[0]),
                mk_syntax::Op::ReduceScatter { axis, dim } => (axis, dim, node.result),
                _ => continue,
            };
            let placement = &program.ty(sharded).unwrap().placement;
            let shard = mk_syntax::Placement::Shard(dim);
            prop_assert_eq!(placement.iter().rposition(|p| *p == shard), Some(axis.index()));
        }
        prop_assert_eq!(program.nodes().len(), stages.len());
    }
}
