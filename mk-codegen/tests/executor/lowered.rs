//! Plans that the passes make, on meshes of several sizes: gather and gemm, aligned and ragged.

#[path = "../common/mod.rs"]
mod common;

use crate::{
    compare, dense, drawn,
    fixtures::{TILE, WHOLE, schedules},
    harness::{Data, no_tables, run},
};
use mk_codegen::{
    plan::{Plan, Space},
    sim::Options,
};

fn right(source: &str, ranks: u32, shapes: &[(&str, &[u64])]) {
    right_plan(common::plan(source, ranks, shapes).expect("lowers"), source, ranks);
}

fn right_plan(plan: Plan, source: &str, ranks: u32) {
    let output = plan.buffers.values().find(|b| b.space == Space::Out).expect("an output");
    let reference = move |d: &Data, e: i64, r: usize| {
        let product = dense::gather_gemm(d, e, r, ranks as usize);
        let Some(bias) = d.inputs.get(&(e, r, "c".to_string())) else { return product };
        let n = bias.values.len();
        let relu =
            |(i, x): (usize, Option<f64>)| Some((x? + f64::from(bias.values[i % n])).max(0.0));
        product.into_iter().enumerate().map(relu).collect()
    };
    let mut drift = 0;
    for schedule in schedules(&plan) {
        let options = Options { schedule, seed: 1, ..Options::default() };
        let (report, data) = run(&plan, &no_tables, &options);
        let report = report.unwrap_or_else(|e| panic!("{source} on {ranks} under {schedule}: {e}"));
        drift = drift.max(report.max_drift);
        compare::check(&data, &output.name, &reference, WHOLE, TILE)
            .unwrap_or_else(|e| panic!("{source} on {ranks} under {schedule}: {e}"));
    }
    println!("{source} on {ranks} ranks: right under every schedule, up to {drift} epochs apart");
}

#[test]
fn gather_gemm_on_any_number_of_ranks() {
    for ranks in [1, 2, 3, 5, 8] {
        right("gather(a) -> gemm(b)", ranks, &[("a", &[320, 72]), ("b", &[72, 136])]);
    }
}

/// 25 rows of a rank in four pieces, the last of four rows; tiles hold rows of all ranks.
#[test]
fn few_rows_travel_in_pieces() {
    let name = "gather_few_rows_in_pieces";
    let v = common::VARIANTS.iter().find(|v| v.case.0 == name).expect("there is such a variant");
    for ranks in if drawn::whole() { &[2, 5][..] } else { &[2] } {
        let ranks = *ranks;
        right_plan(v.plan(ranks).expect("lowers"), v.case.1, ranks);
    }
}

/// Rows of B that tiles shift, beside rows of A that are repacked in parts of few columns.
#[test]
fn rows_are_shifted() {
    for name in ["shifted", "shifted_even"] {
        let v =
            common::VARIANTS.iter().find(|v| v.case.0 == name).expect("there is such a variant");
        right_plan(v.plan(1).expect("lowers"), v.case.1, 1);
    }
}

#[test]
fn odd_pitches_and_epilogues() {
    let shapes: &[(&str, &[u64])] = &[("a", &[131, 33]), ("b", &[33, 65]), ("c", &[65])];
    for ranks in [1, 4] {
        right("gather(a) -> gemm(b) -> bias(c) -> relu", ranks, shapes);
    }
}
