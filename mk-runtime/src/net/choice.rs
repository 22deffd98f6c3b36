//! Which network a world has.

use super::options::{ArenaMemory, NetOptions, PATIENCE};
use crate::Error;
use crate::driver;
use crate::env;
use crate::proxy::Ends;
use crate::transport::{
    Network, Ordering, TRANSPORTS, TransportError, Visibility, loopback, shaped::Shaped,
};
use crate::world::{Deadline, World};

const CALL: &str = "choosing a network";
/// Lanes of `loopback`, at least.
const LANES: u32 = 4;

/// The best network that all processes of a world have, by [`TRANSPORTS`]; `loopback` where all ranks are in one
/// process; the one that `MK_NET` names. Collective.
///
/// # Errors
/// [`TransportError::Unavailable`] with what is missing, here and elsewhere.
pub fn choose(world: &World) -> Result<Network, Error> {
    let Some(group) = world.group() else { return Ok(Network::named("loopback")) };
    let names: Vec<String> = match env::net() {
        Some(name) => vec![name],
        None => {
            let mut rows: Vec<_> =
                TRANSPORTS.iter().filter(|row| row.preference.is_some()).collect();
            rows.sort_by_key(|row| row.preference);
            rows.into_iter().map(|row| row.name.into()).collect()
        }
    };
    let (mut mine, mut lacks) = (Vec::new(), Vec::new());
    for name in names {
        match Network::named(&name).probe() {
            Ok(_) => mine.push(name),
            Err(error) => lacks.push(error.to_string()),
        }
    }
    let said = [mine.join("\n"), lacks.join("; ")].join("\n\n");
    let said: String = said.chars().take(4000).collect();
    let all = group.all_gather(CALL, said.as_bytes(), Deadline::within(PATIENCE))?;
    in_common(&all).map(|name| Network::named(&name)).map_err(Error::Transport)
}

/// Ends for the ranks of this process, each with the device that is nearest to its GPU.
pub(super) fn ends(network: &Network, world: &World, options: &NetOptions) -> Result<Ends, Error> {
    let ranks = world.local_ranks();
    let opened = match network {
        Network::Loopback(_) if ranks != (0..world.size()) => {
            let what = "the network `loopback` joins ranks of one process".into();
            return Err(Error::Shape { what });
        }
        Network::Loopback(of) => {
            let (lanes, threads) =
                (of.lanes.max(LANES), options.threads.max(1) * world.size() as usize);
            let of = loopback::Options { ranks: world.size(), lanes, threads, ..*of };
            Network::Loopback(of).open(ranks.clone())?
        }
        Network::Ofi(_) | Network::Verbs(_) => {
            let mut all = Vec::new();
            let mut network = network.clone();
            let in_gpu = options.memory == ArenaMemory::Gpu;
            if let Network::Ofi(of) = &mut network {
                of.gpu_memory |= in_gpu;
            }
            for rank in ranks.clone() {
                if in_gpu {
                    let label = network.label();
                    let see = Visibility::of(world.device(rank)?.ordinal)?;
                    match &mut network {
                        Network::Ofi(of) => {
                            of.flush = see.flush(options.flush, Ordering::Unordered, &label)?;
                        }
                        Network::Verbs(of) => {
                            of.flush = see.flush(options.flush, of.ordering, &label)?;
                        }
                        // Its copy engines set words behind their own data.
                        Network::Loopback(_) => {}
                    }
                }
                let own = || world.address().map_or("127.0.0.1".into(), |a| a.to_string());
                let near = network.clone().near(&driver::pci(world.device(rank)?.ordinal)?, own);
                all.extend(near.open([rank])?);
            }
            all
        }
    };
    let shaped = |end| Box::new(Shaped::new(end, options.shape.clone())) as _;
    Ok(ranks.zip(opened.into_iter().map(shaped)).collect())
}

/// The network of ranks of one process, in this order.
pub(super) fn inside(ordering: Ordering) -> Network {
    Network::Loopback(loopback::Options::new(0, ordering))
}

/// The first of rank 0's networks that all have, by what each rank says: names, an empty line, and why it has no
/// others.
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
    }
}
