//! Pipelines on meshes: read, proved, emitted, and run on the executor against f64.

use mk_codegen::{emit, passes::compile, plan::Plan, settings::Config, sim::Schedule};
use mk_harness::{Case, CpuOptions, Judgement, run_on_cpu};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

pub type Shapes<'s> = &'s [(&'s str, &'s [u64])];

/// A pipeline of such sizes.
pub fn read(signature: &str, body: &str, shapes: Shapes) -> (Program, Bound) {
    let text = format!("fn {signature} {{ {body} }}");
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let shapes = shapes.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).unwrap_or_else(|e| panic!("{text}: {e}"));
    (program, bound)
}

/// Few CTAs, so that each has several tiles.
pub fn on(mesh: &[(&str, u32)]) -> Config {
    let mesh: Vec<_> = mesh.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let ranks = mesh.iter().map(|axis| axis.1).product();
    Config {
        ranks,
        mesh,
        block: [128, 64, 64],
        compute_sms: Some(3),
        copy_stages: 4,
        ..Config::default()
    }
}

/// What ranks left of a plan, by rank, in the last of two launches.
pub fn run((program, bound): &(Program, Bound), plan: &Plan, schedule: Schedule) -> Vec<Judgement> {
    let program = program.over_placed_axes();
    let size = |name: &String| plan.mesh.axis(name).expect("an axis").size as usize;
    let ranks = program.mesh_axes().iter().map(size).product();
    let case = Case { program: &program, bound, ranks };
    let options = CpuOptions { schedule, launches: 2, ..CpuOptions::default() };
    let mut run = run_on_cpu(case, plan, &options).expect("runs");
    run.judged.pop().expect("a launch")
}

/// Proves, emits, runs and judges.
#[track_caller]
pub fn right(pipeline: &(Program, Bound), config: &Config) -> Plan {
    let (program, bound) = pipeline;
    let (plan, _) = compile(program, bound, config)
        .unwrap_or_else(|e| panic!("{program} on {:?}: {e}", config.mesh));
    assert_eq!(plan.mesh.axes, config.mesh);
    emit::emit(&plan).unwrap_or_else(|e| panic!("{program} on {:?}: {e}", config.mesh));
    let judged = run(pipeline, &plan, Schedule::Random);
    assert_eq!(judged.len(), config.ranks as usize);
    for (rank, judged) in judged.iter().enumerate() {
        assert!(judged.passes(), "{program} on {:?}, rank {rank}: {judged}", config.mesh);
    }
    plan
}
