//! Which network a world has.

use super::NetOptions;
use crate::Error;
use crate::driver;
use crate::env;
use crate::proxy::Ends;
use crate::transport::{
    Ordering, Transport, TransportError,
    loopback::{self, Fabric as Copies},
    ofi::{self, Ofi},
    shaped::Shaped,
    verbs,
};
use crate::world::{Deadline, World};

/// What carries bytes between the nodes of a world.
#[derive(Clone, Debug, PartialEq)]
pub enum Fabric {
    /// Threads that copy, in this order, where all ranks are in one process.
    Loopback(Ordering),
    /// libfabric. Without an address, providers that have them are at the host's own ([`World::address`]).
    Ofi(ofi::Options),
    /// libibverbs.
    Verbs(verbs::Options),
}

/// What is looked for, best first: by the name that `MK_NET` gives it.
const KNOWN: [&str; 3] = ["efa", "verbs", "tcp"];
/// libfabric's name of a network that is everywhere.
const TCP: &str = "tcp;ofi_rxm";
const CALL: &str = "choosing a network";

impl Fabric {
    /// By its short name: `efa`, `verbs`, `tcp`; others are providers of libfabric.
    pub fn named(name: &str) -> Fabric {
        match name {
            "verbs" => Fabric::Verbs(verbs::Options::new(Ordering::InOrder)),
            "tcp" => Fabric::Ofi(ofi::Options::new(TCP)),
            provider => Fabric::Ofi(ofi::Options::new(provider)),
        }
    }

    /// The best that all processes of a world have: `efa`, `verbs`, libfabric over TCP; `loopback` where all ranks are in one process;
    /// the one that `MK_NET` names. Collective.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] with what is missing, here and elsewhere.
    pub fn choose(world: &World) -> Result<Fabric, Error> {
        let Some(group) = world.group() else { return Ok(Fabric::Loopback(Ordering::InOrder)) };
        let asked = env::net();
        let names: Vec<&str> = match &asked {
            Some(name) => vec![name],
            None => KNOWN.to_vec(),
        };
        let here: Vec<Result<(), String>> =
            names.iter().map(|name| Fabric::named(name).is_here()).collect();
        let has =
            |(name, found): (&&str, &Result<(), String>)| found.is_ok().then(|| (*name).into());
        let mine: Vec<String> = names.iter().zip(&here).filter_map(has).collect();
        let lacks: Vec<String> = here.into_iter().filter_map(Result::err).collect();
        let said = [mine.join("\n"), lacks.join("; ")].join("\n\n");
        let said: String = said.chars().take(4000).collect();
        let all = group.all_gather(CALL, said.as_bytes(), Deadline::within(super::PATIENCE))?;
        in_common(&all).map(|name| Fabric::named(&name)).map_err(Error::Transport)
    }

    /// Whether an end of it can be opened here.
    fn is_here(&self) -> Result<(), String> {
        match self {
            Fabric::Loopback(_) => Ok(()),
            Fabric::Ofi(options) => ofi::available(&options.provider).map(drop),
            Fabric::Verbs(options) => verbs::open(0, options).map(drop),
        }
        .map_err(|e: TransportError| e.to_string())
    }

    /// Ends for the ranks of this process, each with the device that is nearest to its GPU.
    pub(super) fn ends(&self, world: &World, options: &NetOptions) -> Result<Ends, Error> {
        if let Fabric::Loopback(ordering) = self {
            return loopback(world, *ordering, options);
        }
        let mut ends = Ends::new();
        for rank in world.local_ranks() {
            let near = Some(driver::pci(world.device(rank)?.ordinal)?);
            let end: Box<dyn Transport> = match self {
                Fabric::Loopback(_) => continue,
                Fabric::Ofi(of) => {
                    let own = || world.address().map(|a| a.to_string());
                    let address = match of.provider.starts_with("tcp") {
                        true => of.address.clone().or_else(own).or(Some("127.0.0.1".into())),
                        false => of.address.clone(),
                    };
                    let near = of.near.clone().or(near);
                    Box::new(Ofi::open(rank, &ofi::Options { address, near, ..of.clone() })?)
                }
                Fabric::Verbs(of) => {
                    let near = of.near.clone().or(near);
                    verbs::open(rank, &verbs::Options { near, ..of.clone() })?
                }
            };
            ends.push((rank, Box::new(Shaped::new(end, options.shape.clone()))));
        }
        Ok(ends)
    }
}

fn loopback(world: &World, ordering: Ordering, options: &NetOptions) -> Result<Ends, Error> {
    if world.local_ranks() != (0..world.size()) {
        let what = "the network `loopback` joins ranks of one process".into();
        return Err(Error::Shape { what });
    }
    let lanes = loopback::Options::new(1, ordering).lanes.max(4);
    let mut fabric = Copies::new(loopback::Options {
        lanes,
        threads: options.threads.max(1) * world.size() as usize,
        ..loopback::Options::new(world.size(), ordering)
    })?;
    let mut ends = Ends::new();
    for rank in world.local_ranks() {
        let end = Shaped::new(fabric.end(rank)?, options.shape.clone());
        ends.push((rank, Box::new(end)));
    }
    Ok(ends)
}

/// The first of rank 0's networks that all have, by what each rank says: names, an empty line, and why it has no others.
fn in_common(said: &[Vec<u8>]) -> Result<String, TransportError> {
    let parts: Vec<(Vec<String>, String)> = said
        .iter()
        .map(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            let (names, lacks) = text.split_once("\n\n").unwrap_or((&text, ""));
            (names.lines().map(String::from).collect(), lacks.to_string())
        })
        .collect();
    let first = parts.first().map_or(&[][..], |(names, _)| names);
    if let Some(name) = first.iter().find(|name| parts.iter().all(|(n, _)| n.contains(name))) {
        return Ok(name.clone());
    }
    // The first that has none at all, else each has one that another lacks.
    let lacking = (0..).zip(&parts).find(|(_, (names, _))| names.is_empty());
    let what = match lacking {
        Some((rank, (_, lacks))) => format!("rank {rank} has none: {lacks}"),
        None => {
            let has =
                (0..).zip(&parts).map(|(rank, (n, _))| format!("rank {rank} has {}", n.join(", ")));
            has.collect::<Vec<_>>().join("; ")
        }
    };
    Err(TransportError::Unavailable {
        transport: "between the nodes of this world".into(),
        what,
        help: "`mk doctor` on each host lists networks and what is missing".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_what_is_chosen() {
        let chosen = |said: &[&str]| {
            let said: Vec<_> = said.iter().map(|s| s.as_bytes().to_vec()).collect();
            in_common(&said).unwrap_or_else(|e| e.to_string())
        };
        assert_eq!(chosen(&["efa\ntcp\n\nno verbs", "verbs\ntcp\n\nno efa"]), "tcp");
        assert_eq!(chosen(&["efa\ntcp\n\n", "efa\ntcp\n\n"]), "efa");
        let none = chosen(&["tcp\n\n", "\n\nno libfabric"]);
        assert!(none.contains("rank 1 has none: no libfabric"), "{none}");
        let apart = chosen(&["efa\n\n", "verbs\n\n"]);
        assert!(apart.contains("rank 0 has efa; rank 1 has verbs"), "{apart}");
        assert_eq!(Fabric::named("tcp"), Fabric::Ofi(ofi::Options::new(TCP)));
        assert!(matches!(Fabric::named("shm"), Fabric::Ofi(o) if o.provider == "shm"));
    }
}
