//! How each leaf becomes CUDA: one file, one record ([`LeafEmission`]) and one hooks template per leaf.
//!
//! The contract in `plan/src/leaf/NAME.rs` says what a leaf promises to the verifier; the record says how agents keep
//! the promise. Everything that differs from leaf to leaf is in it: [`crate::emit::emit_with`] prints roles from
//! records, the audit counts a record's calls, the trace layer asks it for slots. The points at which waits, posts and
//! accesses may stand are in the contract's file. Nothing else in `emit/`, and nothing in `kernel.cu.j2`, names a leaf.
//!
//! A new leaf supplies
//!
//! - `template` and `texts`: `templates/leaf/NAME.cu.j2`, which prints the configuration and the hooks of one loop of
//!   tasks;
//! - `agents`: for each agent of the contract the threads that run it (one lane of a warp of the first warpgroup, or
//!   all computing warpgroups), the state that it keeps between loops, and the call of its device function;
//! - `warpgroups`: how many compute, and registers of both kinds. All roles of a kernel have as many threads; where
//!   loops of several leaves share a role, the one with the most registers for computing threads decides;
//! - `ring`: types, barriers and trace slots of the shared memory that its agents hand data through, if they do. One
//!   role has one ring; `Leaf::shares_ring` says which leaves take turns on it;
//! - `spills`: bytes that ptxas may spill;
//! - `prepare`: checks of its families, and the values of the templates. Numbers that a task needs beside its regions
//!   (an expert, a query's position) are expressions of its coordinates: `Emitter::scalars` prints them as members of
//!   the task that `decode` returns and every hook is handed.
//!
//! Tables that a launch fills are memory: an expression over one is printed as a load, behind the waits that come
//! before look-ups (docs/verification.md, tables). A scheduler has a place here and is not built: an agent that decodes
//! a task behind its waits, and hands the result to the others through the ring; it would take a seat of its own
//! ([`Seat::Lane`]), and the loader's `decode` move into it.

mod combine;
mod copy_bulk;
mod copy_rows;
mod dot;
mod gather;
pub(super) mod heads;
mod merge;
mod moves;
mod nic_send;
mod norm;
mod quant;
mod record;
mod reduce;
mod rope;
mod signal;
mod sink;
mod stats;
mod swiglu_grad;
mod tabulate;

use mk_plan::{CopyTile, CopyVia, Family, Leaf};

pub(super) use record::{
    AgentEmission, Group, IDLE_REGISTERS, LeafEmission, Prepared, RingEmission, Seat, Spills,
    Warpgroups,
};

/// Every leaf that agents of a CTA carry out on any architecture.
pub(super) const ALL: &[&LeafEmission] = &[
    &stats::EMISSION,
    &merge::EMISSION,
    &norm::EMISSION,
    &rope::EMISSION,
    &quant::EMISSION,
    &tabulate::EMISSION,
    &gather::EMISSION,
    &combine::EMISSION,
    &dot::EMISSION,
    &swiglu_grad::EMISSION,
    &copy_bulk::EMISSION,
    &copy_rows::EMISSION,
    &reduce::EMISSION,
    &nic_send::EMISSION,
    &signal::EMISSION,
    &sink::EMISSION,
];

/// Who carries a leaf out.
pub(super) enum Carrier {
    /// Agents of a role's CTAs.
    Agents(&'static LeafEmission),
    /// What surrounds the roles: the kernel's prologue, or the end of a launch.
    Frame,
    /// The host, beside the kernel.
    Host,
    /// Nobody: it has no emission.
    Nobody,
}

/// Who carries out the leaf of a family on any architecture.
pub(super) fn carrier(f: &Family) -> Carrier {
    match &f.leaf {
        Leaf::CopyTile(CopyTile { via: CopyVia::Bulk, .. }) => {
            Carrier::Agents(&copy_bulk::EMISSION)
        }
        Leaf::CopyTile(CopyTile { via: CopyVia::Ldst, .. }) => {
            Carrier::Agents(&copy_rows::EMISSION)
        }
        Leaf::CopyTile(CopyTile { via: CopyVia::Gather, .. }) => Carrier::Agents(&gather::EMISSION),
        Leaf::ReduceTile(_) if combine::is_weighted(f) => Carrier::Agents(&combine::EMISSION),
        Leaf::DotTile(_) => Carrier::Agents(&dot::EMISSION),
        Leaf::SwigluGradTile(_) => Carrier::Agents(&swiglu_grad::EMISSION),
        Leaf::ReduceTile(_) => Carrier::Agents(&reduce::EMISSION),
        Leaf::NicSend => Carrier::Agents(&nic_send::EMISSION),
        // At the end of a launch it has no CTA: the frame waits there.
        Leaf::Signal => Carrier::Agents(&signal::EMISSION),
        Leaf::Enter => Carrier::Frame,
        Leaf::HostCopy => Carrier::Host,
        Leaf::RopeTile(_) => Carrier::Agents(&rope::EMISSION),
        Leaf::QuantTile(_) => Carrier::Agents(&quant::EMISSION),
        Leaf::NormTile(_) => Carrier::Agents(&norm::EMISSION),
        Leaf::MergeTile(_) => Carrier::Agents(&merge::EMISSION),
        Leaf::SinkTile(_) => Carrier::Agents(&sink::EMISSION),
        Leaf::StatsTile(_) => Carrier::Agents(&stats::EMISSION),
        Leaf::Tabulate(_) => Carrier::Agents(&tabulate::EMISSION),
        // An architecture's own, if it has them.
        Leaf::MmaTile(_) | Leaf::AttendTile(_) | Leaf::AttendGradTile(_) => Carrier::Nobody,
    }
}
