//! Which processes are on which host, and how those of different hosts find each other.

use super::Bootstrap;
use super::mesh::MeshListener;
use super::pack::{Pack, Unpack};
use super::rendezvous::os;
use super::tcp::{Token, nonce};
use crate::env;
use crate::launcher::Launcher;
use crate::world::topology::Topology;
use crate::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

const CALL: &str = "connecting hosts";
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Options of a world beyond rank and GPU.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WorldOptions {
    /// The shared secret of all hosts of the run. Required for several hosts, except over loopback.
    pub token: Option<Token>,
    /// This host's address, for the others. Default: the local address of its route to rank 0.
    pub address: Option<IpAddr>,
    /// Pretends that the ranks are on so many hosts, consecutive ranks together: for tests on one machine.
    pub nodes: Option<u32>,
    /// Lets several processes share a GPU, for tests: by time slices, or concurrently under MPS.
    pub share_gpus: bool,
    /// Name or address of rank 0's host; the route to it gives this host's own address.
    toward: Option<String>,
}

impl WorldOptions {
    /// What the environment says: `MK_TOKEN_FILE`, `MK_ADDRESS`, `MK_NODES`, `MK_SHARE_GPU`.
    ///
    /// # Errors
    /// [`Error::Variable`] for one that makes no sense; as [`Token::from_file`].
    pub fn from_env() -> Result<WorldOptions> {
        let said = env::world()?;
        let address = match said.address {
            None => None,
            Some(value) => match value.parse() {
                Ok(address) => Some(address),
                Err(_) => {
                    let what = "an address is needed, as in 10.0.0.7".into();
                    return Err(Error::Variable { variable: "MK_ADDRESS", value, what });
                }
            },
        };
        let token = said.token_file.map(|path| Token::from_file(&path)).transpose()?;
        let (nodes, share_gpus, toward) = (said.nodes, said.share_gpus, said.master);
        Ok(WorldOptions { token, address, nodes, share_gpus, toward })
    }
}

/// Identity of this host: equal in all containers of a machine, new at each boot.
pub(in crate::world) fn name(rank: u32, size: u32, options: &WorldOptions) -> Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|e| os("read of boot_id", &e))?;
    let boot = boot.trim();
    let Some(nodes) = options.nodes else { return Ok(boot.into()) };
    let topology = Topology::nodes_of(size, size.checked_div(nodes).unwrap_or(0));
    match topology.map(|t| (t.nodes(), t.node(rank))) {
        Ok((all, Some(node))) if all == nodes => Ok(format!("{boot}, node {node}")),
        _ => {
            let what = format!("{size} ranks are not as many on each of {nodes} nodes");
            Err(Error::Shape { what })
        }
    }
}

/// Number of nodes, and ranks of each, from the host name of every rank.
pub(in crate::world) fn topology(names: &[&str]) -> Result<Topology> {
    let first = names.first().copied().unwrap_or_default();
    let local = names.iter().take_while(|name| **name == first).count().max(1);
    let whole = |host: &[&str]| host.len() == local && host.iter().all(|name| *name == host[0]);
    let apart = |i: usize, host: &[&str]| !names[..i * local].contains(&host[0]);
    let fits = names.chunks(local).enumerate().all(|(i, host)| whole(host) && apart(i, host));
    if !fits {
        let mut hosts: Vec<(&str, Vec<u32>)> = Vec::new();
        for (rank, name) in (0..).zip(names) {
            match hosts.iter_mut().find(|(of, _)| of == name) {
                Some((_, ranks)) => ranks.push(rank),
                None => hosts.push((name, vec![rank])),
            }
        }
        let ranks: Vec<_> = hosts.iter().map(|(_, ranks)| format!("{ranks:?}")).collect();
        let what = format!(
            "the ranks of a host must be neighbours, and hosts have as many each; here hosts have ranks {}",
            ranks.join(", ")
        );
        return Err(Error::SeveralHosts { what });
    }
    Topology::nodes_of(names.len() as u32, local as u32)
}

fn no_token(what: &str) -> Error {
    let what = format!(
        "{what}, and there is no token: give all hosts of the run a file with the same secret, 16 bytes or more, that \
         nobody else may read, and name it by MK_TOKEN_FILE"
    );
    Error::SeveralHosts { what }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let failed = |why: String| Error::SeveralHosts {
        what: format!("the address of rank 0's host, `{host}`, is not known here: {why}"),
    };
    let found = (host, port).to_socket_addrs().map_err(|e| failed(e.to_string()))?;
    let all: Vec<_> = found.collect();
    let first = all.iter().find(|a| a.is_ipv4()).or(all.first()).copied();
    first.ok_or_else(|| failed("it has none".into()))
}

/// Address at which rank 0 meets the others, and the secret. `several`: the launcher has started processes on more than
/// one host.
pub(in crate::world) fn meeting(
    launcher: &Launcher,
    options: &WorldOptions,
    several: bool,
) -> Result<(SocketAddr, Token)> {
    // One host that simulates several needs no address of others.
    let at = match (&launcher.meet, several) {
        (Err(_), false) => ("localhost".to_string(), port_of(&launcher.run)),
        (meet, _) => meet.clone()?,
    };
    let mut address = resolve(&at.0, at.1)?;
    match &options.token {
        Some(token) => {
            // A host's own name is often an address of its own only (127.0.1.1), and the others have another.
            if several && launcher.rank == 0 && address.ip().is_loopback() {
                address.set_ip(Ipv4Addr::UNSPECIFIED.into());
            }
            Ok((address, token.clone()))
        }
        None if address.ip().is_loopback() => {
            Ok((address, Token::of_run(&launcher.run, address.ip())?))
        }
        None => Err(no_token(&format!("rank 0 meets the others at {address}"))),
    }
}

fn port_of(run: &str) -> u16 {
    let sum = run.bytes().fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    20_000 + (sum % 10_000) as u16
}

/// What hosts need to connect.
pub(in crate::world) struct Met {
    pub(in crate::world) gate: MeshListener,
    /// Address of every rank's listener.
    pub(in crate::world) addresses: Vec<SocketAddr>,
    /// The world's secret.
    pub(in crate::world) token: Token,
}

/// Opens a listener and exchanges its address. Collective: a failure of one rank is an error on all.
pub(in crate::world) fn exchange(
    bootstrap: &mut dyn Bootstrap,
    host: &str,
    hosts: &[&str],
    options: &WorldOptions,
) -> Result<Met> {
    let salt = nonce().map_err(|e| os("read of /dev/urandom", &e))?;
    let one_machine = hosts.iter().all(|name| machine(name) == machine(host));
    let mine = open(bootstrap, one_machine, options);
    let said = match &mine {
        Ok(gate) => {
            let shown = options.token.as_ref().map(|token| token.knows(&salt));
            let shown = shown.map_or(Vec::new(), |s| s.to_vec());
            let address = gate.address().to_string();
            Pack::default().text("").text(&address).text(host).bytes(&salt).bytes(&shown)
        }
        Err(error) => Pack::default().text(&error.to_string()),
    };
    let all = bootstrap.all_gather(&said.done())?;
    let gate = mine?;
    let mut salts = Vec::new();
    let mut addresses = Vec::new();
    for (rank, bytes) in (0..).zip(&all) {
        let failed = |what: String| Error::PeerFailed { rank, during: CALL.into(), what };
        let (address, theirs, salt, shown) = read(bytes).map_err(failed)?;
        let same = match &options.token {
            Some(token) => token.knows(&salt)[..] == shown[..],
            None => shown.is_empty(),
        };
        if !same {
            let what = format!(
                "rank {rank} has another token than rank {}, or one of them has none: MK_TOKEN_FILE must name the \
                 same secret on all hosts",
                bootstrap.rank()
            );
            return Err(Error::SeveralHosts { what });
        }
        if address.ip().is_loopback() && machine(&theirs) != machine(host) {
            let what = format!(
                "rank {rank} is on another machine, and says that it is at {address}: name its address by MK_ADDRESS \
                 there"
            );
            return Err(Error::SeveralHosts { what });
        }
        salts.push(salt);
        addresses.push(address);
    }
    let token = Token::of_world(options.token.as_ref(), &salts);
    Ok(Met { gate, addresses, token })
}

/// A rank's address, host, salt, and proof of its token.
type Said = (SocketAddr, String, [u8; 32], Vec<u8>);

fn read(bytes: &[u8]) -> Result<Said, String> {
    let cut = || "its message is cut short".to_string();
    let mut fields = Unpack::new(bytes);
    match fields.text() {
        Some(error) if error.is_empty() => {}
        Some(error) => return Err(error),
        None => return Err(cut()),
    }
    let address = fields.text().and_then(|text| text.parse().ok()).ok_or_else(cut)?;
    let host = fields.text().ok_or_else(cut)?;
    let salt = fields.bytes().and_then(|b| b.try_into().ok()).ok_or_else(cut)?;
    Ok((address, host, salt, fields.bytes().ok_or_else(cut)?.to_vec()))
}

/// The machine of a host that it simulates.
fn machine(host: &str) -> &str {
    host.split(',').next().unwrap_or_default()
}

fn open(
    bootstrap: &dyn Bootstrap,
    one_machine: bool,
    options: &WorldOptions,
) -> Result<MeshListener> {
    let at = address(bootstrap, one_machine, options)?;
    if options.token.is_none() && !at.is_loopback() {
        return Err(no_token(&format!("the world has several hosts, this one at {at}")));
    }
    MeshListener::open(at)
}

/// The address of this host for others.
fn address(bootstrap: &dyn Bootstrap, one_machine: bool, options: &WorldOptions) -> Result<IpAddr> {
    let own = one_machine.then_some(LOCAL);
    if let Some(address) = options.address.or(own).or_else(|| bootstrap.address()) {
        return Ok(address);
    }
    match &options.toward {
        // Connecting a UDP socket sends nothing, but selects the local address.
        Some(host) => {
            let to = resolve(host, 9)?;
            let any: SocketAddr = match to.is_ipv4() {
                true => (Ipv4Addr::UNSPECIFIED, 0).into(),
                false => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let from = UdpSocket::bind(any).and_then(|s| s.connect(to).and_then(|()| s.local_addr()));
            from.map(|a| a.ip()).map_err(|e| Error::SeveralHosts {
                what: format!("no way leads from here to {to}: {e}; name this host's address by MK_ADDRESS"),
            })
        }
        None => Err(Error::SeveralHosts {
            what: "the world has several hosts, and nothing says by which address they reach this one: set MK_ADDRESS"
                .into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_nodes() {
        let nodes = |names: &[&str]| topology(names).map(|t| (t.nodes(), t.ranks()));
        assert_eq!(nodes(&["a"]).unwrap(), (1, 1));
        assert_eq!(nodes(&["a", "a", "b", "b"]).unwrap(), (2, 4));
        assert_eq!(nodes(&["a", "b", "c"]).unwrap(), (3, 3));
        for wrong in
            [&["a", "a", "b"][..], &["a", "b", "a", "b"], &["a", "b", "b"], &["a", "b", "a"]]
        {
            let error = nodes(wrong).unwrap_err().to_string();
            assert!(error.contains("must be neighbours"), "{wrong:?}: {error}");
        }
        let two = WorldOptions { nodes: Some(2), ..WorldOptions::default() };
        let of = |rank| name(rank, 4, &two).unwrap();
        assert!(of(0) == of(1) && of(2) == of(3) && of(1) != of(2));
        assert!(name(0, 3, &two).unwrap_err().to_string().contains("of 2 nodes"));
        assert_eq!(name(0, 4, &WorldOptions::default()).unwrap(), of(0).split(',').next().unwrap());
    }

    /// A bootstrap of one process that hears what it is told.
    struct Alone(Vec<Vec<u8>>);

    impl Bootstrap for Alone {
        fn rank(&self) -> u32 {
            0
        }

        fn world_size(&self) -> u32 {
            1 + self.0.len() as u32
        }

        fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
            Ok(std::iter::once(mine.to_vec()).chain(self.0.iter().cloned()).collect())
        }
    }

    #[test]
    fn what_hosts_say_is_checked() {
        let secret = |text: &[u8]| Token::new(text).unwrap();
        let other = |address: &str, host: &str, token: Option<Token>| {
            let salt = [7; 32];
            let shown = token.map_or(Vec::new(), |t| t.knows(&salt).to_vec());
            let pack = Pack::default().text("").text(address).text(host);
            pack.bytes(&salt).bytes(&shown).done()
        };
        let judged = |said: Vec<u8>, token: Option<Token>, at: IpAddr| {
            let options = WorldOptions { token, address: Some(at), ..WorldOptions::default() };
            let hosts = ["here, node 0", "there"];
            match exchange(&mut Alone(vec![said]), hosts[0], &hosts, &options) {
                Ok(met) => format!("{} at {}", met.addresses.len(), met.addresses[1]),
                Err(error) => error.to_string(),
            }
        };
        let token = || Some(secret(b"the secret of this run"));
        let here = other("127.0.0.1:7", "here, node 1", None);
        assert_eq!(judged(here.clone(), None, LOCAL), "2 at 127.0.0.1:7");
        assert!(judged(here.clone(), token(), LOCAL).contains("another token"));
        let wrong = other("127.0.0.1:7", "here, node 1", Some(secret(b"another run's secret")));
        assert!(judged(wrong.clone(), token(), LOCAL).contains("another token"));
        assert!(judged(wrong, None, LOCAL).contains("another token"));
        let right = other("127.0.0.1:7", "here, node 1", token());
        assert_eq!(judged(right, token(), LOCAL), "2 at 127.0.0.1:7");
        let elsewhere = other("127.0.0.1:7", "there", None);
        assert!(judged(elsewhere, None, LOCAL).contains("name its address by MK_ADDRESS"));
        // Off loopback nothing is opened without a token.
        assert!(judged(here.clone(), None, [0, 0, 0, 0].into()).contains("MK_TOKEN_FILE"));
        assert!(judged(here[..20].to_vec(), None, LOCAL).contains("cut short"));
        let failed = Pack::default().text("no network").done();
        assert_eq!(judged(failed, None, LOCAL), "connecting hosts: rank 1 failed: no network");
        assert!(judged(here, None, [192, 0, 2, 1].into()).contains("MK_TOKEN_FILE"));
    }

    #[test]
    fn the_way_to_rank_0_says_where_this_host_is() {
        let toward =
            |host: &str| WorldOptions { toward: Some(host.into()), ..WorldOptions::default() };
        let alone = Alone(Vec::new());
        let none = WorldOptions::default();
        assert_eq!(address(&alone, false, &toward("127.0.0.1")).unwrap(), LOCAL);
        assert_eq!(address(&alone, true, &none).unwrap(), LOCAL);
        let unknown = address(&alone, false, &none).unwrap_err();
        assert!(unknown.to_string().contains("set MK_ADDRESS"), "{unknown}");
        let nowhere = address(&alone, false, &toward("no such host")).unwrap_err();
        assert!(nowhere.to_string().contains("is not known here"), "{nowhere}");
    }
}
