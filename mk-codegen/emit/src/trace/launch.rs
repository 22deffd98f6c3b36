//! A launch, as its ranks recorded it.

use super::{
    align::Alignment,
    spans::{Agent, RankClock, Span, What},
};
use mk_abi::{EdgeInfo, RoleInfo, TraceFamily};

/// Name of the leaf that multiplies.
const MMA: &str = "mma_tile";
const SUM: &str = "reduce_tile";

/// One launch on some or all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The kernel.
    pub name: String,
    /// Ranks of the kernel.
    pub world: u32,
    /// Which launch.
    pub epoch: u32,
    /// The kernel's roles.
    pub roles: Vec<RoleInfo>,
    /// The plan's families.
    pub families: Vec<TraceFamily>,
    /// The plan's waits.
    pub edges: Vec<EdgeInfo>,
    /// Those of them that wait for a rank's entry.
    pub entry_edges: Vec<u32>,
    /// Of each rank that brought a buffer.
    pub clocks: Vec<RankClock>,
    /// How the ranks' timers were brought together.
    pub alignment: Alignment,
    /// By rank, CTA, agent and end.
    pub spans: Vec<Span>,
}

/// The waits among some spans, each agent's made disjoint: lanes of a copier wait side by side.
pub(super) fn disjoint_waits<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<Span> {
    let mut waits: Vec<Span> =
        spans.filter(|s| matches!(s.what, What::Wait { .. })).copied().collect();
    let agent = |s: &Span| (s.rank, s.cta, s.agent);
    waits.sort_by(|a, b| agent(a).cmp(&agent(b)).then(a.begin.total_cmp(&b.begin)));
    waits.dedup_by(|next, last| {
        let joins = agent(next) == agent(last) && next.begin <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    waits
}

impl Trace {
    /// Nanoseconds from the first CTA's begin to the last one's end.
    pub fn length(&self) -> f64 {
        self.spans.iter().filter(|s| s.what == What::Cta).map(|s| s.end).fold(0.0, f64::max)
    }

    /// The ranks that it is of, in order.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.clocks.iter().map(|c| c.rank)
    }

    /// Name of a family.
    pub fn family(&self, id: u32) -> &str {
        self.families.iter().find(|f| f.id == id).map_or("?", |f| f.name.as_str())
    }

    /// What the plan says of a wait.
    pub fn edge(&self, id: u32) -> &str {
        self.edges.iter().find(|e| e.id == id).map_or("", |e| e.text.as_str())
    }

    /// The role of a CTA.
    pub fn role(&self, cta: u32) -> Option<usize> {
        self.roles.iter().position(|r| (r.first_cta..r.first_cta + r.ctas).contains(&cta))
    }

    /// Name of the role of a CTA.
    pub fn role_name(&self, cta: u32) -> &str {
        self.role(cta).and_then(|r| self.roles.get(r)).map_or("?", |r| r.name.as_str())
    }

    /// Whether a task's span is that of the agent that does the work: the one that computes, or else the one that
    /// writes.
    pub fn is_work(&self, span: &Span) -> bool {
        let What::Task { family, .. } = span.what else { return false };
        let family = self.families.iter().find(|f| f.id == family);
        let product = family.is_some_and(|f| f.leaf == MMA);
        let sums = family.is_some_and(|f| f.leaf == SUM);
        let ring = family.is_some_and(|f| !f.edges.is_empty());
        match span.agent {
            // One lane of two warpgroups speaks for both where they copy.
            Agent::Compute(n) => n == 0 || product || sums,
            Agent::Storer => ring && !product,
            _ => false,
        }
    }
}
