use crate::{scenario::config_for, shared_world};
use mk::{
    Program, emit, passes,
    runtime::{
        InstanceOptions,
        jit::{self, JitOptions},
    },
    settings::Config,
};
use mk_harness::{Case, Routing, gpu::Session};
use std::collections::BTreeMap;
const LAYER: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";
#[test]
fn zz_moe() {
    let list = std::env::var("ZZ").unwrap();
    // T:R:ranks:set:trace:routing;…
    let cases: Vec<(u64, u64, usize, String, bool, String)> = list
        .split(';')
        .map(|c| {
            let p: Vec<&str> = c.split('|').collect();
            (
                p[0].parse().unwrap(),
                p[1].parse().unwrap(),
                p[2].parse().unwrap(),
                p[3].to_string(),
                p[4] == "t",
                p[5].to_string(),
            )
        })
        .collect();
    let made = crate::rig::in_parallel(&cases, |(t, r, n, set, trace, _)| {
        let world = shared_world("zz", *n).unwrap();
        let program = Program::parse(LAYER).unwrap();
        let dims = [("T", *t), ("K", 8), ("E", 64), ("R", *r), ("H", 2048), ("F", 1024)];
        let dims: BTreeMap<String, u64> = dims.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).unwrap();
        let mut config = config_for(&world, &Config::default());
        if !set.is_empty() {
            mk::settings::read(&mut config, set).unwrap();
        }
        let plan = passes::lower(&program, &bound, &config).unwrap();
        let source = emit::emit_with(&plan, emit::Options { trace: *trace }).unwrap();
        let compiled = jit::compile(&source, &JitOptions::default()).unwrap();
        (world, program, bound, source, compiled)
    });
    for ((t, _, n, set, trace, form), (world, program, bound, source, compiled)) in
        cases.iter().zip(made)
    {
        let options = InstanceOptions::default();
        let case = Case { program: &program, bound: &bound, ranks: *n };
        let mut s = Session::bind(&world, case, &source, &compiled, &options, 3).unwrap();
        s.route(form.parse::<Routing>().unwrap());
        s.fill(1).unwrap();
        s.launch().unwrap();
        let timing = s.time().unwrap();
        println!(
            "== T={t} ranks={n} {form} {set:?} traced={trace}: median {:.1} us, least {:.1} us",
            timing.median_ms * 1e3,
            timing.least_ms * 1e3
        );
        if !*trace {
            continue;
        }
        let t = match s.trace() {
            Ok(t) => t,
            Err(e) => {
                println!("TRACE {e}");
                continue;
            }
        };
        let mut by: BTreeMap<u32, (f64, f64, Vec<f64>)> = BTreeMap::new();
        for x in &t.spans {
            let mk::trace::What::Task { family, .. } = x.what else { continue };
            if !t.is_work(x) {
                continue;
            }
            let e = by.entry(family).or_insert((f64::MAX, 0.0, vec![]));
            e.0 = e.0.min(x.begin / 1e3);
            e.1 = e.1.max(x.end / 1e3);
            e.2.push(x.length() / 1e3);
        }
        for (f, (a, b, mut l)) in by {
            l.sort_by(f64::total_cmp);
            let sum: f64 = l.iter().sum();
            println!(
                "   {:10} {a:8.1} to {b:8.1} us, {:6} spans, mean {:8.2}, median {:8.2}, longest {:8.2}, sum/132 {:8.1}",
                t.family(f),
                l.len(),
                sum / l.len() as f64,
                l[l.len() / 2],
                l[l.len() - 1],
                sum / 132.0
            );
        }
        println!("{}", mk::trace::summary(&t));
    }
}
