//! Pipelines become plans: snapshots of the plan text, and refusals that say what works instead.

mod common;

use common::{CASES, plan};

#[test]
fn plans() {
    for (name, source, ranks, shapes) in CASES {
        let plan = plan(source, *ranks, shapes).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(*name, plan);
    }
}

#[test]
fn refusals_say_what_works() {
    let cases: &[common::Case] = &[
        (
            "reduce_scatter",
            "gather(a) -> gemm(b) -> reduce_scatter",
            4,
            &[("a", &[64, 64]), ("b", &[64, 64])],
        ),
        ("cast_f32", "gemm(a, b) -> cast(f32)", 1, &[("a", &[64, 64]), ("b", &[64, 64])]),
    ];
    for (name, source, ranks, shapes) in cases {
        let error = plan(source, *ranks, shapes).expect_err(name).to_string();
        assert!(error.contains("help:"), "{name}: {error}");
        insta::assert_snapshot!(format!("refused_{name}"), error);
    }
}
