//! Which transports there are, and how ends of each are looked for and opened: the suite (`tests/transport`), `mk
//! doctor` and the choice of a network read this one table.

use super::{Ordering, Transport, TransportError, loopback, ofi, verbs};

/// A transport that mk knows.
#[derive(Clone, Copy, Debug)]
pub struct TransportRow {
    /// Its name in `MK_NET`.
    pub name: &'static str,
    /// Its place in the choice of a network between hosts, 1 the best; `None`: it is never chosen unasked.
    pub preference: Option<u8>,
    /// A network of it, with the usual options.
    pub network: fn() -> Network,
}

/// All of them. Other names are providers of libfabric ([`Network::named`]).
pub const TRANSPORTS: [TransportRow; 5] = [
    TransportRow {
        name: "loopback",
        preference: None,
        network: || Network::Loopback(loopback::Options::new(0, Ordering::InOrder)),
    },
    TransportRow { name: "efa", preference: Some(1), network: || Network::ofi("efa") },
    TransportRow { name: "tcp", preference: Some(3), network: || Network::ofi("tcp;ofi_rxm") },
    TransportRow { name: "shm", preference: None, network: || Network::ofi("shm") },
    TransportRow {
        name: "verbs",
        preference: Some(2),
        network: || Network::Verbs(verbs::Options::new(Ordering::InOrder)),
    },
];

/// What carries bytes between ranks: a transport, and how it is set.
#[derive(Clone, Debug, PartialEq)]
pub enum Network {
    /// Threads that copy, where all ranks are in one process.
    Loopback(loopback::Options),
    /// libfabric.
    Ofi(ofi::Options),
    /// libibverbs.
    Verbs(verbs::Options),
}

impl Network {
    /// By a name of [`TRANSPORTS`], or of a provider of libfabric.
    pub fn named(name: &str) -> Network {
        let row = TRANSPORTS.iter().find(|row| row.name == name);
        row.map_or_else(|| Network::ofi(name), |row| (row.network)())
    }

    fn ofi(provider: &str) -> Network {
        Network::Ofi(ofi::Options::new(provider))
    }

    /// Its name in messages: `loopback`, `ofi (efa)`, `verbs`.
    pub fn label(&self) -> String {
        match self {
            Network::Loopback(_) => "loopback".into(),
            Network::Ofi(options) => format!("ofi ({})", options.provider),
            Network::Verbs(_) => "verbs".into(),
        }
    }

    /// What it is here.
    ///
    /// # Errors
    /// [`TransportError::Unavailable`] and [`TransportError::Refused`], with the reason.
    pub fn probe(&self) -> Result<String, TransportError> {
        match self {
            Network::Loopback(_) => Ok("ranks of one process".into()),
            Network::Ofi(options) => ofi::available(&options.provider),
            Network::Verbs(options) => verbs::open(0, options).map(|end| end.caps().name.clone()),
        }
    }

    /// The same with the device that is near to a GPU at this PCI address, and at this address of the host, where the
    /// options name neither.
    pub fn near(mut self, pci: &str, address: impl FnOnce() -> String) -> Network {
        let near = match &mut self {
            Network::Loopback(_) => return self,
            Network::Ofi(options) => {
                if options.provider.starts_with("tcp") {
                    options.address.get_or_insert_with(address);
                }
                &mut options.near
            }
            Network::Verbs(options) => &mut options.near,
        };
        near.get_or_insert_with(|| pci.into());
        self
    }

    /// The same with so many network cards for each rank; `loopback` has none.
    pub fn with_cards(mut self, cards: u32) -> Network {
        match &mut self {
            Network::Loopback(_) => {}
            Network::Ofi(options) => options.rails = cards as usize,
            Network::Verbs(options) => options.cards = cards,
        }
        self
    }

    /// The ends of ranks of this process; of `loopback` those of all its ranks.
    ///
    /// # Errors
    /// As [`Network::probe`].
    pub fn open(
        &self,
        ranks: impl IntoIterator<Item = u32>,
    ) -> Result<Vec<Box<dyn Transport>>, TransportError> {
        let mut inside = match self {
            Network::Loopback(options) => Some(loopback::LoopbackNetwork::new(*options)?),
            Network::Ofi(_) | Network::Verbs(_) => None,
        };
        let open = |rank| -> Result<Box<dyn Transport>, TransportError> {
            Ok(match (self, &mut inside) {
                (Network::Ofi(options), _) => Box::new(ofi::Ofi::open(rank, options)?),
                (Network::Verbs(options), _) => verbs::open(rank, options)?,
                (Network::Loopback(_), Some(network)) => Box::new(network.end(rank)?),
                (Network::Loopback(_), None) => return Err(TransportError::Closed),
            })
        };
        let ends: Vec<_> = ranks.into_iter().map(open).collect::<Result<_, _>>()?;
        match self {
            Network::Loopback(options) if ends.len() != options.ranks as usize => {
                Err(TransportError::Refused {
                    transport: self.label(),
                    what: "it joins ranks of one process; between processes use `ofi` or `verbs`"
                        .into(),
                })
            }
            _ => Ok(ends),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_their_transports() {
        for row in TRANSPORTS {
            assert_eq!(Network::named(row.name), (row.network)());
        }
        assert_eq!(Network::named("tcp").label(), "ofi (tcp;ofi_rxm)");
        assert_eq!(Network::named("sockets").label(), "ofi (sockets)");
        let mut places: Vec<u8> = TRANSPORTS.iter().filter_map(|row| row.preference).collect();
        places.sort_unstable();
        assert_eq!(places, [1, 2, 3]);
    }

    #[test]
    fn loopback_joins_ranks_of_one_process() {
        let network = Network::Loopback(loopback::Options::new(2, Ordering::InOrder));
        assert_eq!(network.open(0..2).unwrap().len(), 2);
        let error = network.open(1..2).err().expect("half of a network");
        assert!(error.to_string().contains("ranks of one process"), "{error}");
    }

    #[test]
    fn options_that_name_a_place_keep_it() {
        let own = Network::Ofi(ofi::Options { near: Some("a".into()), ..ofi::Options::new("tcp") });
        let Network::Ofi(placed) = own.near("b", || "10.0.0.1".into()) else { panic!("ofi") };
        assert_eq!(
            (placed.near.as_deref(), placed.address.as_deref()),
            (Some("a"), Some("10.0.0.1"))
        );
        let Network::Ofi(placed) = Network::named("efa").near("b", String::new) else {
            panic!("ofi")
        };
        assert_eq!((placed.near.as_deref(), placed.address), (Some("b"), None));
    }
}
