//! Products whose operands are stacks of matrices: every coordinate of a task reaches the tensor map it is loaded by.

mod common;

use common::experts;
use mk_abi::{KernelSource, TensorMapSpec};
use mk_codegen::{
    emit::{EmitError, emit},
    plan::Plan,
    valid,
};

fn tried(text: &str) -> Result<KernelSource, EmitError> {
    let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{e}: {text}"));
    valid::verify(&plan).unwrap_or_else(|e| panic!("{e}: {text}"));
    emit(&plan)
}

fn emitted(text: &str) -> KernelSource {
    tried(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// What `decode` sets a member of a tile to.
fn member<'k>(kernel: &'k KernelSource, name: &str) -> Option<&'k str> {
    let line = format!("work.{name} = ");
    let mut lines = kernel.cuda.lines().filter_map(|l| l.trim().strip_prefix(line.as_str()));
    lines.next().and_then(|l| l.strip_suffix(';'))
}

/// The tensor map that an operand comes through.
fn map<'k>(kernel: &'k KernelSource, operand: &str) -> &'k TensorMapSpec {
    let map = member(kernel, operand).expect("a map");
    let index: Option<usize> =
        map.split("kMap").nth(1).and_then(|n| n.trim_end_matches(']').parse().ok());
    &kernel.ranks[0].maps[index.unwrap_or_else(|| panic!("{map}"))]
}

fn names(text: &str, variable: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == variable)
}

/// Every expert's tasks load that expert's weights, in each layout, gated or not.
#[test]
fn experts_have_weights_of_their_own() {
    // Of the map: extents and box, innermost first, of one matrix.
    type Case = (&'static str, bool, fn(u64) -> [u64; 2], [u32; 2]);
    let cases: [Case; 4] = [
        ("kn", true, |k| [512, k], [64, 64]),
        ("nk", true, |k| [k, 512], [64, 128]),
        ("kn", false, |k| [256, k], [64, 64]),
        ("nk", false, |k| [k, 256], [64, 256]),
    ];
    // Whole steps, and a last one that ends inside the stack.
    let depths = [128, 72];
    for (depth, (layout, gated, extents, boxes)) in
        depths.into_iter().flat_map(|depth| cases.map(|case| (depth, case)))
    {
        let kernel = emitted(&experts(layout, gated, depth));
        let place = format!("{layout}, gated: {gated}, {depth} deep");
        let coordinates = ["b_k", "b_col", "b_outer"].map(|m| member(&kernel, m).unwrap_or(""));
        assert!(coordinates.iter().any(|c| names(c, "e")), "{place}: {coordinates:?}");
        // A map of three dimensions: each matrix ends where its own k does, behind which TMA reads zeros.
        let [k, col, outer] = coordinates;
        assert_eq!((k, outer), ("0", "e"), "{place}");
        assert!(names(col, "j"), "{place}: {col}");
        let up = if gated { "kDim_F" } else { "0" };
        assert_eq!(member(&kernel, "b_up"), Some(up), "{place}");
        let (map, [columns, rows]) = (map(&kernel, "b"), extents(u64::from(depth)));
        assert_eq!(map.dims, [columns, rows, 3], "{place}");
        assert_eq!(map.strides_bytes, [2 * columns, 2 * columns * rows], "{place}");
        assert_eq!(map.box_dims, [boxes[0], boxes[1], 1], "{place}");
        assert!(kernel.cuda.contains(".b_rank = 3, "), "{place}");
        // Rows of A and C are contiguous.
        for row in ["a_row", "c_row"].map(|m| member(&kernel, m).expect("a row")) {
            assert!(names(row, "e"), "{place}: {row}");
        }
    }
}

/// One task of a product on each of the matrices that `i` chooses.
fn chosen(shape: &str, region: &str, a: &str, k: u32) -> String {
    format!(
        r#"plan "chosen"
mesh world=1
target sm_90a
buffer buf0 "x" in bf16[{shape}]
buffer buf1 "w" in bf16[{k}, 256]
buffer buf2 "y" out bf16[3, 128, 256]
role role0 compute ctas 1
family fam0 "gemm" role0 {{
  leaf mma_tile block=128x256x64 stages=3{a} b=kn store=tma
  for i in 3
  edge e1 full
  edge e2 empty
  edge e3 staged
  edge e4 drained
  access a: read buf0 @ rank [{region}] at start
  access b: read buf1 @ rank [0 : {k}, 0 : 256] at start
  access c: write buf2 @ rank [i : 1, 0 : 128, 0 : 256] at end
}}
"#
    )
}

/// The left factor, wherever the dimension stands that chooses a matrix.
#[test]
fn left_factors_that_an_index_chooses() {
    // Shape, region, layout: extents of the map, and which coordinate names the index.
    let cases: [(&str, &str, &str, [u64; 2], &str); 4] = [
        ("3, 128, 72", "i : 1, 0 : 128, 0 : 72", "", [72, 384], "a_row"),
        ("3, 128, 128", "i : 1, 0 : 128, 0 : 128", " a=km", [128, 384], "a_k"),
        ("72, 3, 128", "0 : 72, i : 1, 0 : 128", " a=km", [384, 72], "a_row"),
        ("128, 3, 128", "0 : 128, i : 1, 0 : 128", "", [384, 128], "a_k"),
    ];
    for (shape, region, layout, dims, moves) in cases {
        let k = if shape.contains("72") { 72 } else { 128 };
        let kernel = emitted(&chosen(shape, region, layout, k));
        let place = format!("{shape}{layout}");
        assert_eq!(map(&kernel, "a").dims, dims, "{place}");
        for m in ["a_row", "a_k"] {
            let text = member(&kernel, m).expect("a coordinate");
            assert_eq!(names(text, "i"), m == moves, "{place}: {m} = {text}");
        }
        assert_eq!(member(&kernel, "k_blocks"), Some("2"), "{place}");
    }
}

/// A step along k that ends inside of the map would multiply what lies behind.
#[test]
fn parts_of_steps_that_end_before_the_next_matrix() {
    for (shape, region, layout) in [
        ("3, 72, 128", "i : 1, 0 : 72, 0 : 128", " a=km"),
        ("128, 3, 72", "0 : 128, i : 1, 0 : 72", ""),
    ] {
        let error = tried(&chosen(shape, region, layout, 72)).expect_err("ends inside the map");
        let says = "no multiple of 64 and end inside the tensor";
        assert!(error.to_string().contains(says), "{error}");
    }
}
