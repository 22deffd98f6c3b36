//! Sizes and schedules that tests of attention and of its gradients share.

use mk_codegen::{
    plan::Plan,
    sim::{Schedule, Victim},
};

/// What is attended to.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub dtype: &'static str,
    pub batch: u64,
    pub sequence: u64,
    /// Heads of queries, and of keys and values.
    pub heads: [u64; 2],
    pub depth: u64,
}

pub const SMALL: Shape = Shape { dtype: "bf16", batch: 1, sequence: 257, heads: [2, 1], depth: 64 };

/// A schedule for each agent of each family, which is held back on rank 1.
pub fn withheld(plan: &Plan) -> Vec<Schedule> {
    let victims = plan.families.iter().flat_map(|(family, f)| {
        let agents = f.leaf.contract().agents.into_iter();
        agents.map(move |agent| Victim { rank: 1, family, agent, task: None, epoch: None })
    });
    let schedules: Vec<_> = victims.map(Schedule::Withhold).collect();
    assert!(schedules.len() > 5);
    schedules
}
