//! Gradients of matrices of experts: sums over ragged rows, whose pads are no numbers.

use mk_codegen::{
    emit::{self, library},
    passes::{self, LowerError},
    plan::{BufId, Entity, Plan, Space, TabId},
    settings::{self, Config},
    sim::{self, Callbacks, Options},
    valid,
};
use mk_syntax::Program;
use std::collections::BTreeMap;

const WGRAD: &str =
    "fn wgrad(x: bf16[R, K] @ shard(0), counts: i32[E] @ shard(0), dy: bf16[R, N] @ shard(0)) {
    ragged(x, counts) -> grouped_wgrad(dy)
}";
const ROUTED: &str =
    "fn wgrad(x: bf16[R, K] @ shard(0), ids: i32[T, S] @ shard(0), dy: bf16[R, N] @ shard(0)) {
    ragged(x, ids) -> grouped_wgrad(dy, experts = E)
}";
const MAIN: &str = "fn wgrad(x: bf16[R, K], counts: i32[E], dy: bf16[R, N], main: f32[E, K, N]) {
    ragged(x, counts) -> grouped_wgrad(dy) -> cast(f32) -> add(main)
}";

type Dims<'a> = &'a [(&'a str, u64)];
const SMALL: Dims<'_> = &[("R", 768), ("K", 72), ("E", 4), ("N", 136)];
const TOKENS: Dims<'_> = &[("R", 2048), ("K", 72), ("E", 4), ("N", 136), ("T", 70), ("S", 2)];
// Two ranks have three experts and two.
const UNEVEN: Dims<'_> = &[("R", 2048), ("K", 72), ("E", 5), ("N", 136), ("T", 70), ("S", 2)];

fn plan(source: &str, dims: Dims<'_>, ranks: u32, set: &str) -> Result<Plan, LowerError> {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let mut config = Config { ranks, ..Config::default() };
    settings::read(&mut config, set).expect("settings");
    passes::compile(&program, &bound, &config).map(|(plan, _)| plan)
}

#[test]
fn texts() {
    for (name, source, dims, ranks, set) in [
        ("wgrad", WGRAD, SMALL, 2, ""),
        ("wgrad_routed", ROUTED, TOKENS, 2, "block=128x128x64"),
        ("wgrad_uneven", ROUTED, UNEVEN, 2, "block=128x128x64"),
        ("wgrad_main", MAIN, SMALL, 1, ""),
    ] {
        let plan = plan(source, dims, ranks, set).unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
        insta::assert_snapshot!(name, text);
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("cuda_{name}"), generated);
    }
}

/// A number for an element: a multiple of a power of two, so that sums are exact.
fn number(seed: usize, i: usize) -> f32 {
    let x = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64 * 0x2545_f491);
    ((x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 % 17.0 / 8.0 - 1.0
}

/// Rows of each of a rank's experts: some, none, one less than a step has, all in one.
fn counts(epoch: i64, rank: usize, experts: usize, blocks: usize) -> Vec<usize> {
    let mut left = blocks;
    let turn = epoch as usize + rank;
    let one = |e: usize| {
        let wanted = match turn % 4 {
            0 => [63, 0, 130, 1][e % 4],
            1 => usize::from(e == turn % experts) * 128 * blocks,
            2 => 65 * (e % 2),
            _ => 0,
        };
        let n = wanted.min(left * 128);
        left -= n.div_ceil(128);
        n
    };
    (0..experts).map(one).collect()
}

#[test]
fn pads_are_no_numbers_and_experts_without_rows_have_zeros() {
    for (source, ranks, set) in
        [(WGRAD, 1, ""), (WGRAD, 2, "block=128x64x64"), (WGRAD, 4, ""), (MAIN, 1, "")]
    {
        let (r, e) = (768 * u64::from(ranks), 4 * u64::from(ranks));
        let dims = [("R", r), ("K", 72), ("E", e), ("N", 136)];
        let plan = plan(source, &dims, ranks, set).unwrap_or_else(|e| panic!("{source}: {e}"));
        let [x, of_counts, dy] = [0, 1, 2].map(BufId::new);
        let input = |epoch: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
            let rows = counts(epoch, rank, 4, 6);
            if id == of_counts {
                return rows.iter().map(|n| *n as f32).collect();
            }
            if id != x && id != dy {
                return (0..shape.iter().product()).map(|i| number(9, i)).collect();
            }
            let mut all = vec![f32::NAN; shape[0] * shape[1]];
            let mut at = 0;
            for n in rows {
                let cells = at * shape[1]..(at + n) * shape[1];
                for (i, cell) in all.iter_mut().enumerate().take(cells.end).skip(cells.start) {
                    *cell = number(usize::from(id == x) + rank, i);
                }
                at += n.next_multiple_of(128);
            }
            all
        };
        let table = |_: i64, _: usize, id: TabId| panic!("{id} is the caller's tensor");
        let mut found = Vec::new();
        let output = |epoch: i64, rank: usize, id: BufId, shape: &[usize], values: &[f32]| {
            if plan.buffers[id].space == Space::Out {
                found.push((epoch, rank, shape.to_vec(), values.to_vec()));
            }
        };
        let options = Options { launches: 4, check: true, ..Options::default() };
        sim::run(&plan, &mut Callbacks { input, table, output }, &options)
            .unwrap_or_else(|e| panic!("{source}: {e}"));
        assert_eq!(found.len(), 4 * ranks as usize);
        for (epoch, rank, shape, values) in found {
            let [a, b] = [(x, 72), (dy, 136)].map(|(id, n)| input(epoch, rank, id, &[768, n]));
            let mut at = 0;
            for (e, n) in counts(epoch, rank, 4, 6).into_iter().enumerate() {
                for (k, j) in (0..72).flat_map(|k| (0..136).map(move |j| (k, j))) {
                    let i = (e * shape[1] + k) * shape[2] + j;
                    let terms = (at..at + n).map(|r| f64::from(a[r * 72 + k] * b[r * 136 + j]));
                    let main = if source == MAIN { f64::from(number(9, i)) } else { 0.0 };
                    let want = terms.sum::<f64>() + main;
                    let off = (f64::from(values[i]) - want).abs();
                    assert!(off <= want.abs() / 256.0, "{e} {k} {j}: {}, not {want}", values[i]);
                }
                at += n.next_multiple_of(128);
            }
        }
    }
}

/// Every wait, every post that somebody waits for, and what looks rows up is needed.
#[test]
fn nothing_can_be_left_out() {
    for (source, dims, ranks) in [(WGRAD, SMALL, 2), (ROUTED, TOKENS, 2)] {
        let plan = plan(source, dims, ranks, "").expect("a plan");
        let mut n = 0;
        for (id, f) in plan.families.iter() {
            for i in 0..f.waits.len() {
                let mut less = plan.clone();
                less.families[id].waits.remove(i);
                // What is ordered by way of another table, a kernel must be told, too.
                let refused = valid::verify(&less).is_err() || emit::emit(&less).is_err();
                assert!(refused, "{source} {}: wait {i}", f.name);
                n += 1;
            }
            for i in (0..f.accesses.len()).filter(|i| f.accesses[*i].operand.name() == "tab") {
                let mut less = plan.clone();
                less.families[id].accesses.remove(i);
                assert!(valid::verify(&less).is_err(), "{source} {}: access {i}", f.name);
                n += 1;
            }
        }
        assert!(n >= 3, "{n}");
    }
}

/// Rows that begin in another expert, lie behind what is there, or of operands of other rows, are no gradient.
#[test]
fn other_rows_are_found() {
    let text = plan(WGRAD, SMALL, 2, "").expect("a plan").to_string();
    for (line, other) in [
        ("[tab2[e] : min(tab0[e], 384 - tab2[e])", "[tab2[e] : tab0[e]"),
        ("access b: read buf2 @ rank [tab2[e] :", "access b: read buf2 @ rank [tab2[e + 1] :"),
        (
            "access b: read buf2 @ rank [tab2[e] : min(tab0[e],",
            "access b: read buf2 @ rank [tab2[e] : min(tab0[1 - e],",
        ),
        ("leaf tabulate_begins rows=128", "leaf tabulate_begins rows=64"),
        ("access dst: write buf5 @ rank [0 : 3]", "access dst: write buf5 @ rank [0 : 2]"),
    ] {
        let changed = text.replace(line, other);
        assert_ne!(changed, text, "{line}\n{text}");
        let refused = match changed.parse::<Plan>() {
            Ok(plan) => valid::verify(&plan).is_err(),
            Err(_) => true,
        };
        assert!(refused, "{other}");
    }
}

#[test]
fn what_has_no_kernel_is_refused() {
    let with = |name: &str, n: u64| -> Vec<(&str, u64)> {
        SMALL.iter().map(|d| if d.0 == name { (d.0, n) } else { *d }).collect()
    };
    for (text, source, dims, ranks) in [
        ("whole blocks of 128", WGRAD, with("R", 700), 1),
        ("4 experts over 3 ranks", WGRAD, with("R", 1152), 3),
        ("multiples of 8", WGRAD, with("N", 131), 1),
        (
            "side by side",
            "fn f(x: bf16[R, K], n: i32[E], dy: bf16[R, 2, N]) { ragged(x, n) -> grouped_wgrad(dy) }",
            SMALL.to_vec(),
            1,
        ),
        (
            "products of the same rows stand beside it",
            "fn f(x: bf16[R, K], n: i32[E], dy: bf16[R, N], w: bf16[E, K, N]) {
                (ragged(x, n) -> grouped_wgrad(dy), ragged(x, n) -> grouped_gemm(w))
            }",
            SMALL.to_vec(),
            1,
        ),
    ] {
        let said = plan(source, &dims, ranks, "").map_or_else(|e| e.to_string(), |p| p.to_string());
        assert!(said.contains(text), "{said}");
    }
}
