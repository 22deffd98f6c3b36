//! Pipelines become plans: snapshots of the plan text, and refusals that say what works instead.

mod common;

use common::{CASES, VARIANTS, plan};

#[test]
fn plans() {
    for (name, source, ranks, shapes) in CASES {
        let plan = plan(source, *ranks, shapes).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(*name, plan);
    }
}

#[test]
fn refusals_say_what_works() {
    let cases: &[common::Case] = &[(
        "epilogue_after_reduce",
        "gemm(a, b) -> reduce_scatter -> gelu",
        4,
        &[("a", &[64, 64]), ("b", &[64, 64])],
    )];
    for (name, source, ranks, shapes) in cases {
        let error = plan(source, *ranks, shapes).expect_err(name).to_string();
        assert!(error.contains("help:"), "{name}: {error}");
        insta::assert_snapshot!(format!("refused_{name}"), error);
    }
}

#[test]
fn worlds_of_no_size_are_refused() {
    for ranks in [0, 65, u32::MAX] {
        let refused = plan("gather(a)", ranks, &[("a", &[64, 64])]).expect_err("refused");
        assert!(refused.to_string().contains("use 1 to 64"), "{refused}");
    }
}

#[test]
fn every_lowered_plan_verifies_and_has_a_kernel() {
    for (name, source, ranks, shapes) in CASES {
        for ranks in [*ranks, 1, 2, 3, 8] {
            let plan = match plan(source, ranks, shapes) {
                Ok(plan) => plan,
                Err(e) => panic!("{name} on {ranks} ranks: {e}"),
            };
            let begin = std::time::Instant::now();
            match mk_codegen::valid::verify(&plan) {
                Ok(proof) => println!("{name} on {ranks}: {:?}\n{proof}", begin.elapsed()),
                Err(e) => panic!("{name} on {ranks} ranks: {e}\n{plan}"),
            }
            if let Err(e) = mk_codegen::emit::emit(&plan) {
                panic!("{name} on {ranks} ranks: {e}");
            }
        }
    }
}

#[test]
fn every_way_of_lowering_verifies_and_has_a_kernel() {
    for v in VARIANTS {
        let (name, _, ranks, _) = v.case;
        for ranks in [ranks, 1, 2, 3, 8] {
            let plan = v.plan(ranks).unwrap_or_else(|e| panic!("{name} on {ranks} ranks: {e}"));
            if let Err(e) = mk_codegen::valid::verify(&plan) {
                panic!("{name} on {ranks} ranks: {e}\n{plan}");
            }
            if let Err(e) = mk_codegen::emit::emit(&plan) {
                panic!("{name} on {ranks} ranks: {e}");
            }
        }
        let plan = v.plan(ranks).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_snapshot!(name, plan);
    }
}
