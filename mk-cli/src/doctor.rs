//! `mk doctor`.

use crate::{
    failure::Result,
    output::{self, say},
};
use mk::runtime::{
    doctor::{Doctor, Gpu, NetworkState, Nic, Peer},
    jit::JitOptions,
    store::Kept,
    transport::Distance,
};
use serde_json::{Map, Value, json};

/// Options of `mk doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A machine that lacks something is no failure: saying so is the command's purpose.
pub fn run() -> Result<()> {
    let doctor = Doctor::examine(&JitOptions::default());
    output::report(|| json(&doctor))?;
    say!("{}", doctor.to_string().trim_end())?;
    say!("\n{}", verdict(&doctor))
}

fn verdict(doctor: &Doctor) -> &'static str {
    match (doctor.can_run(), doctor.nvrtc.is_ok()) {
        (true, _) => "kernels can be compiled and run here",
        (false, true) => "kernels can be compiled here; `mk run` uses the CPU executor",
        (false, false) => "plans can be checked and emitted here; `mk run` uses the CPU executor",
    }
}

/// Null stands for a part that is missing; `missing` says why, and what to do.
fn json(doctor: &Doctor) -> Value {
    let version = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    let nvrtc = doctor.nvrtc.as_ref().ok();
    let missing = doctor.missing.iter();
    let rows = doctor.peers.iter();
    json!({
        "can_compile": doctor.nvrtc.is_ok(),
        "can_run": doctor.can_run(),
        "verdict": verdict(doctor),
        "driver_cuda": doctor.driver.as_ref().ok().map(|v| version(*v)),
        "gpus": doctor.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "peers": rows.map(|row| row.iter().map(peer).collect()).collect::<Vec<Vec<_>>>(),
        "nvrtc": nvrtc.map(|n| json!({ "version": n.version.to_string(), "path": n.path })),
        "nvdisasm": doctor.nvdisasm,
        "cache_dir": doctor.cache.as_ref().ok(),
        "kept": doctor.kept.iter().map(kept).collect::<Map<_, _>>(),
        "networks": doctor.networks.iter().map(network).collect::<Vec<_>>(),
        "cards": doctor.cards.iter().map(card).collect::<Vec<_>>(),
        "missing": missing
            .map(|m| json!({ "needed_for": m.needed_for, "what": m.what }))
            .collect::<Vec<_>>(),
    })
}

/// By kind: `"kernel": {"files": 3, "bytes": 90000}`.
fn kept(kept: &Kept) -> (String, Value) {
    (kept.kind.to_string(), json!({ "files": kept.files, "bytes": kept.bytes }))
}

fn gpu(gpu: &Gpu) -> Value {
    json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "sms": gpu.sms,
        "memory_bytes": gpu.memory_bytes,
        "capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
        "virtual_memory": gpu.virtual_memory,
        "posix_handles": gpu.posix_handles,
        "card_access": gpu.card_access,
        "flush": gpu.flush.to_string(),
        "near_cards": gpu.near_cards,
        "cards": gpu.cards.iter().map(distance).collect::<Vec<_>>(),
    })
}

/// Null stands for a distance that the system does not say.
fn distance((name, distance): &(String, Option<Distance>)) -> Value {
    json!({ "name": name, "distance": distance.map(Distance::name) })
}

/// Null stands for one that cannot be opened; `missing` says why.
fn network(network: &NetworkState) -> Value {
    json!({ "name": network.name, "found": network.state.as_ref().ok() })
}

fn card(card: &Nic) -> Value {
    json!({ "name": card.name, "pci": card.pci, "numa": card.numa, "ports": card.ports })
}

/// By the row's GPU to the column's; null on the diagonal and where the driver does not say.
fn peer(peer: &Option<Peer>) -> Value {
    peer.map_or(Value::Null, |p| {
        json!({
            "access": p.access,
            "native_atomics": p.native_atomics,
            "performance_rank": p.performance_rank,
        })
    })
}
