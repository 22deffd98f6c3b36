//! Worlds of several nodes: the network of their plans, and the settings that cannot have it.

use super::{
    config::Config,
    facts::Facts,
    misfit::Refusal,
    values::{AllReduce, Gather, Reduction},
};
use mk_plan::{Nic, NicOrdering};

/// Entries of the GPU-to-host fifo.
const FIFO: u32 = 64;
/// Queue pairs to a peer, where a network keeps the order of each.
const LANES: u32 = 4;

impl Config {
    /// The network of a plan, if it has several nodes.
    pub fn nic(&self) -> Option<Nic> {
        let lanes = match self.net {
            NicOrdering::InOrder => LANES,
            NicOrdering::Unordered => 1,
        };
        (self.nodes > 1).then(|| Nic {
            ordering: self.net,
            local: self.ranks.checked_div(self.nodes),
            fifo: FIFO,
            lanes,
        })
    }
}

/// Whether nodes fit the ranks, and the other settings and the kernel fit nodes.
///
/// # Errors
/// The first thing that stands in the way.
pub(super) fn check(c: &Config, facts: &Facts) -> Result<(), Refusal> {
    let refuse = |setting, value: String, why: &str, help: &str, instead: &[&str]| {
        let instead = instead.iter().map(ToString::to_string).collect();
        Err(Refusal { setting, value, why: why.into(), help: help.into(), instead })
    };
    let nodes = c.nodes.to_string();
    if c.nodes == 0 || !c.ranks.is_multiple_of(c.nodes) {
        let why = format!("{} ranks are not as many in each of {nodes} nodes", c.ranks);
        return refuse("nodes", nodes, &why, "use a number that divides the ranks", &[]);
    }
    if c.nodes == 1 || !facts.communicates() {
        return Ok(());
    }
    if let Gather::CopyEngine { .. } = c.gather {
        let why = "copy engines do not reach the memory of other nodes";
        let instead = "gather=sms";
        return refuse("gather", "copy_engine".into(), why, "set `gather=sms`", &[instead]);
    }
    let gathers = || facts.gathers.iter().filter(|g| !g.inside);
    let sums = || facts.sums.iter().filter(|s| !s.inside);
    if c.k_slices > 1 && gathers().count() > 0 {
        let why =
            "a slice of rows is several pieces of memory, and a message of a network card is one";
        let value = c.k_slices.to_string();
        return refuse("k_slices", value, why, "set `k_slices=1`", &["k_slices=1"]);
    }
    if c.reduction == Reduction::Ring && sums().count() > 0 {
        let why = "a ring moves as many bytes over each network card as messages to the owner, in as many more hops \
            as there are nodes";
        return refuse(
            "reduction",
            "ring".into(),
            why,
            "set `reduction=dedicated_sms` or `reduction=after_last_wave`",
            &["reduction=dedicated_sms", "reduction=after_last_wave"],
        );
    }
    if c.all_reduce != AllReduce::TwoShot && sums().any(|s| s.all) {
        let why = match c.all_reduce {
            AllReduce::OneShot => {
                "one shot reads the memory of every rank, and that of other nodes is not mapped"
            }
            _ => {
                "columns of rows are several pieces of memory, and a message of a network card is one"
            }
        };
        return refuse(
            "all_reduce",
            "one_shot or by_columns".into(),
            why,
            "set `all_reduce=two_shot`",
            &["all_reduce=two_shot"],
        );
    }
    let ragged = gathers().find(|g| !g.bulk);
    let gaps = ragged.map(|g| format!("the rows of `{}`", g.name)).or_else(|| {
        let sum = sums().any(|s| !s.tma_rows);
        sum.then(|| "the rows of a sum".to_string())
    });
    if let Some(rows) = gaps {
        let why = format!(
            "{rows} are no multiple of 16 bytes, so that they are several pieces of memory, and a message of a \
             network card is one"
        );
        let help = "use rows of a multiple of 16 bytes, or one node";
        return refuse("nodes", nodes, &why, help, &[]);
    }
    Ok(())
}
