//! Which port, GID and MTU: a function of what is there and of the options.

use super::Options;
use crate::transport::place::Place;
use std::fmt::Write as _;

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device: `mlx5_0`.
    pub device: String,
    /// Its number, from 1 on.
    pub number: u8,
    /// Whether its link is up.
    pub active: bool,
    /// RoCE, or else InfiniBand.
    pub ethernet: bool,
    /// Its address on InfiniBand.
    pub lid: u16,
    /// Bytes of a packet.
    pub mtu: u32,
    /// Most bytes of a write.
    pub max_bytes: u64,
    /// Gb/s, 0 where the system does not say.
    pub rate: u32,
    /// Where it is.
    pub place: Place,
    /// Its table of GIDs, without empty entries.
    pub gids: Vec<Gid>,
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// Which packets it is for.
    pub kind: GidKind,
    /// The address itself.
    pub raw: [u8; 16],
}

/// Which packets a GID is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: Ethernet, not routed.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
}

impl Gid {
    fn is_ipv4(&self) -> bool {
        self.raw[..10] == [0; 10] && self.raw[10..12] == [0xff; 2]
    }

    fn is_link_local(&self) -> bool {
        self.raw[..2] == [0xfe, 0x80]
    }

    /// Larger is better: routed before not, IPv4 before IPv6, global before link-local.
    fn rank(&self) -> u32 {
        let kind = match self.kind {
            GidKind::RoceV2 => 4,
            GidKind::InfiniBand | GidKind::RoceV1 => 0,
        };
        kind + 2 * u32::from(self.is_ipv4()) + u32::from(!self.is_link_local())
    }
}

/// The port that an end uses, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index in the list of ports.
    pub port: usize,
    /// The GID; on InfiniBand it is used between subnets only.
    pub gid: Gid,
    /// Bytes of a packet.
    pub mtu: u32,
}

/// Chooses: what the options name; else, of the active ports, the nearest to the GPU, then the fastest, then the first
/// by name.
///
/// # Errors
/// What there is, and why it does not fit.
pub fn choose(ports: &[Port], near: &Place, options: &Options) -> Result<Choice, String> {
    if ports.is_empty() {
        return Err("there is no RDMA device".into());
    }
    let named = |p: &&(usize, &Port)| {
        options.device.as_ref().is_none_or(|d| *d == p.1.device)
            && options.port.is_none_or(|n| n == p.1.number)
    };
    let all: Vec<(usize, &Port)> = ports.iter().enumerate().collect();
    let named: Vec<_> = all.iter().filter(named).collect();
    let wanted = match (&options.device, options.port) {
        (Some(device), Some(port)) => format!("port {port} of device {device}"),
        (Some(device), None) => format!("device {device}"),
        (None, Some(port)) => format!("a port {port}"),
        (None, None) => "a port".into(),
    };
    if named.is_empty() {
        return Err(format!("there is not {wanted}, among {}", list(ports)));
    }
    let active = named.iter().filter(|(_, p)| p.active);
    let best = active.min_by(|(_, a), (_, b)| {
        let order = near.nearness(&b.place).cmp(&near.nearness(&a.place)).then(b.rate.cmp(&a.rate));
        order
            .then_with(|| natural(&a.device).cmp(&natural(&b.device)))
            .then(a.number.cmp(&b.number))
    });
    let Some((i, port)) = best else {
        return Err(format!("{wanted} is not active, among {}", list(ports)));
    };
    Ok(Choice { port: *i, gid: gid(port, options)?, mtu: mtu(port, options)? })
}

/// The options of each of several ports, in the order of [`choose`].
///
/// # Errors
/// As [`choose`], where there are fewer.
pub fn spread(ports: &[Port], near: &Place, options: &Options) -> Result<Vec<Options>, String> {
    let (mut left, mut all) = (ports.to_vec(), Vec::new());
    for n in 0..options.cards {
        let best = choose(&left, near, options).map_err(|why| match n {
            0 => why,
            n => {
                format!("{} cards are asked for, and there are {n}: {}", options.cards, list(ports))
            }
        })?;
        let port = left.remove(best.port);
        all.push(Options {
            device: Some(port.device),
            port: Some(port.number),
            queue_pairs: options.queue_pairs.div_ceil(options.cards),
            cards: 1,
            ..options.clone()
        });
    }
    Ok(all)
}

fn gid(port: &Port, options: &Options) -> Result<Gid, String> {
    let at = format!("port {} of {}", port.number, port.device);
    if let Some(index) = options.gid_index {
        let found = port.gids.iter().find(|g| g.index == index);
        return found.copied().ok_or_else(|| {
            let there: Vec<u32> = port.gids.iter().map(|g| g.index).collect();
            format!("{at} has no GID {index}, but {there:?}")
        });
    }
    // Of equal ones the first.
    let best = port.gids.iter().rev().max_by_key(|g| if port.ethernet { g.rank() } else { 0 });
    best.copied().ok_or_else(|| format!("{at} has no GID: its network interface has no address"))
}

fn mtu(port: &Port, options: &Options) -> Result<u32, String> {
    match options.mtu {
        None => Ok(port.mtu),
        Some(mtu) if !(256..=4096).contains(&mtu) || !mtu.is_power_of_two() => {
            Err(format!("an MTU of {mtu}: it is 256, 512, 1024, 2048 or 4096"))
        }
        Some(mtu) if mtu > port.mtu => Err(format!(
            "an MTU of {mtu}: that of port {} of {} is {}",
            port.number, port.device, port.mtu
        )),
        Some(mtu) => Ok(mtu),
    }
}

/// As people count: `mlx5_2` before `mlx5_10`.
fn natural(name: &str) -> (String, u64) {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(name.len() - digits);
    (stem.into(), number.parse().unwrap_or(0))
}

fn list(ports: &[Port]) -> String {
    let mut out = String::new();
    for (i, port) in ports.iter().enumerate() {
        let Port { device, number, .. } = port;
        let (link, state) = (
            if port.ethernet { "Ethernet" } else { "InfiniBand" },
            if port.active { "active" } else { "down" },
        );
        let comma = if i > 0 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(out, "{comma}{device} port {number} ({link}, {state})");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Ordering;
    use std::path::Path;

    fn gid_of(index: u32, kind: GidKind, head: &[u8]) -> Gid {
        let mut raw = [9; 16];
        raw[..head.len()].copy_from_slice(head);
        Gid { index, kind, raw }
    }

    const IPV4: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

    /// As a RoCE port has them: link-local v1 and v2, then IPv4 v1 and v2.
    fn port(device: &str) -> Port {
        Port {
            device: device.into(),
            number: 1,
            active: true,
            ethernet: true,
            lid: 0,
            mtu: 4096,
            max_bytes: 1 << 30,
            rate: 400,
            place: Place::default(),
            gids: vec![
                gid_of(0, GidKind::RoceV1, &[0xfe, 0x80]),
                gid_of(1, GidKind::RoceV2, &[0xfe, 0x80]),
                gid_of(2, GidKind::RoceV1, IPV4),
                gid_of(3, GidKind::RoceV2, IPV4),
            ],
        }
    }

    fn options() -> Options {
        Options::new(Ordering::InOrder)
    }

    fn chosen(ports: &[Port], near: &Place, options: &Options) -> String {
        ports[choose(ports, near, options).unwrap().port].device.clone()
    }

    #[test]
    fn the_nearest_then_the_fastest_then_the_first() {
        let gpu = |path: &str, numa| Place {
            path: Some(Path::new("/sys/devices").join(path)),
            numa: Some(numa),
        };
        let at = |device: &str, path: &str, numa| Port { place: gpu(path, numa), ..port(device) };
        let ports = [
            at("mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0", 0),
            at("mlx5_1", "pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0", 1),
            at("mlx5_10", "pci0000:40/0000:40:01.0/0000:41:00.0/0000:43:00.0", 1),
            Port { rate: 800, ..at("mlx5_2", "pci0000:00/0000:00:02.0/0000:02:00.0", 0) },
        ];
        let options = options();
        // One switch, though another port is faster.
        let near = gpu("pci0000:40/0000:40:01.0/0000:41:00.0/0000:44:00.0", 1);
        assert_eq!(chosen(&ports, &near, &options), "mlx5_1");
        assert_eq!(
            chosen(&ports, &gpu("pci0000:00/0000:00:01.0/0000:01:01.0", 0), &options),
            "mlx5_0"
        );
        // Another root of the same NUMA node.
        assert_eq!(chosen(&ports, &gpu("pci0000:60/0000:60:01.0", 1), &options), "mlx5_1");
        // No GPU: the fastest; and of equal ones, the first as people count.
        assert_eq!(chosen(&ports, &Place::default(), &options), "mlx5_2");
        assert_eq!(
            chosen(&[ports[2].clone(), ports[1].clone()], &Place::default(), &options),
            "mlx5_1"
        );
        // A port that is down is not near.
        let down = [Port { active: false, ..ports[1].clone() }, ports[0].clone()];
        assert_eq!(chosen(&down, &near, &options), "mlx5_0");
    }

    #[test]
    fn options_override() {
        let ports =
            [port("a"), Port { number: 2, ..port("a") }, Port { active: false, ..port("b") }];
        let with = |change: fn(&mut Options)| {
            let mut options = options();
            change(&mut options);
            choose(&ports, &Place::default(), &options)
        };
        assert_eq!(with(|o| o.port = Some(2)).unwrap().port, 1);
        assert_eq!(with(|o| o.gid_index = Some(0)).unwrap().gid.index, 0);
        assert_eq!(with(|o| o.mtu = Some(1024)).unwrap().mtu, 1024);
        type Change = fn(&mut Options);
        let refused: [(Change, &str); 6] = [
            (
                |o| o.device = Some("c".into()),
                "there is not device c, among a port 1 (Ethernet, active)",
            ),
            (|o| o.device = Some("b".into()), "device b is not active"),
            (|o| o.port = Some(3), "a port 3"),
            (|o| o.gid_index = Some(9), "no GID 9, but [0, 1, 2, 3]"),
            (|o| o.mtu = Some(1500), "1500"),
            (|o| o.mtu = Some(8192), "8192"),
        ];
        for (change, reason) in refused {
            let why = with(change).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
        let small = [Port { mtu: 1024, ..port("a") }];
        let options = Options { mtu: Some(4096), ..options() };
        assert!(choose(&small, &Place::default(), &options).unwrap_err().contains("is 1024"));
        assert!(choose(&[], &Place::default(), &options).unwrap_err().contains("no RDMA device"));
    }

    #[test]
    fn several_cards_share_the_queue_pairs() {
        let ports = [Port { active: false, ..port("d") }, port("b"), port("a"), port("c")];
        let spread = |cards| {
            let options = Options { cards, queue_pairs: 5, ..options() };
            spread(&ports, &Place::default(), &options)
        };
        let three = spread(3).unwrap();
        let names: Vec<_> = three.iter().map(|o| (o.device.as_deref(), o.port)).collect();
        assert_eq!(names, ["a", "b", "c"].map(|name| (Some(name), Some(1))));
        assert!(three.iter().all(|o| (o.queue_pairs, o.cards) == (2, 1)));
        let why = spread(4).unwrap_err();
        assert!(why.contains("4 cards are asked for, and there are 3: d port 1"), "{why}");
    }

    #[test]
    fn gids_by_their_worth() {
        let index = |gids: Vec<Gid>, ethernet| {
            let ports = [Port { gids, ethernet, ..port("a") }];
            choose(&ports, &Place::default(), &options()).map(|c| c.gid.index)
        };
        let all = port("a").gids;
        assert_eq!(index(all.clone(), true), Ok(3));
        assert_eq!(index(all[..2].to_vec(), true), Ok(1));
        assert_eq!(index(vec![all[1], gid_of(4, GidKind::RoceV2, &[0x20, 1])], true), Ok(4));
        let subnets = vec![
            gid_of(0, GidKind::InfiniBand, &[0xfe, 0x80]),
            gid_of(1, GidKind::InfiniBand, &[0xfe, 0xc0]),
        ];
        assert_eq!(index(subnets, false), Ok(0));
        assert!(index(vec![], true).unwrap_err().contains("no address"));
    }
}
