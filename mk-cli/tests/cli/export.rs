//! `mk run --out`.

use crate::command::{TempDir, mk, mk_json, root};
use std::collections::BTreeSet;

/// A `.npy` file of float32: shape and elements.
fn read(path: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(root().join(path)).expect(path);
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{path}");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..end]).expect("ASCII");
    assert!(header.contains("'descr': '<f4', 'fortran_order': False"), "{header}");
    let shape = header.split(['(', ')']).nth(1).expect("a shape").split(',');
    let shape = shape.filter(|n| !n.trim().is_empty()).map(|n| n.trim().parse().expect("a number"));
    let elements = bytes[end..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four")));
    (shape.collect(), elements.collect())
}

#[test]
fn results_are_the_product_of_the_inputs() {
    let dir = TempDir::new();
    let out = dir.file("out");
    let sizes = ["--shape", "a=10x24", "--shape", "b=24x36", "--ranks", "4", "--device", "cpu"];
    let said = mk(&[&["run", "gather(a) -> gemm(b)", "--out", &out], &sizes[..]].concat()).ok();
    assert!(said.contains("4 results, 8 inputs"), "{said}");
    let rows: Vec<f32> =
        (0..4).flat_map(|r| read(&format!("{out}/inputs/a.rank{r}.npy")).1).collect();
    assert_eq!(rows.len(), 240);
    for rank in 0..4 {
        let (shape, b) = read(&format!("{out}/inputs/b.rank{rank}.npy"));
        assert_eq!(shape, [24, 9]);
        let (shape, got) = read(&format!("{out}/out.rank{rank}.npy"));
        assert_eq!(shape, [10, 9]);
        for (i, got) in got.iter().enumerate() {
            let (row, column) = (i / 9, i % 9);
            let terms =
                (0..24).map(|k| f64::from(rows[24 * row + k]) * f64::from(b[9 * k + column]));
            let want: f64 = terms.sum();
            assert!((f64::from(*got) - want).abs() <= 0.01 * want.abs().max(1.0), "{got} {want}");
            assert_eq!(got.to_bits() & 0xffff, 0, "{got} is no bf16");
        }
    }
}

#[test]
fn every_result_of_every_rank_is_listed() {
    let dir = TempDir::new();
    let out = dir.file("out");
    let pipeline = "let h = gather(x) -> gemm(w); (h -> relu, h)";
    let sizes = ["--shape", "x=5x16", "--shape", "w=16x24", "--ranks", "3", "--device", "cpu"];
    let json = mk_json(&[&["run", pipeline, "--json", "--out", &out], &sizes[..]].concat(), 0);
    let list = json["out"].as_array().expect("a list");
    let results = list.iter().filter(|f| f["input"] == false);
    let tensors: BTreeSet<_> = results.map(|f| f["tensor"].as_str().expect("a name")).collect();
    assert_eq!((tensors.len(), list.len()), (2, 12), "{json}");
    for file in list {
        assert!(std::path::Path::new(file["file"].as_str().expect("a path")).is_file(), "{file}");
    }
    // A rank that has no rows has an empty file.
    let rows = ["run", "gather(x) -> gemm(w) -> reduce_scatter", "--shape", "x=2x8", "--shape"];
    let more = ["w=8x8", "--ranks", "4", "--device", "cpu", "--out", &out];
    mk(&[&rows[..], &more].concat()).ok();
    assert_eq!(read(&format!("{out}/out.rank3.npy")).0, [0, 8]);
}

#[test]
fn plans_are_exported_too() {
    let dir = TempDir::new();
    let out = dir.file("out");
    mk(&["run", "tests/plans/gather_gemm.plan", "--device", "cpu", "--out", &out]).ok();
    assert!(std::fs::read_dir(&out).expect("a folder").count() > 1);
    let plan = std::fs::read_to_string(root().join("tests/plans/gather_gemm.plan")).expect("reads");
    let (path, renamed) = (dir.file("x.plan"), plan.replace("\"c\" out", "\"../c\" out"));
    assert_ne!(plan, renamed);
    std::fs::write(&path, renamed).expect("written");
    mk(&["run", &path, "--device", "cpu", "--out", &out])
        .fails(1, &["\"../c\" cannot be written to a file of its name", "= help: "]);
    mk(&["run", "examples/gemm.mk", "--device", "cpu", "--out", "/proc/no/such"])
        .fails(1, &["cannot make the folder /proc/no/such"]);
}
