//! One process per GPU: how a process joins its world.

use super::budget::SmShares;
use super::group::{Door, Group};
use super::pack::{Pack, Unpack};
use super::rendezvous::os;
use super::{Bootstrap, DeviceLimits, Topology, UnixBootstrap, World, env_launcher, limits};
use crate::Error;
use crate::driver::{self, Context};
use std::sync::Arc;
use std::time::Duration;

/// Bound on the wait for the other processes in [`World::from_env`]: a launcher starts them together.
const RENDEZVOUS: Duration = Duration::from_secs(300);

/// Changes with anything that the processes of a world say to each other.
const PROTOCOL: u64 = 4;

/// What a process tells the others of itself.
struct Card {
    host: String,
    door: String,
    gpu: String,
    /// SMs of that GPU.
    sms: u32,
}

impl World {
    /// This process's part of a world of one process per GPU, as a launcher such as torchrun starts it: its rank is
    /// `RANK`, its GPU `LOCAL_RANK`. Collective; all processes must be on one host.
    ///
    /// # Errors
    /// [`Error::Environment`] with the variable that is missing or wrong; [`Error::SeveralHosts`];
    /// [`Error::Rendezvous`] with the ranks that did not come within 5 minutes; as [`World::connect`].
    pub fn from_env() -> Result<World, Error> {
        let device = env_launcher()?.local_rank;
        let bootstrap = UnixBootstrap::from_env(RENDEZVOUS)?;
        World::connect(Box::new(bootstrap), i32::try_from(device).unwrap_or(i32::MAX))
    }

    /// This process's part of a world of one process per GPU: its rank is the bootstrap's, its GPU `device`.
    /// Collective. The bootstrap is used in this call alone and then dropped; the processes keep a socket between
    /// each two of them.
    ///
    /// Drop the world before the process ends: ending without it looks like a death to the others.
    ///
    /// # Errors
    /// What the bootstrap says; [`Error::NoSuchDevice`], [`Error::DriverMissing`], [`Error::DriverTooOld`],
    /// [`Error::NoPeerAccess`]; [`Error::SeveralHosts`]; [`Error::SameDevice`]; [`Error::PeerFailed`] with the error
    /// of another process, which fails all of them; [`Error::System`].
    pub fn connect(mut bootstrap: Box<dyn Bootstrap>, device: i32) -> Result<World, Error> {
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
        let mine = prepare(device);
        let said = match &mine {
            Ok((card, ..)) => Pack::default()
                .u64(PROTOCOL)
                .text("")
                .text(&card.host)
                .text(&card.door)
                .text(&card.gpu)
                .u64(card.sms.into()),
            Err(error) => Pack::default().u64(PROTOCOL).text(&error.to_string()),
        };
        let all = bootstrap.all_gather(&said.done())?;
        let (card, limits, door) = mine?;
        let cards = read_cards(&all, size)?;
        check_cards(&cards, &card)?;
        // All of them are on this host.
        let topology = Topology::one_node(size);
        let gpus: Vec<_> = cards.iter().map(|c| (c.gpu.as_str(), c.sms)).collect();
        let shares = SmShares::new(&gpus);
        if size == 1 {
            return World::assemble(
                0,
                topology,
                vec![Arc::new(Context::retain(device)?)],
                vec![limits],
                shares,
                None,
            );
        }
        let doors: Vec<String> = cards.iter().map(|c| c.door.clone()).collect();
        let group = Group::connect(bootstrap.as_ref(), &door, &doors)?;
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
            Some(Arc::new(group)),
        )
    }
}

fn prepare(device: i32) -> Result<(Card, DeviceLimits, Door), Error> {
    let limits = limits(device)?;
    let door = Door::open()?;
    // The same in all containers of a machine, and new at each boot.
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|e| os("read of boot_id", &e))?;
    let card = Card {
        host: host.trim().into(),
        door: door.name().into(),
        gpu: driver::uuid(device)?,
        sms: limits.sms,
    };
    Ok((card, limits, door))
}

fn read_cards(all: &[Vec<u8>], size: u32) -> Result<Vec<Card>, Error> {
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
            (Some(host), Some(door), Some(gpu), Some(sms)) => Ok(Card { host, door, gpu, sms }),
            _ => Err(nonsense(rank, "its message is cut short")),
        }
    };
    all.iter().enumerate().map(read).collect()
}

fn check_cards(cards: &[Card], mine: &Card) -> Result<(), Error> {
    if let Some(rank) = cards.iter().position(|c| c.host != mine.host) {
        return Err(Error::SeveralHosts { what: format!("rank {rank} runs on another machine") });
    }
    for (a, card) in cards.iter().enumerate() {
        if let Some(b) = cards[..a].iter().position(|c| c.gpu == card.gpu) {
            let ranks = (b as u32, a as u32);
            return Err(Error::SameDevice { ranks, device: card.gpu.clone() });
        }
    }
    Ok(())
}

/// Whether this GPU can access those of the others on its node. One that this process does not see cannot be asked about; mapping
/// its memory will tell.
fn reach(device: i32, cards: &[Card]) -> Result<(), Error> {
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

    fn card(host: &str, gpu: &str) -> Card {
        Card { host: host.into(), door: String::new(), gpu: gpu.into(), sms: 132 }
    }

    #[test]
    fn hosts_and_gpus_are_compared() {
        let here = card("h", "a");
        check_cards(&[card("h", "a"), card("h", "b")], &here).unwrap();
        let two = check_cards(&[card("h", "a"), card("i", "b")], &here);
        assert!(matches!(two, Err(Error::SeveralHosts { .. })));
        let same = check_cards(&[card("h", "a"), card("h", "b"), card("h", "b")], &here);
        assert!(matches!(same, Err(Error::SameDevice { ranks: (1, 2), .. })));
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
