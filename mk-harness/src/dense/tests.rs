use super::*;
use crate::Case;
use crate::math;
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

fn bind(source: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(source).expect("parses");
    let dims = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

fn dense<'a>(program: &'a Program, bound: &'a Bound, ranks: usize) -> Dense<'a> {
    Dense::new(Inputs::new(Case { program, bound, ranks }, 3), 1)
}

#[test]
fn the_sum_over_a_sharded_depth_is_the_product() {
    let (program, bound) = bind(
        "fn f(x: bf16[M, K] @ shard(1), w: bf16[K, N] @ shard(0)) { gemm(x, w) -> all_reduce }",
        &[("M", 5), ("K", 7), ("N", 3)],
    );
    let d = dense(&program, &bound, 4);
    let whole = |id| match d.rows(id, &(0..d.extent(id, 0)).collect::<Vec<_>>()) {
        Ok(Value::Whole(m)) => m.data,
        other => panic!("{other:?}"),
    };
    let (a, b) = (whole(program.tensors()[0].id), whole(program.tensors()[1].id));
    let mut want = vec![0.0; 15];
    math::matmul(&mut want, &a, &b, 7, 3);
    for rank in d.local(program.results()[0]).expect("evaluates") {
        assert!(rank.iter().zip(&want).all(|(x, y)| (x - y).abs() < 1e-12));
    }
}

#[test]
fn chosen_rows_are_the_rows_of_the_whole() {
    let (program, bound) = bind(
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1), c: bf16[N] @ shard(0),
              y: bf16[M, N] @ shard(1), v: bf16[N, K] @ shard(0)) {
             gather(x) -> gemm(w) -> bias(c) -> gelu -> mul(y) -> cast(bf16) -> gemm(v) -> reduce_scatter
         }",
        &[("M", 10), ("K", 6), ("N", 9)],
    );
    let d = dense(&program, &bound, 3);
    let result = program.results()[0];
    let local = d.local(result).expect("evaluates");
    assert_eq!(local.iter().map(Vec::len).collect::<Vec<_>>(), [24, 24, 12]);
    let Value::Whole(rows) = d.rows(result, &[1, 4, 9]).expect("evaluates") else {
        panic!("reduced")
    };
    assert_eq!(rows.data[0..6], local[0][6..12]);
    assert_eq!(rows.data[6..12], local[1][0..6]);
    assert_eq!(rows.data[12..18], local[2][6..12]);
}

#[test]
fn chosen_tokens_are_sums_of_their_own_rows() {
    let (program, bound) = bind(
        "fn f(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
              w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
             dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
         }",
        &[("T", 12), ("H", 5), ("K", 2), ("E", 4), ("F", 3), ("R", 1024)],
    );
    let d = dense(&program, &bound, 2);
    let result = program.results()[0];
    let of = |rows: &[usize]| match d.rows(result, rows).expect("evaluates") {
        Value::Whole(m) => m.data,
        Value::Contributions(_) => panic!("tokens are whole"),
    };
    let all = of(&(0..12).collect::<Vec<_>>());
    assert!(all.iter().all(|x| x.is_finite() && *x != 0.0));
    assert_eq!(of(&[1, 7, 11]), [&all[5..10], &all[35..40], &all[55..60]].concat());
    // Each by hand.
    let input = |i: usize, rows: usize| {
        let rows: Vec<usize> = (0..rows).collect();
        d.rows(ValueId::new(i), &rows).expect("evaluates").on(0).expect("is there").data.clone()
    };
    let (ids, x, gate) = (d.ids(ValueId::new(1)), input(0, 12), input(2, 12));
    let (w1, w2) = (input(3, 4), input(4, 4));
    for (t, j) in (0..12).flat_map(|t| (0..5).map(move |j| (t, j))) {
        let of_slot = |slot: usize| {
            let e = ids[t * 2 + slot] as usize;
            let sum = |g: usize, f: usize| -> f64 {
                (0..5).map(|k| x[t * 5 + k] * w1[((e * 5 + k) * 2 + g) * 3 + f]).sum()
            };
            let hidden = |f: usize| sum(0, f) / (1.0 + (-sum(0, f)).exp()) * sum(1, f);
            let y: f64 = (0..3).map(|f| hidden(f) * w2[(e * 3 + f) * 5 + j]).sum();
            y * gate[t * 2 + slot]
        };
        let want = of_slot(0) + of_slot(1);
        assert!((all[t * 5 + j] - want).abs() < 1e-12, "token {t}, column {j}");
    }
}

#[test]
fn gate_is_index_0_and_up_is_1() {
    let (program, bound) = bind(
        "fn f(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2)) { gather(x) -> gemm(w) -> swiglu }",
        &[("M", 5), ("K", 4), ("F", 3)],
    );
    let d = dense(&program, &bound, 2);
    let whole = |i: usize, rows: usize| {
        let rows: Vec<usize> = (0..rows).collect();
        d.rows(ValueId::new(i), &rows).expect("evaluates").on(0).expect("is there").data.clone()
    };
    let (x, w, y) = (whole(0, 5), whole(1, 4), whole(4, 5));
    for (m, f) in (0..5).flat_map(|m| (0..3).map(move |f| (m, f))) {
        let dot =
            |which: usize| (0..4).map(|k| x[m * 4 + k] * w[k * 6 + which * 3 + f]).sum::<f64>();
        let (gate, up) = (dot(0), dot(1));
        let want = gate / (1.0 + (-gate).exp()) * up;
        assert!((y[m * 3 + f] - want).abs() < 1e-12);
    }
    // Of three columns, rank 0 has two.
    let local = d.local(program.results()[0]).expect("evaluates");
    assert_eq!(local[0][..2], y[..2]);
    assert_eq!(local[1][..2], [y[2], y[5]]);
}

#[test]
fn transposed_operands_are_read_the_other_way_round() {
    let (program, bound) = bind(
        "fn f(x: bf16[M, K] @ shard(0), dy: bf16[M, N] @ shard(0), w: bf16[K, N] @ shard(0),
              dz: bf16[M, N] @ shard(1), v: bf16[K, N] @ shard(1)) {
             let dx = gather(dy) -> gemm(w.t);
             let dw = gemm(x.t, dy) -> all_reduce;
             let du = gemm(dz, v.t) -> reduce_scatter;
             (dx, dw, du)
         }",
        &[("M", 5), ("K", 7), ("N", 4)],
    );
    let d = dense(&program, &bound, 3);
    let [x, dy, w, dz, v] = [(0, 5), (1, 5), (2, 7), (3, 5), (4, 7)].map(|(i, rows)| {
        let rows: Vec<usize> = (0..rows).collect();
        d.rows(ValueId::new(i), &rows).expect("evaluates").on(0).expect("is there").data.clone()
    });
    let check = |result: usize, want: &dyn Fn(usize, usize) -> f64, cols: usize| {
        let id = program.results()[result];
        let Ok(Value::Whole(m)) = d.rows(id, &[3, 1]) else { panic!("whole") };
        for (row, values) in [3, 1].iter().zip(m.data.chunks_exact(cols)) {
            for (col, value) in values.iter().enumerate() {
                assert!((value - want(*row, col)).abs() < 1e-12, "{result}: {row}, {col}");
            }
        }
    };
    let dot = |n: usize, term: &dyn Fn(usize) -> f64| (0..n).map(term).sum::<f64>();
    check(0, &|m, k| dot(4, &|n| dy[m * 4 + n] * w[k * 4 + n]), 7);
    check(1, &|k, n| dot(5, &|m| x[m * 7 + k] * dy[m * 4 + n]), 4);
    check(2, &|m, k| dot(4, &|n| dz[m * 4 + n] * v[k * 4 + n]), 7);
    let local = |i: usize| d.local(program.results()[i]).expect("evaluates");
    let lengths = |i: usize| local(i).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!([lengths(0), lengths(1), lengths(2)], [[15, 15, 5], [28; 3], [14, 14, 7]]);
}

#[test]
fn replicas_agree_and_contributions_differ() {
    let (program, bound) = bind(
        "fn f(x: bf16[M, K] @ partial, y: bf16[M, K] @ replicate) { (x -> mul(y), y -> relu) }",
        &[("M", 3), ("K", 4)],
    );
    let d = dense(&program, &bound, 2);
    let local = |i: usize| d.local(program.results()[i]).expect("evaluates");
    assert_ne!(local(0)[0], local(0)[1]);
    assert_eq!(local(1)[0], local(1)[1]);
}
