//! The explorer's fixpoint against a walk over every state of the machine, on plans and mutants of few events.

use crate::{drawn, explorer, few, mutate::mutants};
use mk_codegen::plan::Plan;

/// Most states that are walked for one plan.
const MAX_STATES: usize = 3_000_000;

/// A rank tells the next one that it has begun, the next one pushes two values, which arrive one by one.
const PUSH: &str = r#"plan "push"
mesh world=2
target sm_90a
buffer buf0 "a" in f32[2, 1]
buffer buf1 "slot" workspace f32[2, 1]
signal sig0 "entered" [2]
signal sig1 "arrived" [1]
role role0 prologue ctas 0
role role1 intra_comm ctas 2

family fam0 "enter" role0 {
  leaf enter
  post e0 sig0[rank] @ 1 - rank += 1 by lead after program_order scope sys at start
}

family fam1 "push" role1 {
  leaf copy_tile via=ldst stages=1
  for i in 2
  access src: read buf0 @ rank [i : 1, 0 : 1] at start
  access dst: write buf1 @ 1 - rank [i : 1, 0 : 1] at end
  wait e1 sig0[1 - rank] >= 1 by copier for generic scope sys at start
  post e2 sig1[0] @ 1 - rank += 1 by copier after program_order scope sys at end
}
"#;

/// Bulk copies through a loader and a storer on one GPU, with a proxy fence between two of them.
const BULK: &str = r#"plan "bulk"
mesh world=1
target sm_90a
buffer buf0 "a" in f32[4, 4]
buffer buf1 "b" workspace f32[4, 4]
buffer buf2 "c" workspace f32[4, 4]
signal sig0 "made" [1]
signal sig1 "taken" [1]
role role0 intra_comm ctas 2

family fam0 "make" role0 {
  leaf copy_tile via=bulk stages=1
  edge e0 full
  edge e1 empty
  access src: read buf0 @ rank [0 : 4, 0 : 4] at start
  access dst: write buf1 @ rank [0 : 4, 0 : 4] at end
  post e2 sig0[0] @ rank += 1 by storer after global_write_done scope gpu at end
}

family fam1 "take" role0 {
  leaf copy_tile via=bulk stages=1
  edge e3 full
  edge e4 empty
  access src: read buf1 @ rank [0 : 4, 0 : 4] at start
  access dst: write buf2 @ rank [0 : 4, 0 : 4] at end
  wait e5 sig0[0] >= 1 by loader for async scope gpu at start
  post e6 sig1[0] @ rank += 1 by storer after program_order scope gpu at start
}
"#;

#[test]
fn a_walk_over_all_states_knows_nothing_else() {
    let (mut plans, mut states) = (0, 0);
    for (text, epochs) in [(PUSH, 1), (BULK, 2)] {
        let plan: Plan = text.parse().expect("a plan");
        let mut all = vec![("the plan".to_string(), plan.clone())];
        all.extend(mutants(&plan).into_iter().map(|m| (m.name, m.plan)));
        let all = all.iter().filter(|m| m.1.check_structure().is_ok());
        for (name, plan) in drawn::some(all, 12) {
            let (walked, wrong) = explorer::disagreement(plan, epochs, MAX_STATES);
            assert_eq!(wrong, None, "{:?}, {name}", plan.name);
            (plans, states) = (plans + 1, states + walked);
        }
    }
    println!("{plans} plans, {states} states");
    let [least, of_states] = if few() { [1, 1_000] } else { [20, 100_000] };
    assert!(plans > least && states > of_states, "{plans} plans, {states} states");
}
