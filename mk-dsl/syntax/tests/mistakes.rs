//! Mistakes in run-time strings, as a user sees them. `ui_mistakes.rs` has the rest.

use insta::assert_snapshot;
use mk_syntax::Program;

fn check(source: &str) -> String {
    match Program::parse(source) {
        Ok(program) => program.to_string(),
        Err(mistakes) => mistakes.to_string(),
    }
}

#[test]
fn nothing() {
    assert_snapshot!(check(""), @r#"
    error: expected a chain, found the end
     --> pipeline:1:1
      |
    1 | 
      | ^
      = help: end with the result: `gather(x) -> gemm(w)`
    "#);
    assert_snapshot!(check("  // only a comment"), @r#"
    error: expected a chain, found the end
     --> pipeline:1:20
      |
    1 |   // only a comment
      |                    ^
      = help: end with the result: `gather(x) -> gemm(w)`
    "#);
    assert_snapshot!(check("()"), @r#"
    error: expected an operation, found `(`
     --> pipeline:1:1
      |
    1 | ()
      | ^
      = help: write for instance `gemm(w)`
    "#);
}

#[test]
fn several_on_two_lines() {
    assert_snapshot!(check(r#"gather(x) -> gemn(w1) => scale(y)
    -> gelu(3) -> cast(bf17)
    -> all_to_all"#), @r#"
    error: unknown operation `gemn`
     --> pipeline:1:14
      |
    1 | gather(x) -> gemn(w1) => scale(y)
      |              ^^^^
      = help: did you mean `gemm`?

    error: expected `->`, found `=>`
     --> pipeline:1:23
      |
    1 | gather(x) -> gemn(w1) => scale(y)
      |                       ^^
      = help: stages are joined by `->`: `gather(a) -> gemm(b)`

    error: `scale` takes a number, found `y`
     --> pipeline:1:32
      |
    1 | gather(x) -> gemn(w1) => scale(y)
      |                                ^
      = help: write `scale(0.5)`

    error: `gelu` takes no further argument
     --> pipeline:2:13
      |
    2 |     -> gelu(3) -> cast(bf17)
      |             ^
      = help: write `gelu`

    error: unknown dtype `bf17`
     --> pipeline:2:24
      |
    2 |     -> gelu(3) -> cast(bf17)
      |                        ^^^^
      = help: did you mean `bf16`?

    error: `all_to_all` takes the dimension that becomes sharded and the one that becomes whole
     --> pipeline:3:8
      |
    3 |     -> all_to_all
      |        ^^^^^^^^^^
      = help: write `all_to_all(split = 2, concat = 1)`
    "#);
}

#[test]
fn brackets() {
    assert_snapshot!(check("gather(x) -> gemm(w"), @r#"
    error: `(` is never closed
     --> pipeline:1:18
      |
    1 | gather(x) -> gemm(w
      |                  ^
      = help: add the matching `)`
    "#);
    assert_snapshot!(check("gather(x)) -> gemm(w)"), @r#"
    error: `)` closes nothing
     --> pipeline:1:10
      |
    1 | gather(x)) -> gemm(w)
      |          ^
      = help: remove it, or open it before with `(`
    "#);
    assert_snapshot!(check("gather(x] -> gemm(w)"), @r#"
    error: `]` does not match the bracket that it closes
     --> pipeline:1:9
      |
    1 | gather(x] -> gemm(w)
      |         ^
      = help: write `)`
    "#);
}

#[test]
fn characters() {
    assert_snapshot!(check("gather(x) -> gemm(é) § \"str\" 5x"), @r#"
    error: a name has letters other than ASCII
     --> pipeline:1:19
      |
    1 | gather(x) -> gemm(é) § "str" 5x
      |                   ^
      = help: use `a`-`z`, `A`-`Z`, `0`-`9` and `_`

    error: unexpected character '§'
     --> pipeline:1:22
      |
    1 | gather(x) -> gemm(é) § "str" 5x
      |                      ^
      = help: remove it

    error: expected `->`, found a string
     --> pipeline:1:24
      |
    1 | gather(x) -> gemm(é) § "str" 5x
      |                        ^^^^^
      = help: stages are joined by `->`: `gather(a) -> gemm(b)`
    "#);
    assert_snapshot!(check("\"open"), @r#"
    error: this string is never closed
     --> pipeline:1:1
      |
    1 | "open
      | ^
      = help: add the matching `"`

    error: expected an operation, found a string
     --> pipeline:1:1
      |
    1 | "open
      | ^^^^^
      = help: write for instance `gemm(w)`
    "#);
    assert_snapshot!(check("x /* open"), @r#"
    error: this comment is never closed
     --> pipeline:1:3
      |
    1 | x /* open
      |   ^^
      = help: add the matching `*/`
    "#);
    assert_snapshot!(check("x -> scale(1e999)"), @r#"
    error: `1e999` is not a number here
     --> pipeline:1:12
      |
    1 | x -> scale(1e999)
      |            ^^^^^
      = help: write decimal digits, for instance `8192`, or `0.5` in `scale`
    "#);
    assert_snapshot!(check("x -> scale(0x10)"), @r#"
    error: `0x10` is not a number here
     --> pipeline:1:12
      |
    1 | x -> scale(0x10)
      |            ^^^^
      = help: write decimal digits, for instance `8192`, or `0.5` in `scale`
    "#);
    assert_snapshot!(check("x -> scale(18446744073709551616)"), @r#"
    error: `18446744073709551616` is not a number here
     --> pipeline:1:12
      |
    1 | x -> scale(18446744073709551616)
      |            ^^^^^^^^^^^^^^^^^^^^
      = help: write decimal digits, for instance `8192`, or `0.5` in `scale`
    "#);
    assert_snapshot!(check("fn f(x: bf16[99999999999999999999]) { x }"), @r#"
    error: `99999999999999999999` is not a number here
     --> pipeline:1:14
      |
    1 | fn f(x: bf16[99999999999999999999]) { x }
      |              ^^^^^^^^^^^^^^^^^^^^
      = help: write decimal digits, for instance `8192`, or `0.5` in `scale`
    "#);
    assert_snapshot!(check("\u{202e}x -> \u{7}"), @r#"
    error: unexpected character '\u{202e}'
     --> pipeline:1:1
      |
    1 | �x -> �
      | ^
      = help: remove it

    error: unexpected character '\u{7}'
     --> pipeline:1:7
      |
    1 | �x -> �
      |       ^
      = help: remove it

    error: expected an operation, found the end
     --> pipeline:1:8
      |
    1 | �x -> �
      |        ^
      = help: write for instance `gemm(w)`
    "#);
}

#[test]
fn placements() {
    assert_snapshot!(check("gather(a) -> gather"), @r#"
    error: `gather` needs a sharded value, and the result of `gather` is `replicate`
     --> pipeline:1:14
      |
    1 | gather(a) -> gather
      |              ^^^^^^
      = help: remove `gather`
    "#);
    assert_snapshot!(check("gather(a) -> all_reduce"), @r#"
    error: `all_reduce` needs a `partial` value, and the result of `gather` is `replicate`
     --> pipeline:1:14
      |
    1 | gather(a) -> all_reduce
      |              ^^^^^^^^^^
      = help: remove `all_reduce`
    "#);
    assert_snapshot!(check("reduce_scatter(x, dim = 2)"), @r#"
    error: there is no dimension 2: the tensor has 2 dimensions
     --> pipeline:1:25
      |
    1 | reduce_scatter(x, dim = 2)
      |                         ^
      = help: dimensions count from 0: choose one from 0 to 1
    "#);
}

#[test]
fn partial_sums() {
    assert_snapshot!(check("gemm(a, b) -> gelu -> reduce_scatter"), @r#"
    error: `gelu` is not linear, and the result of `gemm` is `partial`: a sum not yet made
     --> pipeline:1:15
      |
    1 | gemm(a, b) -> gelu -> reduce_scatter
      |               ^^^^
      = help: write `reduce_scatter ->` or `all_reduce ->` before `gelu`
    "#);
    assert_snapshot!(check("gemm(a, b) -> bias(c) -> all_reduce"), @r#"
    error: `bias` to the result of `gemm`, which is `partial`, would count once for each rank
     --> pipeline:1:15
      |
    1 | gemm(a, b) -> bias(c) -> all_reduce
      |               ^^^^
      = help: write `reduce_scatter ->` or `all_reduce ->` before `bias`
    "#);
    assert_snapshot!(check("gather(a) -> gemm(b) -> add(a) -> reduce_scatter"), @r#"
    error: `add` to the result of `gemm`, which is `partial`, would count once for each rank
     --> pipeline:1:25
      |
    1 | gather(a) -> gemm(b) -> add(a) -> reduce_scatter
      |                         ^^^
      = help: write `reduce_scatter ->` or `all_reduce ->` before `add`
    "#);
}

#[test]
fn dimensions() {
    assert_snapshot!(check("gemm(a, b) -> bias(c) -> add(c)"), @r#"
    error: `add` needs 2 dimensions here, and `c` has 1 dimension
     --> pipeline:1:30
      |
    1 | gemm(a, b) -> bias(c) -> add(c)
      |                              ^
      = help: declare `c` with 2 dimensions
    "#);
    assert_snapshot!(check("fn f(x: bf16[4, 8], w: bf16[9, K]) -> bf16[4, 7] { gemm(x, w) }"), @r#"
    error: `gemm` contracts `8` on the left with `9` on the right
     --> pipeline:1:60
      |
    1 | fn f(x: bf16[4, 8], w: bf16[9, K]) -> bf16[4, 7] { gemm(x, w) }
      |                                                            ^
      = help: dimension 0 of `w` must be `8`
    "#);
    assert_snapshot!(check("fn f(x: bf16[]) { x }"), @r#"
    error: a tensor needs at least one dimension
     --> pipeline:1:13
      |
    1 | fn f(x: bf16[]) { x }
      |             ^^
      = help: write the shape: `bf16[M, K]`
    "#);
    assert_snapshot!(check("fn f(x: bf16[A, B, C, D, E, F, G, H, I]) { x }"), @r#"
    error: more than 8 dimensions
     --> pipeline:1:13
      |
    1 | fn f(x: bf16[A, B, C, D, E, F, G, H, I]) { x }
      |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = help: merge some of them
    "#);
}

#[test]
fn names() {
    assert_snapshot!(check("gather(gelu)"), @r#"
    error: `gelu` is the name of an operation
     --> pipeline:1:8
      |
    1 | gather(gelu)
      |        ^^^^
      = help: choose another name for the tensor
    "#);
    assert_snapshot!(check("let h = gather(x); let h = h -> gelu; h"), @r#"
    error: `h` is defined twice
     --> pipeline:1:24
      |
    1 | let h = gather(x); let h = h -> gelu; h
      |                        ^
      = help: choose another name for one of them
    "#);
    assert_snapshot!(check("x -> gemm(x) -> x"), @r#"
    error: `x` is a tensor, and only operations follow `->`
     --> pipeline:1:17
      |
    1 | x -> gemm(x) -> x
      |                 ^
      = help: write for instance `gemm(x)` or `add(x)`
    "#);
    assert_snapshot!(check("let x = y; z"), @r#"
    error: `x` is never used
     --> pipeline:1:5
      |
    1 | let x = y; z
      |     ^
      = help: remove it, or use it in the body
    "#);
}

#[test]
fn axes() {
    assert_snapshot!(check("fn f(x: bf16[M] @ shard(0, a) @ shard(0, a)) { x }"), @r#"
    error: the placement over `a` is given twice
     --> pipeline:1:33
      |
    1 | fn f(x: bf16[M] @ shard(0, a) @ shard(0, a)) { x }
      |                                 ^^^^^^^^^^^
      = help: give one placement for each mesh axis
    "#);
    assert_snapshot!(check("fn f(x: bf16[M] @ shard(0, a) @ zigzag(0, b)) { x }"), @r#"
    error: dimension 0 is sharded over two mesh axes, over one of them in zigzag
     --> pipeline:1:33
      |
    1 | fn f(x: bf16[M] @ shard(0, a) @ zigzag(0, b)) { x }
      |                                 ^^^^^^^^^^^^
      = help: let one axis have it in zigzag, or both as `shard`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M] @ shard(0, a) @ shard(0, b), y: bf16[M] @ shard(0, b) @ shard(0, a)) { x -> add(y) }"), @r#"
    error: shards over `a` are parts of shards over `b`, and elsewhere it is the other way round
     --> pipeline:1:73
      |
    1 | ...[M] @ shard(0, a) @ shard(0, b), y: bf16[M] @ shard(0, b) @ shard(0, a)) { x -> add(y) }
      |                                                                ^^^^^^^^^^^
      = help: where both share a dimension, let `b` come first everywhere, or everywhere `a`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, a) @ shard(0, b)) { gather(x, a) -> gather(b) }"), @r#"
    error: dimension 0 is sharded over `b` within its shards over `a`
     --> pipeline:1:51
      |
    1 | fn f(x: bf16[M, K] @ shard(0, a) @ shard(0, b)) { gather(x, a) -> gather(b) }
      |                                                   ^^^^^^
      = help: write `gather(b)` before it
    "#);
    assert_snapshot!(check("reduce_scatter(x, a) -> gemm(w) -> reduce_scatter(b) -> gemm(v) -> gather(a)"), @r#"
    error: dimension 0 is sharded over `b` within its shards over `a`
     --> pipeline:1:68
      |
    1 | ...scatter(x, a) -> gemm(w) -> reduce_scatter(b) -> gemm(v) -> gather(a)
      |                                                                ^^^^^^
      = help: write `gather(b)` before it
    "#);
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, a) @ shard(0, b), y: bf16[M, K] @ shard(0, b) @ partial(a)) { (gather(x, b), y -> reduce_scatter(a)) }"), @r#"
    error: shards over `a` are parts of shards over `b`, and elsewhere it is the other way round
     --> pipeline:1:113
      |
    1 | ...f16[M, K] @ shard(0, b) @ partial(a)) { (gather(x, b), y -> reduce_scatter(a)) }
      |                                                                ^^^^^^^^^^^^^^
      = help: where both share a dimension, let `b` come first everywhere, or everywhere `a`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M, K] @ shard(0, a) @ shard(0, b)) { gather(x) }"), @r#"
    error: `gather` needs a mesh axis here
     --> pipeline:1:51
      |
    1 | fn f(x: bf16[M, K] @ shard(0, a) @ shard(0, b)) { gather(x) }
      |                                                   ^^^^^^
      = help: name one of `a`, `b`, as in `shard(0, tp)` or `gather(tp)`
    "#);
    assert_snapshot!(check("x -> gather(a) -> gather(b) -> gather(c) -> gather(d) -> gather(e)"), @r#"
    error: more than 4 mesh axes
     --> pipeline:1:65
      |
    1 | ... gather(a) -> gather(b) -> gather(c) -> gather(d) -> gather(e)
      |                                                                ^
      = help: use fewer axes
    "#);
}

#[test]
fn grammar() {
    assert_snapshot!(check("gather(x). gemm(w)"), @r#"
    error: expected `->`, found `.`
     --> pipeline:1:10
      |
    1 | gather(x). gemm(w)
      |          ^
      = help: stages are joined by `->`: `gather(a) -> gemm(b)`
    "#);
    assert_snapshot!(check("x -> "), @r#"
    error: expected an operation, found the end
     --> pipeline:1:6
      |
    1 | x ->
      |      ^
      = help: write for instance `gemm(w)`
    "#);
    assert_snapshot!(check("-> gemm(w)"), @r#"
    error: expected an operation, found `->`
     --> pipeline:1:1
      |
    1 | -> gemm(w)
      | ^^
      = help: write for instance `gemm(w)`
    "#);
    assert_snapshot!(check("gather(x) gemm(w)"), @r#"
    error: expected `->`, found `gemm`
     --> pipeline:1:11
      |
    1 | gather(x) gemm(w)
      |           ^^^^
      = help: stages are joined by `->`: `gather(a) -> gemm(b)`
    "#);
    assert_snapshot!(check("(x -> gelu, )"), @r#"
    pipeline gelu(world):
      %0 = x: bf16[x_0, x_1] @ replicate
      %1 = gelu(%0): bf16[x_0, x_1] @ replicate
      return %1
    "#);
    assert_snapshot!(check("let h gather(x); h"), @r#"
    error: expected `=`, found `gather`
     --> pipeline:1:7
      |
    1 | let h gather(x); h
      |       ^^^^^^
      = help: write `let h = gather(x);`
    "#);
    assert_snapshot!(check("let h = gather(x) h"), @r#"
    error: expected `->` or `;`, found `h`
     --> pipeline:1:19
      |
    1 | let h = gather(x) h
      |                   ^
      = help: end the binding: `let h = gather(x);`
    "#);
    assert_snapshot!(check("fn (x: bf16[M]) { x }"), @r#"
    error: expected the pipeline's name, found `(`
     --> pipeline:1:4
      |
    1 | fn (x: bf16[M]) { x }
      |    ^
      = help: write `pub fn name(..) { .. }`
    "#);
    assert_snapshot!(check("fn f x: bf16[M]) { x }"), @r#"
    error: `)` closes nothing
     --> pipeline:1:16
      |
    1 | fn f x: bf16[M]) { x }
      |                ^
      = help: remove it, or open it before with `(`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M]) x"), @r#"
    error: expected `{`, found `x`
     --> pipeline:1:18
      |
    1 | fn f(x: bf16[M]) x
      |                  ^
      = help: write the body in braces: `{ gather(x) -> gemm(w) }`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M]) { x"), @r#"
    error: `{` is never closed
     --> pipeline:1:18
      |
    1 | fn f(x: bf16[M]) { x
      |                  ^
      = help: add the matching `}`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M]) -> { x }"), @r#"
    error: expected a type, found `{`
     --> pipeline:1:21
      |
    1 | fn f(x: bf16[M]) -> { x }
      |                     ^
      = help: write `bf16[M, K] @ shard(0)`
    "#);
    assert_snapshot!(check("fn f(x: bf16) { x }"), @r#"
    error: expected `[`, found `)`
     --> pipeline:1:13
      |
    1 | fn f(x: bf16) { x }
      |             ^
      = help: write the shape: `bf16[M, K]`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M] @) { x }"), @r#"
    error: expected a placement, found `)`
     --> pipeline:1:18
      |
    1 | fn f(x: bf16[M] @) { x }
      |                  ^
      = help: write `shard(0)`, `replicate` or `partial`
    "#);
    assert_snapshot!(check("fn f<M>(x: bf16[M]) { x }"), @r#"
    error: expected `: dyn` or `: own`, found `>`
     --> pipeline:1:7
      |
    1 | fn f<M>(x: bf16[M]) { x }
      |       ^
      = help: a symbol declared here is known at launch: `<M: dyn <= 8192>`
    "#);
    assert_snapshot!(check("pub x"), @r#"
    error: expected `fn`, found `x`
     --> pipeline:1:5
      |
    1 | pub x
      |     ^
      = help: write `pub fn name(x: bf16[M, K]) { .. }`
    "#);
    assert_snapshot!(check("#[inline] fn f() { x }"), @r#"
    error: expected `pub fn`, found `#`
     --> pipeline:1:1
      |
    1 | #[inline] fn f() { x }
      | ^
      = help: remove the attribute: only doc comments are read here
    "#);
    assert_snapshot!(check("fn f(x: bf16[M]) { x } x"), @r#"
    error: expected the end, found `x`
     --> pipeline:1:24
      |
    1 | fn f(x: bf16[M]) { x } x
      |                        ^
      = help: a source has one pipeline; move the next one to its own
    "#);
    assert_snapshot!(check("fn f(x: bf16[M] @ shard) { x }"), @r#"
    error: expected the sharded dimension, found `)`
     --> pipeline:1:24
      |
    1 | fn f(x: bf16[M] @ shard) { x }
      |                        ^
      = help: write its position: `shard(0)`
    "#);
    assert_snapshot!(check("fn f(x: bf16[M] @ shard(0 tp)) { x }"), @r#"
    error: expected `)`, found `tp`
     --> pipeline:1:27
      |
    1 | fn f(x: bf16[M] @ shard(0 tp)) { x }
      |                           ^^
      = help: close the placement, as in `shard(0)` or `shard(0, tp)`
    "#);
    assert_snapshot!(check("fn f() {}"), @r#"
    error: expected a chain, found `}`
     --> pipeline:1:9
      |
    1 | fn f() {}
      |         ^
      = help: end with the result: `gather(x) -> gemm(w)`
    "#);
}

#[test]
fn a_long_line_is_cut() {
    assert_snapshot!(check("x -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gulu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu"), @r#"
    error: unknown operation `gulu`
     --> pipeline:1:166
      |
    1 | ... -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gulu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu -> gelu
      |                                                                ^^^^
      = help: did you mean `gelu`?
    "#);
}
