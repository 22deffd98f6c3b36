//! Runs on the CPU executor, compared with the dense reference.

use crate::command::mk;

const MK: &str = "examples/gather_gemm.mk";

#[track_caller]
fn passes(args: &[&str]) -> String {
    let text = mk(&[&["run"], args, &["--device", "cpu"]].concat()).ok();
    assert!(text.lines().last().is_some_and(|l| l.starts_with("PASS: ")), "{text}");
    text
}

#[test]
fn examples_run_anywhere() {
    for file in ["gather_gemm", "mlp_up", "gemm", "gather", "ring_attention"] {
        let text = passes(&[&format!("examples/{file}.mk"), "--launches", "1"]);
        assert!(text.contains("launch 1, rank 3: error"), "{text}");
        assert!(text.contains("every element within its bound"), "{text}");
        // What is only moved arrives as it is.
        assert!(file != "gather" || text.contains("worst error 0.00e0"), "{text}");
    }
}

/// Rings of keys and of queries: parts of the backward of attention, against f64.
#[test]
fn gradients_of_attention() {
    let own = "q: bf16[1, S, 2, 64] @ zigzag(1), do: bf16[1, S, 2, 64] @ zigzag(1), stats: f32[1, 2, S, 4] @ zigzag(2)";
    let kv = "k: bf16[1, S, 1, 64] @ zigzag(1), v: bf16[1, S, 1, 64] @ zigzag(1)";
    for body in [
        "ring(k, v) -> attention_dq(q, do, stats, causal)",
        "let dk = ring(q, do, stats) -> attention_dk(k, v, causal); (dk, dk -> attention_dv)",
    ] {
        let pipeline = format!("fn f<S: dyn <= 200>({own}, {kv}) {{ {body} }}");
        let text = passes(&[&pipeline, "--ranks", "2", "--dim", "S=150", "--launches", "1"]);
        assert!(text.contains("every element within its bound"), "{text}");
    }
}

#[test]
fn every_schedule() {
    for schedule in ["random", "reversed", "starve:0", "starve:3", "epoch_apart", "srd"] {
        let small = [MK, "--dim", "M=200", "--dim", "K=40", "--dim", "N=120"];
        let text = passes(&[&small[..], &["--schedule", schedule, "--seed", "7"]].concat());
        assert!(text.contains(&format!("schedule  {schedule}, seed 7")), "{text}");
    }
    mk(&["run", MK, "--schedule", "starve:9"]).fails(1, &["the world has 4 ranks"]);
}

#[test]
fn every_number_of_ranks() {
    for ranks in ["1", "2", "3", "8"] {
        passes(&[MK, "--ranks", ranks, "--dim", "M=300", "--dim", "N=100", "--dim", "K=33"]);
    }
}

#[test]
fn fewer_rows_than_ranks() {
    let text = passes(&[MK, "--dim", "M=3", "--dim", "N=5", "--dim", "K=8", "--ranks", "8"]);
    assert!(text.contains("rank 7: holds no part of the result"), "{text}");
}

#[test]
fn reductions_and_chains() {
    for (pipeline, shapes) in [
        ("gemm(a, b) -> reduce_scatter", &["a=200x96", "b=96x72"][..]),
        ("gemm(a, b) -> all_reduce", &["a=130x96", "b=96x72"]),
        ("gather(a) -> gemm(b) -> reduce_scatter", &["a=130x40", "b=40x72"]),
        (
            "gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter",
            &["x=130x40", "w=40x96", "v=96x40"],
        ),
        (
            "gemm(a, b) -> mul(y) -> silu -> scale(0.5) -> add(z) -> relu",
            &["a=130x40", "b=40x72", "y=130x72", "z=130x72"],
        ),
        ("reduce_scatter(x)", &["x=130x40"]),
        ("all_reduce(x)", &["x=130x40"]),
    ] {
        let mut args = vec![pipeline];
        args.extend(shapes.iter().flat_map(|s| ["--shape", *s]));
        passes(&args);
    }
}

#[test]
fn half_precision() {
    let source = "pub fn f(x: f16[M, K] @ shard(0), w: f16[K, N] @ shard(1)) { gather(x) -> gemm(w) -> silu }";
    passes(&[source, "--dim", "M=140", "--dim", "K=48", "--dim", "N=96"]);
}

#[test]
fn one_seed_is_one_result() {
    let small = [MK, "--dim", "M=96", "--dim", "N=96", "--dim", "K=32", "--launches", "2"];
    let run = |seed| passes(&[&small[..], &["--seed", seed]].concat());
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn only_gpus_are_traced() {
    // Where there are GPUs, it asks for fewer ranks.
    mk(&["trace", MK, "--ranks", "64"]).fails(1, &["error: ", "= help: "]);
    mk(&["trace", MK, "--device", "cpu"]).fails(2, &["invalid value 'cpu'"]);
    mk(&["trace", "tests/plans/none.plan"]).fails(1, &["cannot read"]);
}

#[test]
fn the_list_of_gpus_sets_the_ranks() {
    // Said before anything is looked for.
    for command in ["run", "trace", "tune"] {
        let args = [command, MK, "--gpus", "0,0,0", "--ranks", "4"];
        mk(&args).fails(1, &["`--ranks 4` differs from `--gpus`, which has 3 ranks", "= help: "]);
        mk(&[command, "gather(a) -> gemn(b)", "--gpus", "0,0"]).fails(1, &["unknown operation"]);
        mk(&[command, MK, "--gpus", "0,x"]).fails(2, &["invalid value 'x' for '--gpus <LIST>'"]);
    }
    let plan = "tests/plans/gather_gemm.plan";
    mk(&["run", plan, "--gpus", "0,0"]).fails(1, &["`--gpus` needs GPUs"]);
    mk(&["tune", MK, "--gpus", "0,0", "--device", "model"]).fails(1, &["`--gpus` says where"]);
    mk(&["run", MK, "--gpus", "0,0", "--device", "cpu"]).fails(1, &["`--gpus` needs GPUs"]);
    // GPUs that are named are meant: there is no way around their absence.
    mk(&["run", MK, "--gpus", "99,99,99"]).fails(1, &["error: ", "= help: use `--device cpu`"]);
}

#[test]
fn options_of_another_device() {
    let error = mk(&["run", MK, "--device", "cpu", "--time"]);
    error.fails(1, &["`--time` needs GPUs, and the device is cpu"]);
    let error = mk(&["run", MK, "--device", "cuda", "--schedule", "random"]);
    error.fails(1, &["orders the steps of the CPU executor", "= help: "]);
    mk(&["run", MK, "--device", "cuda", "--ranks", "64"])
        .fails(1, &["error: ", "= help: use `--device cpu`"]);
    // Nodes of one process are joined by threads that copy, and need their GPUs.
    let nodes = ["--device", "cuda", "--ranks", "64", "--nodes", "2"];
    let over =
        |transport: &'static str| [&["run", MK], &nodes[..], &["--transport", transport]].concat();
    mk(&over("ofi")).fails(1, &["are joined by `loopback`", "= help: use `--transport loopback`"]);
    mk(&over("loopback")).fails(1, &["error: ", "= help: use `--device cpu`"]);
    mk(&["trace", MK, "--ranks", "64", "--nodes", "2"]).fails(1, &["error: ", "= help: "]);
    let alone =
        ["`--shape-link` is of the network between nodes", "= help: say how many by `--nodes N`"];
    mk(&["trace", MK, "--shape-link", "50GB/s,5us"]).fails(1, &alone);
}
