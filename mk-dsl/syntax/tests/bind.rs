//! Numbers for symbols, and the headers of `.mk` files.

use insta::assert_snapshot;
use mk_syntax::{Bound, Dim, Program, SymbolId, ValueId, file};
use std::collections::BTreeMap;

const LINEAR: &str =
    "fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, 64] @ shard(1)) { gather(x) -> gemm(w) }";

/// Binds with `dims` such as `M=8` and `shapes` such as `a=8x4`; shows the shape of each value.
fn bind(source: &str, dims: &[(&str, u64)], shapes: &[(&str, &[u64])]) -> String {
    let program = Program::parse(source).unwrap();
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect();
    match program.bind(&dims, &shapes) {
        Ok(bound) => (0..program.n_values())
            .map(|i| format!("%{i}: {:?}", bound.shape(ValueId::new(i)).unwrap()))
            .collect::<Vec<_>>()
            .join("\n"),
        Err(errors) => format!("{errors:#}"),
    }
}

fn defaults(source: &str) -> String {
    match file::defaults(source) {
        Ok(values) => format!("{values:?}"),
        Err(mistakes) => mistakes.in_file("linear.mk").to_string(),
    }
}

#[test]
fn by_dims_and_by_shapes() {
    assert_snapshot!(bind(LINEAR, &[("M", 8), ("K", 4)], &[]), @r#"
    %0: [8, 4]
    %1: [4, 64]
    %2: [8, 4]
    %3: [8, 64]
    "#);
    assert_snapshot!(bind(LINEAR, &[("M", 8)], &[("x", &[8, 4]), ("w", &[4, 64])]), @r#"
    %0: [8, 4]
    %1: [4, 64]
    %2: [8, 4]
    %3: [8, 64]
    "#);
    assert_snapshot!(bind("gather(a) -> gemm(b)", &[], &[("a", &[8, 4]), ("b", &[4, 6])]), @r#"
    %0: [8, 4]
    %1: [4, 6]
    %2: [8, 4]
    %3: [8, 6]
    "#);
    assert_snapshot!(bind("gather(a) -> gemm(b)", &[("b_1", 6)], &[("a", &[8, 4])]), @r#"
    %0: [8, 4]
    %1: [4, 6]
    %2: [8, 4]
    %3: [8, 6]
    "#);
}

#[test]
fn missing_numbers() {
    assert_snapshot!(bind(LINEAR, &[("M", 8)], &[]), @r#"
    error: `K` has no value
      = help: add `--dim K=<number>`
    "#);
    assert_snapshot!(bind("gather(a) -> gemm(b)", &[], &[]), @r#"
    error: `a_0` has no value
      = help: add `--shape a=<number>x<number>`
    error: `b_1` has no value
      = help: add `--shape b=<number>x<number>`
    "#);
    assert_snapshot!(bind("gather(a) -> gemm(b)", &[], &[("a", &[8, 4])]), @r#"
    error: `b_1` has no value
      = help: add `--shape b=<number>x<number>`
    "#);
}

/// Every kind of error, as Rust and as the command line says it: each speaks of its own arguments only.
#[test]
fn rust_and_the_command_line_have_their_own_words() {
    let item = "fn f<L: dyn <= 64>(x: bf16[M, L] @ shard(0), w: bf16[L, 64] @ shard(1)) { gather(x) -> gemm(w) }";
    let errors = |source: &str, dims: &[(&str, u64)], shapes: &[(&str, &[u64])]| {
        let program = Program::parse(source).unwrap();
        let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        let shapes = shapes.iter().map(|(n, shape)| (n.to_string(), shape.to_vec())).collect();
        program.bind(&dims, &shapes).unwrap_err()
    };
    let huge = 1 << 30;
    let all = [
        errors(LINEAR, &[("M", 0)], &[]),
        errors("gather(a) -> gemm(b)", &[], &[("a", &[8, 4]), ("b", &[5, 6])]),
        errors("gather(a) -> gemm(b)", &[("a_0", 3)], &[]),
        errors(LINEAR, &[("Q", 1)], &[("y", &[2]), ("x", &[1]), ("w", &[1, 1])]),
        errors(item, &[("M", 8), ("L", 65)], &[]),
        errors("fn f(a: bf16[A, 4, B] @ shard(0)) { gather(a) }", &[("A", huge), ("B", huge)], &[]),
    ];
    for errors in &all {
        let (rust, shell) = (errors.to_string(), format!("{errors:#}"));
        assert!(
            !rust.contains("`--") && !rust.contains("error: ") && !rust.contains("= help"),
            "{rust}"
        );
        assert!(!shell.contains("dims") && !shell.contains("shapes"), "{shell}");
        assert_eq!(rust.matches("\n  help: ").count(), errors.iter().count());
    }
    assert_snapshot!(all[0], @r#"
    `M` is 0 by `dims["M"] = 0`, outside 1..=1073741824
      help: give `M` a number from 1 to 1073741824
    `K` has no value
      help: add `("K".into(), <number>)` to `dims`
    "#);
    assert_snapshot!(all[1], @r#"
    `a_1` is 4 by `shapes["a"] = [8, 4]` and 5 by `shapes["b"] = [5, 6]`
      help: give `a_1` once, or the same number each time
    "#);
    assert_snapshot!(all[2], @r#"
    `a_1` has no value
      help: add `("a".into(), vec![<number>, <number>])` to `shapes`
    `b_1` has no value
      help: add `("b".into(), vec![<number>, <number>])` to `shapes`
    "#);
}

#[test]
fn wrong_numbers() {
    assert_snapshot!(bind(LINEAR, &[("M", 0), ("K", 1 << 31), ("n", 1), ("m", 1)], &[("y", &[2])]), @r#"
    error: `K` is 2147483648 by `--dim K=2147483648`, outside 1..=1073741824
      = help: give `K` a number from 1 to 1073741824
    error: `M` is 0 by `--dim M=0`, outside 1..=1073741824
      = help: give `M` a number from 1 to 1073741824
    error: the pipeline has no symbol `m`
      = help: did you mean `M`?
    error: the pipeline has no symbol `n`
      = help: its symbols are `M`, `K`
    error: the pipeline has no tensor `y`
      = help: its tensors are `x`, `w`
    "#);
    assert_snapshot!(bind(LINEAR, &[("M", 8), ("K", 4)], &[("x", &[9, 4]), ("w", &[4, 65])]), @r#"
    error: dimension 1 of `w` is 64, and the shape given for it has 65
      = help: write 64 there, or a symbol for dimension 1 in the pipeline
    error: `M` is 8 by `--dim M=8` and 9 by `--shape x=9x4`
      = help: give `M` once, or the same number each time
    "#);
    assert_snapshot!(bind(LINEAR, &[("M", 8), ("K", 4)], &[("x", &[8, 4, 1])]), @r#"
    error: `x` has 2 dimensions, and the shape given for it has 3
      = help: give all of them: `--shape x=<number>x<number>`
    "#);
    assert_snapshot!(bind("gather(a) -> gemm(b)", &[], &[("a", &[8, 4]), ("b", &[5, 6])]), @r#"
    error: `a_1` is 4 by `--shape a=8x4` and 5 by `--shape b=5x6`
      = help: give `a_1` once, or the same number each time
    "#);
    let n = 1 << 30;
    assert_snapshot!(bind("gather(a) -> gemm(b)", &[], &[("a", &[n, n]), ("b", &[n, 1])]), @r#"
    %0: [1073741824, 1073741824]
    %1: [1073741824, 1]
    %2: [1073741824, 1073741824]
    %3: [1073741824, 1]
    "#);
    assert_snapshot!(bind("gemm(a, b)", &[], &[("a", &[n, 1]), ("b", &[1, n])]), @r#"
    %0: [1073741824, 1]
    %1: [1, 1073741824]
    %2: [1073741824, 1073741824]
    "#);
    assert_snapshot!(bind("fn f(a: bf16[A, 4, B] @ shard(0)) { gather(a) }", &[("A", n), ("B", n)], &[]), @r#"
    error: `a` of shape 1073741824x4x1073741824 is larger than 2^63 - 1 bytes
      = help: choose smaller dimensions
    error: value %1 of shape 1073741824x4x1073741824 is larger than 2^63 - 1 bytes
      = help: choose smaller dimensions
    "#);
}

#[test]
fn headers() {
    assert_snapshot!(defaults("// Linear layer: y = x w\n// M = 512, K=1_024\n\n//  N = 3\n/// N = 4\nfn"), @r#"{"K": 1024, "M": 512, "N": 3}"#);
    assert_snapshot!(defaults("gather(a)\n// M = 1"), @r#"{}"#);
    assert_snapshot!(defaults(""), @r#"{}"#);
}

#[test]
fn wrong_headers() {
    assert_snapshot!(defaults("// M = 512, K = two\n// M = 3, N, 2 = 4\n// P = 0, Q = 99999999999, R = -1\n// é = 1\n// S ="), @r#"
    error: `two` is not a whole number
     --> linear.mk:1:17
      |
    1 | // M = 512, K = two
      |                 ^^^
      = help: write decimal digits, for instance `8192`

    error: the default of `M` is given twice
     --> linear.mk:2:4
      |
    2 | // M = 3, N, 2 = 4
      |    ^
      = help: remove one of them

    error: this header comment is not a list of defaults
     --> linear.mk:2:11
      |
    2 | // M = 3, N, 2 = 4
      |           ^
      = help: write `// M = 512, K = 256`

    error: this header comment is not a list of defaults
     --> linear.mk:2:14
      |
    2 | // M = 3, N, 2 = 4
      |              ^^^^^
      = help: write `// M = 512, K = 256`

    error: the dimension 0 is outside 1..=1073741824
     --> linear.mk:3:8
      |
    3 | // P = 0, Q = 99999999999, R = -1
      |        ^
      = help: choose a number in that range

    error: the dimension 99999999999 is outside 1..=1073741824
     --> linear.mk:3:15
      |
    3 | // P = 0, Q = 99999999999, R = -1
      |               ^^^^^^^^^^^
      = help: choose a number in that range

    error: `-1` is not a whole number
     --> linear.mk:3:32
      |
    3 | // P = 0, Q = 99999999999, R = -1
      |                                ^^
      = help: write decimal digits, for instance `8192`

    error: the number is missing
     --> linear.mk:5:7
      |
    5 | // S =
      |       ^
      = help: write decimal digits, for instance `8192`
    "#);
}

#[test]
fn a_bound_knows_its_symbols() {
    let program = Program::parse(LINEAR).unwrap();
    let dims = BTreeMap::from([("M".to_owned(), 8), ("K".to_owned(), 4)]);
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap();
    assert_eq!(bound.sizes(), [8, 4]);
    let w = program.tensor("w").unwrap();
    assert_eq!(w.ty.dims.iter().map(|&d| bound.dim(d)).collect::<Vec<_>>(), [Some(4), Some(64)]);
}

const DYNAMIC: &str =
    "fn f<M: dyn <= 64, L: dyn>(x: bf16[M, K] @ shard(0), y: bf16[L, K]) { (gather(x), y) }";

#[test]
fn runtime_symbols_have_a_size_and_a_bound() {
    let program = Program::parse(DYNAMIC).unwrap();
    let dims = |list: &[(&str, u64)]| list.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    let show = |bound: &Bound| format!("{:?} of {:?}", bound.sizes(), bound.max_sizes());
    // M, K, L. Without a number, M is at its bound; the number of L is its bound.
    let bound = program.bind(&dims(&[("K", 4), ("L", 9)]), &BTreeMap::new()).unwrap();
    assert_eq!(show(&bound), "[64, 4, 9] of [64, 4, 9]");
    assert_eq!(bound.runtime(), [SymbolId::new(0), SymbolId::new(2)]);
    assert!(bound.is_runtime(Dim::Sym(SymbolId::new(0))));
    assert!(!bound.is_runtime(Dim::Sym(SymbolId::new(1))) && !bound.is_runtime(Dim::Lit(4)));
    let bound = program.bind(&dims(&[("M", 3), ("K", 4), ("L", 9)]), &BTreeMap::new()).unwrap();
    assert_eq!(show(&bound), "[3, 4, 9] of [64, 4, 9]");
    assert_eq!(bound.shape(ValueId::new(2)), Some(&[3, 4][..]));
    assert_eq!(bound.max_shape(ValueId::new(2)), Some(&[64, 4][..]));
    // Another launch of the same kernel.
    let next = program.rebind(&bound, &dims(&[("L", 5)])).unwrap();
    assert_eq!(show(&next), "[3, 4, 5] of [64, 4, 9]");
    let back = program.rebind(&next, &dims(&[("M", 64), ("K", 4), ("L", 9)])).unwrap();
    assert_eq!(show(&back), "[64, 4, 9] of [64, 4, 9]");
    let wrong = dims(&[("M", 65), ("L", 0), ("K", 5), ("N", 1)]);
    assert_snapshot!(program.rebind(&bound, &wrong).unwrap_err(), @r#"
    `K` is a constant of the kernel, and no launch can change it
      help: declare it in the pipeline: `fn name<K: dyn <= 8192>(..)`
    `L` is 0 by `dims["L"] = 0`, outside 1..=1073741824
      help: give `L` a number from 1 to 1073741824
    the pipeline has no symbol `N`
      help: its symbols are `M`, `K`, `L`
    `M` is 65 by `dims["M"] = 65`, above its upper bound 64
      help: give a number from 1 to 64, or raise the bound
    "#);
}

#[test]
fn above_the_bound() {
    assert_snapshot!(bind(DYNAMIC, &[("M", 65), ("K", 4), ("L", 1)], &[]), @r#"
    error: `M` is 65 by `--dim M=65`, above its upper bound 64
      = help: give a number from 1 to 64, or raise the bound
    "#);
    assert_snapshot!(bind(DYNAMIC, &[("K", 4)], &[("x", &[100, 4])]), @r#"
    error: `M` is 100 by `--shape x=100x4`, above its upper bound 64
      = help: give a number from 1 to 64, or raise the bound
    error: `L` has no value
      = help: add `--dim L=<number>`
    "#);
}

#[test]
fn numbers_that_follow_from_views() {
    let block = "fn f(x: bf16[M, K] @ shard(1)) { x -> view(B, S, H, 64) -> view(R, C) }";
    assert_snapshot!(bind(block, &[("M", 24), ("K", 256), ("B", 3)], &[]), @r#"
    %0: [24, 256]
    %1: [3, 8, 4, 64]
    %2: [24, 256]
    "#);
    // From heads to rows, and from there on.
    let rows = "fn f(q: bf16[B, S, H, D] @ shard(2)) { q -> view(M, K) -> view(1, L, J, D) }";
    assert_snapshot!(bind(rows, &[], &[("q", &[2, 5, 6, 64])]), @r#"
    %0: [2, 5, 6, 64]
    %1: [10, 384]
    %2: [1, 10, 6, 64]
    "#);
    assert_snapshot!(bind(block, &[("M", 24), ("K", 256), ("B", 5)], &[]), @r#"
    error: a `view` has `M` = 24 as `B` = 5 times a whole `S`
      = help: give numbers of which the first is the product
    "#);
    assert_snapshot!(bind(block, &[("M", 24), ("K", 256), ("B", 3), ("S", 9), ("R", 24)], &[]), @r#"
    error: a `view` has `M` = 24 as `B` = 3 times `S` = 9
      = help: give numbers of which the first is the product
    error: a `view` has `R` = 24 as `B` = 3 times `S` = 9
      = help: give numbers of which the first is the product
    "#);
}
