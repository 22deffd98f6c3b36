//! `--gpus`: the GPU of each rank, and what of it a rank's kernel may take.

use crate::{
    failure::{Failure, Kind, Result},
    options::PipelineArgs,
};
use mk::{
    abi::count,
    abi::{KernelSource, device::MAX_RANKS},
    function::reserved_sms,
    runtime::{
        Error, World,
        net::{ArenaMemory, Net, NetOptions},
        transport::{Ordering, shaped::Shape},
    },
    settings::Config,
};

/// The option.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct GpuList {
    /// GPU of each rank, for instance 0,1,2,3 (the default); 0,0,0 are three ranks on one GPU, which split its SMs.
    /// Sets `--ranks`
    #[arg(long = "gpus", value_name = "LIST", value_delimiter = ',')]
    gpus: Vec<i32>,
}

/// Why GPUs cannot be used.
pub struct Unusable {
    /// In words.
    pub why: String,
    /// Whether there are none that fit, as opposed to some that fail.
    pub absent: bool,
}

impl GpuList {
    /// Whether the option was given.
    pub fn given(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// These options, with a rank for each GPU of the list. A plan has its own number.
    pub fn ranked(&self, args: &PipelineArgs) -> Result<PipelineArgs> {
        let n = self.gpus.len();
        if n == 0 || args.is_plan() {
            return Ok(args.clone());
        }
        if n > MAX_RANKS {
            let what = format!("`--gpus` names {n} GPUs, one for each rank");
            return Err(Failure::usage(what, format!("there are 1 to {MAX_RANKS} ranks")));
        }
        match args.ranks.or(args.mesh.as_ref().map(|_| args.ranks())) {
            Some(ranks) if ranks as usize != n => {
                let what = format!(
                    "`--ranks {ranks}` differs from `--gpus`, which has {}",
                    count(n, "rank")
                );
                Err(Failure::usage(what, "leave `--ranks` out, or name a GPU for each rank"))
            }
            _ => Ok(PipelineArgs { ranks: Some(n as u32), ..args.clone() }),
        }
    }

    /// A world on the GPUs of the list, or on the first ones. `without` says what can be done without any.
    pub fn world(&self, ranks: u32, without: &str) -> Result<World> {
        self.nodes(ranks, 1, without)
    }

    /// As [`GpuList::world`], as if the ranks were on several nodes.
    pub fn nodes(&self, ranks: u32, nodes: u32, without: &str) -> Result<World> {
        self.find(ranks, nodes).map_err(|e| e.failure(&share_one(ranks), without))
    }

    /// As [`GpuList::nodes`], with more to say.
    pub fn find(&self, ranks: u32, nodes: u32) -> Result<World, Unusable> {
        let gpus = &self.gpus;
        if self.given() && gpus.len() != ranks as usize {
            let why =
                format!("`--gpus` names {} for {}", count(gpus.len(), "GPU"), count(ranks, "rank"));
            return Err(Unusable { why, absent: false });
        }
        let world = match (self.given(), nodes) {
            (true, _) => World::on_nodes(gpus, nodes),
            (false, 1) => World::local(ranks as usize),
            (false, _) => World::on_nodes(&(0..ranks as i32).collect::<Vec<_>>(), nodes),
        };
        let error = match world {
            Ok(world) => match unfit(&world) {
                None => return Ok(world),
                Some(why) => return Err(Unusable { why, absent: true }),
            },
            Err(error) => error,
        };
        let why = match &error {
            Error::NoSuchDevice { count: gpus, .. } if !self.given() => {
                format!("this machine has {} for {}", count(*gpus, "GPU"), count(ranks, "rank"))
            }
            Error::DriverMissing => "this machine has no CUDA driver".into(),
            other => other.to_string(),
        };
        // Who names GPUs means them.
        Err(Unusable { why, absent: error.is_no_device() && !self.given() })
    }
}

impl Unusable {
    /// With what can be done where there are GPUs, and where there are none.
    fn failure(self, with: &str, without: &str) -> Failure {
        match World::local(1) {
            Ok(_) => Failure::with_help(
                Kind::Machine,
                self.why,
                format!("{with}; `mk doctor` says what there is"),
            ),
            Err(_) => Failure::with_help(Kind::Machine, self.why, without),
        }
    }
}

/// A world of that many GPUs of this machine, of its own each. `without` says what can be done without any.
pub fn gpus(ranks: u32, without: &str) -> Result<World> {
    let found = GpuList::default().find(ranks, 1);
    found.map_err(|e| e.failure("give `--ranks` a number of GPUs", without))
}

/// Memory of the host that a network takes for itself.
const ARENA_BYTES: u64 = 1 << 20;

/// The network that a kernel over nodes needs, with capacity for `binds` of it: threads of this process that copy, or,
/// where `MK_NET_MEMORY` puts arenas on GPUs, their copy engines. None for a kernel of one node.
pub fn loopback(
    world: &World,
    kernel: &KernelSource,
    shape: Shape,
    binds: u64,
) -> Result<Option<Net>> {
    let Some(layout) = &kernel.net else { return Ok(None) };
    let ordering = if layout.in_order { Ordering::InOrder } else { Ordering::Unordered };
    let arena_bytes = layout.bytes.saturating_mul(binds).saturating_add(ARENA_BYTES);
    let memory = ArenaMemory::asked()?;
    let options = NetOptions { arena_bytes, memory, shape, ..NetOptions::default() };
    Ok(Some(Net::loopback(world, ordering, &options)?))
}

/// How ranks run on one GPU.
pub fn share_one(ranks: u32) -> String {
    let list = vec!["0"; ranks as usize].join(",");
    format!("`--gpus {list}` runs {} on one GPU", count(ranks, "rank"))
}

/// Why a world cannot run the kernels of this version.
fn unfit(world: &World) -> Option<String> {
    world.local_ranks().find_map(|rank| match world.device(rank) {
        Ok(device) if device.capability == (9, 0) => None,
        Ok(device) => Some(format!(
            "GPU {} has compute capability {}.{}, and kernels are made for 9.0",
            device.ordinal, device.capability.0, device.capability.1
        )),
        Err(error) => Some(error.to_string()),
    })
}

/// Its ranks and their GPUs.
pub fn describe(world: &World) -> String {
    let devices = world.local_ranks().filter_map(|r| Some((r, world.device(r).ok()?)));
    let list: Vec<_> =
        devices.map(|(rank, d)| format!("rank {rank} on GPU {}", d.ordinal)).collect();
    let list = list.join(", ");
    if world.shares_gpus() { format!("{list}; {} SMs each", world.sm_budget(0)) } else { list }
}

/// Leaves SMs to the other ranks of a GPU.
pub fn fit(config: &mut Config, world: &World, args: &PipelineArgs) -> Result<()> {
    if args.tuned && world.shares_gpus() {
        let what = "`--tuned` takes settings for ranks with GPUs of their own, and `--gpus` has several ranks on one";
        return Err(Failure::usage(what, "leave `--tuned` out: the default settings fit"));
    }
    config.reserved_sms = reserved_sms(world, &config.target, 0);
    match config.reserved_sms {
        0 => Ok(()),
        _ => check_split([config.compute_sms, config.intra_comm_sms], world.sm_budget(0)),
    }
}

/// Refuses CTAs, one per SM, that a rank has no SMs for.
fn check_split([compute, intra_comm]: [Option<u32>; 2], budget: u32) -> Result<()> {
    let given = [("compute_sms", compute), ("intra_comm_sms", intra_comm)];
    let given: Vec<_> = given.into_iter().filter_map(|(name, n)| Some((name, n?))).collect();
    let asked: u64 = given.iter().map(|(_, n)| u64::from(*n)).sum();
    if asked <= budget.into() {
        return Ok(());
    }
    let list: Vec<_> = given.iter().map(|(name, n)| format!("{name}={n}")).collect();
    let what = format!(
        "`--set {}` asks for {asked} CTAs on each rank, and a rank has {budget} SMs of its GPU",
        list.join(" ")
    );
    let help =
        format!("give the roles at most {budget} in all, or leave them out: the default fits");
    Err(Failure::usage(what, help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        pipeline: PipelineArgs,
        #[command(flatten)]
        gpus: GpuList,
    }

    fn ranks(words: &[&str]) -> Result<Option<u32>, String> {
        let line = Line::try_parse_from([&["mk"], words].concat()).expect("it reads");
        let ranked = line.gpus.ranked(&line.pipeline);
        ranked.map(|p| p.ranks).map_err(|f| f.text().to_string())
    }

    #[test]
    fn the_list_has_a_gpu_for_each_rank() {
        assert_eq!(ranks(&["gather(a)"]), Ok(None));
        assert_eq!(ranks(&["gather(a)", "--ranks", "2"]), Ok(Some(2)));
        assert_eq!(ranks(&["gather(a)", "--gpus", "0,0,0"]), Ok(Some(3)));
        assert_eq!(ranks(&["gather(a)", "--gpus", "0,1", "--ranks", "2"]), Ok(Some(2)));
        // A plan has its own.
        assert_eq!(ranks(&["x.plan", "--gpus", "0,0,0"]), Ok(None));
        let differs = ranks(&["gather(a)", "--gpus", "0,0,0", "--ranks", "4"]).unwrap_err();
        assert!(differs.contains("`--ranks 4` differs from `--gpus`, which has 3 ranks"));
        let many = ranks(&["gather(a)", "--gpus", &["0"; 65].join(",")]).unwrap_err();
        assert!(many.contains("`--gpus` names 65 GPUs") && many.contains("1 to 64 ranks"));
    }

    #[test]
    fn splits_that_do_not_fit_name_the_flag() {
        let split = |asked| check_split(asked, 44).map_err(|f| f.text().to_string());
        assert_eq!(split([None, None]), Ok(()));
        assert_eq!(split([Some(33), Some(11)]), Ok(()));
        let text = split([Some(33), Some(12)]).unwrap_err();
        assert_eq!(
            text,
            "error: `--set compute_sms=33 intra_comm_sms=12` asks for 45 CTAs on each rank, and a rank has 44 SMs of \
             its GPU\n  = help: give the roles at most 44 in all, or leave them out: the default fits"
        );
        let text = split([None, Some(45)]).unwrap_err();
        assert!(text.contains("`--set intra_comm_sms=45` asks for 45 CTAs"), "{text}");
        assert!(split([Some(u32::MAX), Some(u32::MAX)]).is_err());
    }
}
