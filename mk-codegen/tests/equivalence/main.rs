//! Plans against their pipelines, over finite fields.

mod against;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
mod judges;
mod kernels;
mod mutate;
mod speed;

use common::{CASES, VARIANTS};
use mk_codegen::{
    equivalence::{self, Options},
    passes::lower,
    settings::Config,
};
use mk_syntax::{Bound, Program};
use std::collections::BTreeMap;

fn bound(program: &Program, shapes: &[(&str, &[u64])]) -> Bound {
    let shapes: BTreeMap<_, _> = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
    program.bind(&BTreeMap::new(), &shapes).expect("binds")
}

#[test]
fn lowered_plans_compute_their_pipelines() {
    let (mut n, mut failed) = (0, Vec::new());
    let options = Options { period: 1, ..Options::default() };
    let mut judge = |name: &str, ranks, program: &Program, bound: &Bound, plan| {
        let Ok(plan) = plan else { return };
        n += 1;
        let begin = std::time::Instant::now();
        if let Err(e) = equivalence::evaluate(&plan, program, bound, &options) {
            failed.push(format!("{name} on {ranks}: {e}"));
        }
        if begin.elapsed().as_millis() > 50 {
            println!("{name} on {ranks}: {:.1?}", begin.elapsed());
        }
    };
    for ranks in [1, 2, 3, 4, 8] {
        for (name, source, _, shapes) in CASES {
            let program = Program::parse(source).expect("parses");
            let bound = bound(&program, shapes);
            let plan = lower(&program, &bound, &Config { ranks, ..Config::default() });
            judge(name, ranks, &program, &bound, plan);
        }
        for v in VARIANTS {
            let (name, source, _, shapes) = v.case;
            let program = Program::parse(source).expect("parses");
            let bound = bound(&program, shapes);
            judge(name, ranks, &program, &bound, v.lower(&program, &bound, ranks));
        }
    }
    println!("{n} plans");
    assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
    assert!(n > 300, "{n} plans were lowered");
}
