//! Rows in eight bits: plans that lose a factor, tear it from its values or give it to others are refused; values and
//! factors are those of the definition, of every kind of block.

mod common;

use mk_abi::DType;
use mk_codegen::{
    passes::{Claim, LowerError, lower},
    plan::{Entity, Plan},
    settings::Config,
    sim::{self, Callbacks, Options},
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

fn bound(source: &str, shapes: &[(&str, &[u64])]) -> (Program, Bound) {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let shapes = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).unwrap_or_else(|e| panic!("{e}"));
    (program, bound)
}

fn lowered(source: &str, ranks: u32, shapes: &[(&str, &[u64])]) -> Result<Plan, LowerError> {
    let (program, bound) = bound(source, shapes);
    lower(&program, &bound, &Config { ranks, ..Config::default() })
}

/// What is wrong with a plan of a case of the catalogue, as a text; nothing if it is proved.
fn wrong(name: &str, plan: &str) -> String {
    let (_, source, _, shapes) = common::CASES.iter().find(|c| c.0 == name).expect("a case");
    let (program, bound) = bound(source, shapes);
    let plan: Plan = match plan.parse() {
        Ok(plan) => plan,
        Err(e) => panic!("{e}"),
    };
    let proof = Claim::read(&plan, Some((&program, &bound))).prove();
    proof.err().map(|e| e.to_string()).unwrap_or_default()
}

fn text(name: &str) -> String {
    let (_, source, ranks, shapes) = common::CASES.iter().find(|c| c.0 == name).expect("a case");
    lowered(source, *ranks, shapes).unwrap_or_else(|e| panic!("{e}")).to_string()
}

/// Changes of a plan's text, each of which is refused, with these words.
fn refused(name: &str, changes: &[(&str, &str, &str)]) {
    let plan = text(name);
    assert_eq!(wrong(name, &plan), "", "{name}");
    for (from, to, says) in changes {
        let broken = plan.replace(from, to);
        assert_ne!(broken, plan, "{name} has no `{from}`");
        let found = wrong(name, &broken);
        assert!(!found.is_empty() && found.contains(says), "{from} -> {to}: {found}");
    }
}

#[test]
fn other_factors_are_refused() {
    let rows = "i * 8 : min(8, 500 - i * 8)";
    let factors = format!("access e0: write buf3 @ rank [0 : K_128, {rows}] at end");
    let src = format!("access src: read buf0 @ rank [{rows}, 0 : K] at start");
    let other = "(i * 8 + 8) % 504 : min(8, 500 - i * 8)";
    refused(
        "quantize_rows",
        &[
            // Of another type, which has another largest number.
            ("quantize_tile dtype=e4m3", "quantize_tile dtype=e5m2", "e5m2"),
            // Those of the rows behind, and of fewer blocks.
            (&factors, &format!("access e0: write buf3 @ rank [0 : K_128, {other}] at end"), ""),
            (
                &factors,
                &format!("access e0: write buf3 @ rank [0 : 8, {rows}] at end"),
                "of blocks",
            ),
            (&factors, &format!("access e0: write buf3 @ rank [1 : K_128 - 1, {rows}] at end"), ""),
            // None.
            (&format!("  {factors}\n"), "", ""),
            // Values of other rows.
            (&src, &format!("access src: read buf0 @ rank [{other}, 0 : K] at start"), ""),
        ],
    );
    let rows = "[0 : K_128, i * 8 : min(8, 500 - i * 8)]";
    let back = format!("access e0: read buf1 @ rank {rows} at start");
    refused(
        "dequantize_rows",
        &[
            (
                &back,
                "access e0: read buf1 @ rank [0 : K_128, (i * 8 + 8) % 504 : min(8, 500 - i * 8)] at start",
                "",
            ),
            (
                &back,
                "access e0: read buf1 @ rank [0 : 8, i * 8 : min(8, 500 - i * 8)] at start",
                "of blocks",
            ),
            ("dequantize_tile dtype=e4m3", "dequantize_tile dtype=e5m2", "e5m2"),
        ],
    );
}

/// Values without their factors, or with those of the launch before.
#[test]
fn torn_pairs_are_refused() {
    let peers = "wait e17 sig3[(rank + 1) % 2, i] >= 2";
    let post = "  post e16 sig3[rank, i] @ (rank + (s + 1)) % 2 += 1 by copier after program_order scope sys at end each s in 1\n";
    let [made, sent] =
        ["  wait e14 sig2[i * 128 / 128] >= 16", "  wait e12 sig2[i * 128 / 128] >= 16"];
    let own = "access e0: read buf7 @ rank [0 : K_128, i * 128 : min(128, 500 - i * 128)] at end";
    let arrived = "access e0: read buf9 @ rank [(rank + 1) % 2 : 1, 0 : K_128, i * 128 : min(128, 500 - i * 128)] at end";
    refused(
        "quantize_gather_gemm",
        &[
            // The GEMM goes on when one of the two is there.
            (peers, "wait e17 sig3[(rank + 1) % 2, i] >= 1", "rule"),
            (post, "", "rule"),
            // It waits for rows before they are quantised, and so does the copy of factors.
            (made, "  wait e14 sig1[i * 128 / 128] >= 16", "rule"),
            (sent, "  wait e12 sig1[i * 128 / 128] >= 16", "rule"),
            // Factors of other rows.
            (
                own,
                "access e0: read buf7 @ rank [0 : K_128, (i * 128 + 128) % 512 : min(128, 500 - i * 128)] at end",
                "",
            ),
            (
                arrived,
                "access e0: read buf9 @ rank [rank : 1, 0 : K_128, i * 128 : min(128, 500 - i * 128)] at end",
                "",
            ),
        ],
    );
    // Both torn at once: factors raise no word, and nobody counts on it.
    let plan = text("quantize_gather_gemm");
    let torn = plan.replace(post, "").replace(peers, "wait e17 sig3[(rank + 1) % 2, i] >= 1");
    assert!(wrong("quantize_gather_gemm", &torn).contains("rule 1"), "{torn}");
}

/// What a GEMM quantises on the way.
#[test]
fn other_factors_of_results_are_refused() {
    let row = "rank * 500 + i * 128 : min(128, 500 - i * 128)";
    let blocks = "j * 128 / 128 : (min(128, 1536 - j * 128) + 127) / 128";
    let factors = format!("access e1: write buf3 @ rank [{blocks}, {row}] at end");
    let with =
        |blocks: &str, row: &str| format!("access e1: write buf3 @ rank [{blocks}, {row}] at end");
    let other = "rank * 500 + (i * 128 + 128) % 512 : min(128, 500 - i * 128)";
    refused(
        "swiglu_quantized",
        &[
            // To the columns of another type.
            ("save,swiglu,quantize_e5m2", "save,swiglu,quantize_e4m3", "e5m2"),
            ("save,swiglu,quantize_e5m2", "save,quantize_e5m2,swiglu", ""),
            // Of other blocks and rows, of more, and of none.
            (&factors, &with("(j + 1) % 12 : 1", row), ""),
            (&factors, &with(blocks, other), ""),
            (&factors, &with("0 : 2", row), "of blocks"),
            (&format!("  {factors}\n"), "", ""),
            // Of halves of blocks.
            ("block=128x256x64 stages=4 b=kn", "block=128x128x64 stages=4 b=kn", ""),
        ],
    );
}

#[test]
fn blocks_and_rows_are_whole() {
    let quantize = "x -> quantize(e4m3, 1, 128)";
    for (types, body, columns, says) in [
        ("x: bf16[M, K] @ shard(1)", quantize, 384, "cut blocks of 128 of 384"),
        ("x: bf16[M, K]", quantize, 264, "no multiples of 16 bytes"),
        ("x: e4m3[M, K] scaled(1, 128) @ shard(1)", "x -> dequantize", 384, "cut blocks of 128"),
        (
            "x: bf16[M, K], w: bf16[K, N] @ shard(1)",
            "gemm(x, w) -> quantize(e4m3, 1, 128)",
            64,
            "cut blocks",
        ),
        (
            "x: bf16[M, K]",
            "let q = x -> quantize(e4m3, 1, 128); (q, q)",
            256,
            "it is a result twice",
        ),
    ] {
        let source = format!("fn f({types}) {{ {body} }}");
        let shapes: &[(&str, &[u64])] = &[("x", &[64, columns]), ("w", &[columns, 320])];
        let n = if source.contains("w: ") { 2 } else { 1 };
        let error = lowered(&source, 2, &shapes[..n]);
        let error = error.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(says), "{source}: {error}");
    }
}

/// A bf16 of every kind in blocks of their own, and blocks of one kind alone.
#[test]
fn every_kind_of_block() {
    let columns = 8 * 128 + 16;
    let kinds: [&[f32]; 9] = [
        &[0.0, -0.0],
        &[448.0, -1.0, 17.5],
        &[f32::NAN, 3.0],
        &[f32::INFINITY, 3.0],
        &[1e-38, 1e-39, -3e-40],
        &[-1e-40],
        &[3.3e38, 1.0],
        &[0.1, -0.2, 0.3, 1.0],
        &[-7.0, 0.5],
    ];
    let x: Vec<f32> = (0..2 * columns)
        .map(|i| {
            let kind = kinds[i % columns / 128];
            DType::Bf16.round(kind[(i / columns + i) % kind.len()])
        })
        .collect();
    for narrow in [DType::E4m3, DType::E5m2] {
        let source = format!("fn f(x: bf16[M, K]) {{ x -> quantize({narrow}, 1, 128) }}");
        let plan = lowered(&source, 1, &[("x", &[2, columns as u64])]).expect("a plan");
        let mut found = BTreeMap::new();
        let output = |_: i64, _: usize, b: mk_codegen::plan::BufId, _: &[usize], v: &[f32]| {
            found.insert(b.index(), v.to_vec());
        };
        let input = |_: i64, _: usize, _, _: &[usize]| x.clone();
        let table = |_: i64, _: usize, _| Vec::new();
        let options = Options { launches: 1, ..Options::default() };
        sim::run(&plan, &mut Callbacks { input, table, output }, &options).expect("runs");
        let [values, factors] = [1, 2].map(|b| &found[&b]);
        let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
        let largest = narrow.format().float.expect("a float").largest();
        assert_eq!(largest, if narrow == DType::E4m3 { 448.0 } else { 57344.0 });
        for (i, x) in x.iter().enumerate() {
            let (row, block) = (i / columns, i % columns / 128);
            let of_block = kinds[block].iter().map(|x| DType::Bf16.round(*x).abs());
            let nan = kinds[block].iter().any(|x| x.is_nan());
            let most = of_block.fold(0.0, f32::max);
            let factor = match () {
                () if nan => f32::NAN,
                () if most == 0.0 => 1.0,
                () => most / largest,
            };
            let stored = factors[block * 2 + row];
            assert!(same(stored, factor), "{narrow} {block}: {stored} and {factor}");
            let want = narrow.round(x / factor);
            assert!(same(values[i], want), "{narrow} {block}: {x} is {} and {want}", values[i]);
            // What it stands for is within half a last place of its own, and of the least number's.
            if factor.is_finite() && factor.is_normal() {
                let (back, ulp) =
                    (values[i] * factor, if narrow == DType::E4m3 { 16.0 } else { 8.0 });
                let least =
                    f64::from(factor) * 2f64.powi(if narrow == DType::E4m3 { -10 } else { -17 });
                let off = f64::from((back - x).abs());
                assert!(off <= f64::from(x.abs()) / ulp * 1.01 + least * 1.01, "{x}: {back}");
            }
        }
    }
}
