//! Attention between exchanges of heads for parts of the sequence, as one kernel: proved, run on the executor against
//! f64, and compiled.

mod attend;
#[path = "sweep/drawn.rs"]
mod drawn;

use attend::{SMALL, Shape, withheld};
use drawn::some;
use mk_codegen::{
    emit,
    passes::{LowerError, compile, lower},
    plan::Plan,
    settings::Config,
    sim::Schedule,
};
use mk_harness::{Case, CpuOptions, run_on_cpu};
use mk_runtime::{
    Error,
    jit::{self, JitOptions, find_nvrtc},
};
use mk_skip::{Need, skip};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

const IN: &str = "all_to_all(split = 2, concat = 1)";
const OUT: &str = " -> all_to_all(split = 1, concat = 2)";

/// Queries, keys and values by heads; results by heads, or `back` by parts of the sequence.
fn exchanged(shape: Shape, words: &str, back: &str) -> (Program, Bound) {
    let Shape { dtype: t, batch, sequence, heads: [h, g], depth } = shape;
    let kv = format!("{t}[B, S, G, D] @ shard(1)");
    read(
        &format!(
            "fn f(q: {t}[B, S, H, D] @ shard(1), k: {kv}, v: {kv}) {{ let x = k -> {IN}; let y = v -> {IN}; \
             q -> {IN} -> attention(x, y{words}){back} }}"
        ),
        &[("B", batch), ("S", sequence), ("H", h), ("G", g), ("D", depth)],
    )
}

fn read(text: &str, dims: &[(&str, u64)]) -> (Program, Bound) {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    (program, bound)
}

/// Few CTAs, so that each has several tiles.
fn on(ranks: u32) -> Config {
    let intra_comm_sms = (ranks > 1).then_some(2);
    Config { ranks, compute_sms: Some(3), intra_comm_sms, copy_stages: 4, ..Config::default() }
}

#[track_caller]
fn right(pipeline: &(Program, Bound), config: &Config, schedules: &[Schedule]) -> Plan {
    let (program, bound) = pipeline;
    let (plan, _) = compile(program, bound, config).unwrap_or_else(|e| panic!("{program}: {e}"));
    emit::emit(&plan).unwrap_or_else(|e| panic!("{program}: {e}"));
    let size = |name: &String| plan.mesh.axis(name).map_or(1, |axis| axis.size as usize);
    let ranks = program.mesh_axes().iter().map(size).product();
    for (seed, schedule) in (0..).zip(schedules) {
        let case = Case { program, bound, ranks };
        let options =
            CpuOptions { schedule: *schedule, seed, launches: 2, ..CpuOptions::default() };
        let run = run_on_cpu(case, &plan, &options).expect("runs");
        for (rank, judged) in run.judged.iter().flatten().enumerate() {
            assert!(
                judged.passes(),
                "{program} on {:?}, {schedule:?}, {rank}: {judged}",
                config.mesh
            );
        }
    }
    plan
}

#[test]
fn worlds_and_masks() {
    let heads = |ranks: u64, of: u64| [ranks * of, ranks];
    for ranks in some([1, 2, 3], 3) {
        for words in ["", ", causal", ", causal, window = 40", ", softcap = 30, scale = 0.25"] {
            let shape = Shape { heads: heads(ranks.into(), 2), ..SMALL };
            right(&exchanged(shape, words, OUT), &on(ranks), &[Schedule::Random]);
        }
        // Results stay with their heads; two batches; wider heads; a sequence that leaves the last ranks little.
        let shape = Shape { heads: heads(ranks.into(), 1), batch: 2, ..SMALL };
        right(&exchanged(shape, ", causal", ""), &on(ranks), &[Schedule::Random]);
        let shape = Shape { heads: heads(ranks.into(), 1), depth: 128, sequence: 13, ..SMALL };
        right(&exchanged(shape, ", causal", OUT), &on(ranks), &[Schedule::Random]);
    }
    let shape = Shape { dtype: "f16", heads: [8, 4], sequence: 5, ..SMALL };
    right(&exchanged(shape, "", OUT), &on(4), &[Schedule::Random]);
}

#[test]
fn logarithms_stay_with_their_heads() {
    let kv = "bf16[B, S, G, D] @ shard(1)";
    let text = format!(
        "fn f(q: bf16[B, S, H, D] @ shard(1), k: {kv}, v: {kv}) {{ let x = k -> {IN}; let y = v -> {IN}; \
         let o = q -> {IN} -> attention(x, y, causal); (o, o -> lse) }}"
    );
    let dims = [("B", 1), ("S", 130), ("H", 4), ("G", 2), ("D", 64)];
    right(&read(&text, &dims), &on(2), &[Schedule::Random]);
    let both = text.replace("(o, o -> lse)", &format!("(o{OUT}, o -> lse)"));
    right(&read(&both, &dims), &on(2), &[Schedule::Random]);
}

#[test]
fn any_order_of_steps() {
    let pipeline = exchanged(Shape { heads: [4, 2], sequence: 150, ..SMALL }, ", causal", OUT);
    let plan = right(&pipeline, &on(2), &Schedule::all(2));
    right(&pipeline, &on(2), &withheld(&plan));
}

/// Over one axis of a mesh: ranks along the others have sequences of their own.
#[test]
fn over_an_axis_of_a_mesh() {
    let kv = "bf16[B, S, G, D] @ shard(1, cp)";
    let into = IN.replace("(split", "(cp, split");
    let text = format!(
        "fn f(q: bf16[B, S, H, D] @ shard(1, cp), k: {kv}, v: {kv}) {{ let x = k -> {into}; let y = v -> {into}; \
         q -> {into} -> attention(x, y) -> all_to_all(cp, split = 1, concat = 2) }}"
    );
    let dims = [("B", 1), ("S", 100), ("H", 2), ("G", 2), ("D", 64)];
    for mesh in [[("dp", 2), ("cp", 2)], [("cp", 2), ("dp", 2)]] {
        let mesh = mesh.map(|(name, n)| (name.to_string(), n)).to_vec();
        right(&read(&text, &dims), &Config { mesh, ..on(4) }, &[Schedule::Random]);
    }
}

/// Heads over `up`, and parts of the sequence over `cp`: of queries `before` the exchange, and results behind it.
fn over_both(words: &str, back: bool) -> String {
    let into = IN.replace("(split", "(up, split");
    let ty = |h: &str| format!("bf16[B, S, {h}, D] @ shard(1, cp) @ shard(1, up)");
    let back = if back { OUT.replace("(split", "(up, split") } else { String::new() };
    format!(
        "fn f(q: {}, k: {kv}, v: {kv}) {{ let h = q -> {into}; let x = k -> {into}; let y = v -> {into}; \
         ring(x, y, cp) -> attention(h{words}){back} }}",
        ty("H"),
        kv = ty("G")
    )
}

fn mesh(axes: &[(&str, u32)]) -> Config {
    let mesh: Vec<_> = axes.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    Config { mesh, ..on(axes.iter().map(|(_, n)| n).product()) }
}

/// Heads over one axis, a ring over the other: either innermost, axes of one rank, a third axis beside.
#[test]
fn with_a_ring_over_another_axis() {
    for axes in [
        &[("cp", 2), ("up", 2)][..],
        &[("up", 2), ("cp", 2)],
        &[("cp", 2), ("up", 3)],
        &[("up", 3), ("cp", 2)],
        &[("cp", 4), ("up", 2)],
        &[("up", 2), ("cp", 4)],
        &[("cp", 1), ("up", 2)],
        &[("cp", 2), ("up", 1)],
        &[("up", 2), ("dp", 2), ("cp", 2)],
    ] {
        let of = |name: &str| axes.iter().find(|(axis, _)| *axis == name).map_or(1, |(_, n)| *n);
        let (cp, up) = (u64::from(of("cp")), u64::from(of("up")));
        for (words, back, each) in
            [("", true, 40), (", causal", true, 33), (", causal, window = 40", false, 70)]
        {
            let dims = [("B", 1), ("S", cp * each), ("H", 2 * up), ("G", up), ("D", 64)];
            right(&read(&over_both(words, back), &dims), &mesh(axes), &[Schedule::Random]);
        }
    }
}

/// Documents in a sequence that ranks along both axes share.
#[test]
fn documents_with_a_ring_over_another_axis() {
    for axes in [
        &[("cp", 2), ("up", 2)][..],
        &[("up", 2), ("cp", 2)],
        &[("cp", 3), ("up", 2)],
        &[("cp", 2), ("up", 1)],
        &[("cp", 1), ("up", 2)],
    ] {
        let of = |name: &str| axes.iter().find(|(axis, _)| *axis == name).map_or(1, |(_, n)| *n);
        let (cp, up) = (u64::from(of("cp")), u64::from(of("up")));
        for (words, back) in [("", true), (", causal", true), (", causal, window = 30", false)] {
            let words = format!("{words}, cu_seqlens = cu");
            let text = over_both(&words, back).replace(") { let h", ", cu: i32[N]) { let h");
            let dims = [("B", 1), ("S", cp * 45), ("H", 2 * up), ("G", up), ("D", 64), ("N", 5)];
            right(&read(&text, &dims), &mesh(axes), &[Schedule::Random]);
        }
    }
}

/// Without an attention, several in a kernel, there and back; with a sequence or heads that another axis shares, too.
#[test]
fn exchanges_alone() {
    for (ranks, dims, t) in
        [(1, [1, 9, 2], "bf16"), (2, [2, 300, 4], "f16"), (3, [1, 4, 3], "bf16")]
    {
        let text = format!(
            "fn f(x: {t}[B, S, H, 64] @ shard(1), y: {t}[B, S, H, 72] @ shard(2)) {{ (x -> {IN}, y{OUT}) }}"
        );
        let dims = [("B", dims[0]), ("S", dims[1]), ("H", dims[2])];
        let config = Config { ranks, compute_sms: Some(3), ..Config::default() };
        right(&read(&text, &dims), &config, &Schedule::all(ranks as usize));
    }
    let text = format!(
        "fn f(x: bf16[B, S, H, 4] @ shard(1, cp) @ shard(1, up), y: bf16[B, S, H, 64] @ shard(2, cp) @ shard(2, up)) {{ \
         (x -> {}, y{}) }}",
        IN.replace("(split", "(up, split"),
        OUT.replace("(split", "(up, split")
    );
    for axes in [[("cp", 2), ("up", 3)], [("up", 3), ("cp", 2)], [("cp", 1), ("up", 2)]] {
        let config = Config { intra_comm_sms: None, ..mesh(&axes) };
        right(&read(&text, &[("B", 1), ("S", 22), ("H", 6)]), &config, &[Schedule::Random]);
    }
}

/// What a backward reads is a result of the same kernel: what was exchanged, and results by heads.
#[test]
fn exchanged_values_are_results_too() {
    let all = [
        (&[("cp", 1), ("up", 2)][..], ""),
        (&[("cp", 2), ("up", 2)], ""),
        (&[("up", 3), ("cp", 2)], "causal"),
    ];
    for (axes, ring) in some(all, 3) {
        let ty = |h: &str| format!("bf16[B, S, {h}, D] @ shard(1, cp) @ shard(1, up)");
        let [into, out] = [IN, OUT].map(|words| words.replace("(split", "(up, split"));
        let words = if ring.is_empty() { String::new() } else { format!(", {ring}") };
        let text = format!(
            "fn f(q: {}, k: {kv}, v: {kv}) {{ let h = q -> {into}; let x = k -> {into}; let y = v -> {into}; \
             let o = ring(x, y, cp) -> attention(h{words}); (o{out}, y, o, o -> lse, h, x) }}",
            ty("H"),
            kv = ty("G")
        );
        let dims = [("B", 2), ("S", 134), ("H", 12), ("G", 6), ("D", 64)];
        right(&read(&text, &dims), &mesh(axes), &[Schedule::Random]);
        let some = text.replace(&format!("(o{out}, y, o, o -> lse, h, x)"), "(h, o)");
        right(&read(&some, &dims), &mesh(axes), &[Schedule::Random]);
    }
}

/// Results of attention, and gradients, are exchanged as tiles make them, in the kernel that makes them.
#[test]
fn what_attention_makes_is_exchanged_behind_it() {
    let kv = "bf16[B, S, G, 64] @ HEADS";
    let operands = format!("q: bf16[B, S, H, 64] @ HEADS, k: {kv}, v: {kv}");
    let grads =
        format!("{operands}, d: bf16[B, S, H, 64] @ HEADS, stats: f32[B, H, S, 4] @ TURNED");
    let out = OUT.replace("(split", "(up, split");
    let exchanged = |text: &str, ring: bool, words: &str| {
        let (heads, turned) = match ring {
            false => ("shard(2, up)", "shard(1, up)"),
            true => ("shard(1, cp) @ shard(2, up)", "shard(2, cp) @ shard(1, up)"),
        };
        text.replace("HEADS", heads).replace("TURNED", turned).replace("WORDS", words)
    };
    for (words, ring) in [(", causal, window = 60", false), ("", true)] {
        let [around, queries, keys] = match ring {
            true => [
                "ring(k, v, cp) -> attention(q",
                "ring(k, v, cp) -> attention_dq(q, d, stats",
                "ring(q, d, stats, cp) -> attention_dk(k, v",
            ],
            false => [
                "attention(q, k, v",
                "attention_dq(q, d, stats, k, v",
                "attention_dk(k, v, q, d, stats",
            ],
        };
        for text in [
            format!("fn f({operands}) {{ let o = {around}WORDS); (o{out}, o -> lse) }}"),
            format!("fn f({grads}) {{ {queries}WORDS){out} }}"),
            format!(
                "fn f({grads}) {{ let dk = {keys}WORDS); (dk -> attention_dv{out}, dk{out}) }}"
            ),
            format!("fn f({grads}) {{ let dk = {keys}WORDS); (dk -> attention_dv, dk{out}) }}"),
        ] {
            let axes: &[_] = if ring { &[("up", 2), ("cp", 2)] } else { &[("up", 3)] };
            let up = axes[0].1.into();
            let dims = [("B", 1), ("S", if ring { 140 } else { 151 }), ("H", 2 * up), ("G", up)];
            let text = exchanged(&text, ring, words);
            right(&read(&text, &dims), &mesh(axes), &[Schedule::Random]);
        }
    }
}

/// Sixty-four ranks, either axis innermost.
#[test]
fn eight_by_eight_is_proved() {
    for (axes, words) in [([("cp", 8), ("up", 8)], ", causal"), ([("up", 8), ("cp", 8)], "")] {
        let dims = [("B", 1), ("S", 128), ("H", 8), ("G", 8), ("D", 64)];
        let (program, bound) = read(&over_both(words, true), &dims);
        let (plan, _) = compile(&program, &bound, &mesh(&axes)).unwrap_or_else(|e| panic!("{e}"));
        emit::emit(&plan).expect("emits");
    }
}

#[track_caller]
fn refused(text: &str, dims: &[(&str, u64)], config: &Config) -> String {
    let (program, bound) = read(text, dims);
    match lower(&program, &bound, config) {
        Err(LowerError::Unsupported { why, help, .. }) => format!("{why}; {help}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_no_kernel_does_is_refused() {
    let dims = [("B", 1), ("S", 64), ("H", 4), ("G", 2), ("D", 64)];
    let fits = exchanged(Shape { heads: [4, 2], sequence: 64, ..SMALL }, "", OUT);
    let why = |config: &Config| match lower(&fits.0, &fits.1, config) {
        Err(LowerError::Unsupported { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(&on(4)).contains("2 of keys over 4 ranks"));
    assert!(why(&Config { nodes: 2, ..on(2) }).contains("no network card carries that"));
    let alone = |text: &str| refused(&format!("fn f({text}"), &dims[..3], &on(2));
    let x = "x: bf16[B, S, H, 64]";
    for (text, words) in [
        (
            format!("{x} @ shard(2)) {{ x -> all_to_all(split = 0, concat = 2) }}"),
            "dimensions 2 and 0",
        ),
        (
            format!("{x} @ shard(1)) {{ x -> {IN} -> relu }}"),
            "an `all_to_all` is in the same pipeline",
        ),
        (format!("{x} @ shard(1)) {{ let y = x -> {IN}; (y, y{OUT}) }}"), "not the caller's"),
        (format!("{x} @ shard(1)) {{ let y = x -> {IN}; (y, y) }}"), "no result, or one twice"),
    ] {
        let why = alone(&text);
        assert!(why.contains(words), "{why}");
    }
    let odd = format!("fn f({x} @ shard(1)) {{ x -> {IN} }}");
    assert!(refused(&odd, &dims[..3], &on(3)).contains("4 heads over 3 ranks"));
    let uneven = refused(
        &over_both("", true),
        &[("B", 1), ("S", 63), ("H", 4), ("G", 2), ("D", 64)],
        &mesh(&[("cp", 2), ("up", 2)]),
    );
    assert!(uneven.contains("dimension 1, 63, is not as long on each of 2 ranks"), "{uneven}");
    let both = "bf16[B, S, H, 64] @ shard(1, cp) @ shard(1, up)";
    let two = format!(
        "fn f(q: {both}, k: bf16[B, S, H, 64], v: bf16[B, S, H, 64]) {{ attention(q, k, v) }}"
    );
    let two = refused(&two, &dims[..3], &mesh(&[("cp", 2), ("up", 2)]));
    assert!(two.contains("ranks along 2 axes share its sequence"), "{two}");
    let some = format!(
        "fn f(q: bf16[B, S, H, D] @ shard(1), k: bf16[B, S, G, D] @ shard(2), v: bf16[B, S, G, D] @ shard(2)) \
         {{ q -> {IN} -> attention(k, v) }}"
    );
    assert!(refused(&some, &dims, &on(2)).contains("its operands are not the caller's"));
}

#[test]
fn kernels_compile() {
    match find_nvrtc(&JitOptions::default()) {
        Err(Error::NvrtcMissing { .. }) => return skip(Need::Nvrtc, ""),
        found => found.map(|_| ()).expect("a compiler"),
    }
    let alone = |heads, depth, words| {
        let shape = Shape { heads, depth, sequence: 1000, ..SMALL };
        (exchanged(shape, words, OUT), Vec::new())
    };
    let in_ring = |depth, words| {
        let dims = [("B", 1), ("S", 1000), ("H", 8), ("G", 4), ("D", depth)];
        let mesh = ["cp", "up"].map(|axis| (axis.to_string(), 2)).to_vec();
        (read(&over_both(words, true), &dims), mesh)
    };
    let text = format!(
        "fn f(x: bf16[1, S, 8, 128] @ shard(1), y: bf16[1, S, 8, 4] @ shard(2)) {{ (x -> {IN}, y{OUT}) }}"
    );
    let grads = |first: &str, second: &str| {
        let heads = "bf16[1, S, 8, 128] @ shard(2)";
        let second = if second.is_empty() { String::new() } else { format!(", {second}{OUT}") };
        format!(
            "fn f(q: {heads}, k: {heads}, v: {heads}, d: {heads}, stats: f32[1, 8, S, 4] @ shard(1)) {{ \
             {first}{OUT}{second}) }}"
        )
    };
    for ((program, bound), mesh) in [
        (read(&text, &[("S", 1000)]), Vec::new()),
        (
            read(
                &grads(
                    "let dk = attention_dk(k, v, q, d, stats, causal); (dk -> attention_dv",
                    "dk",
                ),
                &[("S", 1000)],
            ),
            Vec::new(),
        ),
        (read(&grads("(attention_dq(q, d, stats, k, v)", ""), &[("S", 1000)]), Vec::new()),
        alone([8, 4], 64, ""),
        alone([4, 4], 128, ", causal"),
        in_ring(64, ", causal"),
        in_ring(128, ""),
        in_ring(128, ", causal, window = 100, softcap = 30"),
    ] {
        let config = Config { ranks: 4, mesh, ..Config::default() };
        let plan = lower(&program, &bound, &config).expect("lowers");
        let kernel = emit::emit(&plan).expect("emits");
        let cache_dir = Some(std::env::temp_dir().join("mk-test-cache"));
        let compiled = jit::compile(&kernel, &JitOptions { cache_dir, ..JitOptions::default() });
        compiled.unwrap_or_else(|e| panic!("{program}: {e}"));
    }
}
