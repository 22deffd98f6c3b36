//! One process per GPU: how a process joins its world.

use super::budget::SmShares;
use super::control::{
    Abroad, LocalListener, Orders, Pack, PeerAddress, Unpack, hosts, mesh::Keeping,
};
use super::{
    Bootstrap, DeviceLimits, Group, Meeting, TcpBootstrap, Topology, UnixBootstrap, World,
    WorldOptions, limits,
};
use crate::driver::{self, Context};
use crate::env;
use crate::{Error, Result};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bound on the wait for the other processes in [`World::from_env`]: a launcher starts them together.
const RENDEZVOUS: Duration = Duration::from_secs(300);

/// Changes with anything that the processes of a world say to each other.
const PROTOCOL: u64 = 6;

/// What a process tells the others of itself.
struct ProcessInfo {
    host: String,
    listener: String,
    gpu: String,
    /// SMs of that GPU.
    sms: u32,
}

impl World {
    /// This process's part of a world of one process per GPU, as a launcher starts it: torchrun, srun, Open MPI's or
    /// MPICH's mpirun, or a launcher that sets `MK_RANK` and the like ([`VARIABLES`](crate::VARIABLES)). Its GPU is
    /// that of its rank on its host. Collective.
    ///
    /// Processes of one host find each other without a port. On several, rank 0 listens at `MK_MEET`, else where the
    /// launcher says, and all need the same token (`MK_TOKEN_FILE`).
    ///
    /// # Errors
    /// [`Error::Environment`] and [`Error::Variable`] with the variable that is missing or wrong;
    /// [`Error::SeveralHosts`]; [`Error::Rendezvous`] with the ranks that did not come within 5 minutes; as
    /// [`World::connect`].
    pub fn from_env() -> Result<World> {
        let options = WorldOptions::from_env()?;
        let device = i32::try_from(env::launcher()?.local_rank).unwrap_or(i32::MAX);
        let bootstrap = World::bootstrap_from_env(&options, RENDEZVOUS)?;
        // Who shares GPUs may be more than there are. Without a driver the world says so, on all ranks.
        let device = match driver::device_count() {
            Ok(count @ 1..) if options.share_gpus => device % count,
            _ => device,
        };
        World::connect_with(bootstrap, device, &options)
    }

    /// How [`World::from_env`] finds the other processes, for at most `limit`, which also bounds each later call.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn bootstrap_from_env(
        options: &WorldOptions,
        limit: Duration,
    ) -> Result<Box<dyn Bootstrap>> {
        let launcher = env::launcher()?;
        let (rank, world_size) = (launcher.rank, launcher.world_size);
        let several = launcher.local_world_size != world_size;
        if !several && options.nodes.is_none() {
            let met = UnixBootstrap::meet(&launcher.run, rank, world_size, limit)?;
            return Ok(Box::new(met));
        }
        let (address, token) = hosts::meeting(&launcher, options, several)?;
        let met = TcpBootstrap::meet(&Meeting { address, token, rank, world_size, limit })?;
        Ok(Box::new(met))
    }

    /// This process's part of a world of one process per GPU: its rank is the bootstrap's, its GPU `device`.
    /// Collective. The bootstrap is used in this call alone and then dropped; the processes keep a connection between
    /// each two of them. Options are those of the environment.
    ///
    /// Ranks of a host are neighbours, and hosts have as many ranks each: a host is a node ([`Topology`]).
    ///
    /// Drop the world before the process ends: ending without it looks like a death to the others.
    ///
    /// # Errors
    /// What the bootstrap says; [`Error::NoSuchDevice`], [`Error::DriverMissing`], [`Error::DriverTooOld`],
    /// [`Error::NoPeerAccess`]; [`Error::SeveralHosts`] for hosts that make up no world, without a token, or with
    /// different ones; [`Error::SameDevice`]; [`Error::PeerFailed`] with the error of another process, which fails all
    /// of them; [`Error::System`].
    pub fn connect(bootstrap: Box<dyn Bootstrap>, device: i32) -> Result<World> {
        World::connect_with(bootstrap, device, &WorldOptions::from_env()?)
    }

    /// [`World::connect`] with options of the caller's.
    ///
    /// # Errors
    /// As [`World::connect`].
    pub fn connect_with(
        mut bootstrap: Box<dyn Bootstrap>,
        device: i32,
        options: &WorldOptions,
    ) -> Result<World> {
        let (rank, size) = (bootstrap.rank(), bootstrap.world_size());
        if size == 0 || size > mk_abi::device::MAX_RANKS as u32 || rank >= size {
            return Err(Error::Shape {
                what: format!(
                    "rank {rank} of {size} does not exist: a world has 1 to {} ranks",
                    mk_abi::device::MAX_RANKS
                ),
            });
        }
        // A process that has no GPU must say so, or the others would wait for it.
        let mine = prepare(device, rank, size, options);
        let said = match &mine {
            Ok((card, ..)) => Pack::default()
                .u64(PROTOCOL)
                .text("")
                .text(&card.host)
                .text(&card.listener)
                .text(&card.gpu)
                .u64(card.sms.into()),
            Err(error) => Pack::default().u64(PROTOCOL).text(&error.to_string()),
        };
        let all = bootstrap.all_gather(&said.done())?;
        let (card, limits, listener) = mine?;
        let cards = read_cards(&all, size)?;
        check_gpus(&cards, options.share_gpus)?;
        let names: Vec<_> = cards.iter().map(|c| c.host.as_str()).collect();
        let topology = hosts::topology(&names)?;
        let gpus: Vec<_> = cards.iter().map(|c| (c.gpu.as_str(), c.sms)).collect();
        let shares = SmShares::new(&gpus);
        if size == 1 {
            return World::assemble(
                0,
                topology,
                vec![Arc::new(Context::retain(device)?)],
                vec![limits],
                shares,
                (None, None),
            );
        }
        let (address, group) =
            join(&mut *bootstrap, &topology, &cards, (&card.host, &listener, device), options)?;
        let node = topology.reach(rank);
        let local = reach(device, &cards[node.start as usize..node.end as usize])
            .and_then(|()| Context::retain(device));
        let deadline = super::Deadline::within(RENDEZVOUS);
        let context = group.agree("connecting a world", local, deadline)?;
        World::assemble(
            rank,
            topology,
            vec![Arc::new(context)],
            vec![limits],
            shares,
            (address, Some(Arc::new(group))),
        )
    }
}

/// Connects with all others: through their listeners on this host, through the network on other hosts, for which this
/// one has an address.
fn join(
    bootstrap: &mut dyn Bootstrap,
    topology: &Topology,
    cards: &[ProcessInfo],
    (host, listener, device): (&str, &LocalListener, i32),
    options: &WorldOptions,
) -> Result<(Option<IpAddr>, Group)> {
    let (rank, orders) = (bootstrap.rank(), Orders::on(device)?);
    if topology.nodes() == 1 {
        let addresses: Vec<_> =
            cards.iter().map(|card| PeerAddress::Near(card.listener.clone())).collect();
        return Ok((None, Group::connect(rank, topology, &addresses, listener, None, orders)?));
    }
    let hosts: Vec<_> = cards.iter().map(|c| c.host.as_str()).collect();
    let met = hosts::exchange(bootstrap, host, &hosts, options)?;
    let addresses = (0..).zip(cards.iter().zip(met.addresses)).map(|(peer, (card, address))| {
        match topology.reaches(rank, peer) {
            true => PeerAddress::Near(card.listener.clone()),
            false => PeerAddress::Far(address),
        }
    });
    let addresses: Vec<_> = addresses.collect();
    let address = Some(met.gate.address().ip());
    let abroad = Abroad { gate: met.gate, token: met.token, keeping: Keeping::default() };
    Ok((address, Group::connect(rank, topology, &addresses, listener, Some(abroad), orders)?))
}

fn prepare(
    device: i32,
    rank: u32,
    size: u32,
    options: &WorldOptions,
) -> Result<(ProcessInfo, DeviceLimits, LocalListener)> {
    let limits = limits(device)?;
    let listener = LocalListener::open()?;
    let host = hosts::name(rank, size, options)?;
    let card = ProcessInfo {
        host,
        listener: listener.name().into(),
        gpu: driver::uuid(device)?,
        sms: limits.sms,
    };
    Ok((card, limits, listener))
}

fn read_cards(all: &[Vec<u8>], size: u32) -> Result<Vec<ProcessInfo>> {
    let during = "connecting a world";
    let nonsense = |rank: usize, what: &str| Error::PeerFailed {
        rank: rank as u32,
        during: during.into(),
        what: what.into(),
    };
    if all.len() != size as usize {
        let what = format!("the bootstrap gathered {} messages from {size} ranks", all.len());
        return Err(Error::Shape { what });
    }
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        let mut fields = Unpack::new(bytes);
        if fields.u64() != Some(PROTOCOL) {
            return Err(nonsense(rank, "it runs another version of mk"));
        }
        match fields.text() {
            Some(error) if error.is_empty() => {}
            Some(error) => return Err(nonsense(rank, &error)),
            None => return Err(nonsense(rank, "its message is cut short")),
        }
        let sms = |fields: &mut Unpack<'_>| fields.u64().and_then(|n| u32::try_from(n).ok());
        match (fields.text(), fields.text(), fields.text(), sms(&mut fields)) {
            (Some(host), Some(listener), Some(gpu), Some(sms)) => {
                Ok(ProcessInfo { host, listener, gpu, sms })
            }
            _ => Err(nonsense(rank, "its message is cut short")),
        }
    };
    all.iter().enumerate().map(read).collect()
}

fn check_gpus(cards: &[ProcessInfo], shared: bool) -> Result<()> {
    for (a, card) in cards.iter().enumerate().filter(|_| !shared) {
        if let Some(b) = cards[..a].iter().position(|c| c.gpu == card.gpu) {
            let ranks = (b as u32, a as u32);
            return Err(Error::SameDevice { ranks, device: card.gpu.clone() });
        }
    }
    Ok(())
}

/// Whether this GPU can access those of the others on its node. One that this process does not see cannot be asked
/// about; mapping its memory will tell.
fn reach(device: i32, cards: &[ProcessInfo]) -> Result<()> {
    for other in 0..driver::device_count()? {
        let gpu = driver::uuid(other)?;
        let needed = other != device && cards.iter().any(|c| c.gpu == gpu);
        if needed && !driver::can_access_peer(device, other)? {
            return Err(Error::NoPeerAccess { from: device, to: other });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_gpu_of_its_own() {
        let card = |gpu: &str| ProcessInfo {
            host: "h".into(),
            listener: String::new(),
            gpu: gpu.into(),
            sms: 132,
        };
        check_gpus(&["a", "b"].map(card), false).unwrap();
        let same = ["a", "b", "b"].map(card);
        let refused = check_gpus(&same, false);
        assert!(matches!(refused, Err(Error::SameDevice { ranks: (1, 2), .. })));
        check_gpus(&same, true).unwrap();
    }

    #[test]
    fn a_rank_without_a_gpu_is_everybodys_error() {
        let good = Pack::default().u64(PROTOCOL).text("").text("h").text("d").text("g");
        let good = good.u64(132).done();
        let bad = Pack::default().u64(PROTOCOL).text("no CUDA driver").done();
        let old = Pack::default().u64(PROTOCOL + 1).text("").done();
        let fails = |messages: &[Vec<u8>]| {
            let read = read_cards(messages, 2);
            read.map_or_else(|e| e.to_string(), |c| format!("{} cards", c.len()))
        };
        assert_eq!(fails(&[good.clone(), good.clone()]), "2 cards");
        assert_eq!(
            fails(&[good.clone(), bad]),
            "connecting a world: rank 1 failed: no CUDA driver"
        );
        assert!(fails(&[good.clone(), old]).contains("another version"));
        assert!(fails(&[good.clone(), good[..12].to_vec()]).contains("cut short"));
        assert!(fails(&[good]).contains("1 messages from 2 ranks"));
    }
}
