//! Which network cards this machine has, and whether they reach GPUs.

use crate::driver;
use crate::transport::{Distance, Place};
use cudarc::driver::sys::CUdevice_attribute as Attr;
use std::fs;
use std::path::Path;

/// A card that writes to remote memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// `mlx5_0`.
    pub name: String,
    /// What the kernel says of its ports: `port 1 ACTIVE, 400 Gb/sec`.
    pub ports: Vec<String>,
    /// The memory node that it is near to; none where the machine has one only.
    pub numa: Option<u32>,
    /// Its place on the bus.
    pub pci: String,
}

/// The cards that the kernel lists.
pub(crate) fn cards() -> Vec<Nic> {
    cards_in(Path::new("/sys/class/infiniband"))
}

fn cards_in(class: &Path) -> Vec<Nic> {
    let Ok(entries) = fs::read_dir(class) else { return Vec::new() };
    let mut all: Vec<Nic> = entries
        .flatten()
        .map(|entry| {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let device = path.join("device");
            let numa = text(&device.join("numa_node")).and_then(|n| n.parse().ok());
            let place = fs::canonicalize(&device).ok();
            let pci = place.and_then(|p| Some(p.file_name()?.to_string_lossy().into_owned()));
            let ports = fs::read_dir(path.join("ports"));
            let mut ports: Vec<String> = ports
                .into_iter()
                .flatten()
                .flatten()
                .map(|port| {
                    let of = |what| text(&port.path().join(what)).unwrap_or_else(|| "?".into());
                    let state = of("state");
                    let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
                    format!("port {} {state}, {}", port.file_name().display(), of("rate"))
                })
                .collect();
            ports.sort();
            Nic { name, ports, numa, pci: pci.unwrap_or_default() }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// The cards that are nearest to a GPU at this place on the bus, of which an end takes one.
pub(crate) fn nearest(sys: &Path, pci: &str, cards: &[Nic]) -> Vec<String> {
    let gpu = Place::of(sys, pci);
    let near = |card: &Nic| gpu.nearness(&Place::of(sys, &card.pci));
    let best = cards.iter().map(near).max();
    let all = cards.iter().filter(|card| Some(near(card)) == best);
    all.map(|card| card.name.clone()).collect()
}

/// How far each card is from a GPU at this place on the bus, the nearest first.
pub(crate) fn distances(sys: &Path, pci: &str, cards: &[Nic]) -> Vec<(String, Option<Distance>)> {
    let gpu = Place::of(sys, pci);
    let of = |card: &Nic| (card.name.clone(), gpu.distance(&Place::of(sys, &card.pci)));
    let mut all: Vec<_> = cards.iter().map(of).collect();
    all.sort_by_key(|(_, distance)| (distance.is_none(), *distance));
    all
}

/// Most bytes that this process may keep in memory for cards, where that is limited.
pub(crate) fn locked_memory() -> Option<u64> {
    limit_in(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn limit_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How cards reach a GPU's memory.
pub(crate) fn gpu_access(ordinal: i32) -> String {
    let has = |which| driver::attribute(ordinal, which).is_ok_and(|v| v != 0);
    let direct = has(Attr::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
    let dmabuf = has(Attr::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    match (direct, dmabuf, Path::new("/sys/module/nvidia_peermem").exists()) {
        (false, ..) => "no".into(),
        (true, true, _) => "dmabuf".into(),
        (true, false, true) => "nvidia_peermem".into(),
        (true, false, false) => {
            "neither dmabuf nor nvidia_peermem (`modprobe nvidia_peermem`)".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_what_the_kernel_lists() {
        let root = std::env::temp_dir().join(format!("mk-cards-{}", std::process::id()));
        let port = root.join("mlx5_1/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::create_dir_all(root.join("0000:3b:00.0")).unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(port.join("rate"), "400 Gb/sec (4X NDR)\n").unwrap();
        fs::write(root.join("0000:3b:00.0/numa_node"), "1\n").unwrap();
        std::os::unix::fs::symlink("../0000:3b:00.0", root.join("mlx5_1/device")).unwrap();
        let found = cards_in(&root);
        let card = found.iter().find(|c| c.name == "mlx5_1").expect("a card");
        assert_eq!(card.ports, ["port 1 ACTIVE, 400 Gb/sec (4X NDR)"]);
        assert_eq!((card.numa, card.pci.as_str()), (Some(1), "0000:3b:00.0"));
        fs::remove_dir_all(&root).unwrap();
        assert!(cards_in(&root).is_empty());
    }

    /// A GPU and cards of two NUMA nodes, as a machine with switches has them.
    #[test]
    fn distances_are_those_of_the_tree() {
        let root = std::env::temp_dir().join(format!("mk-distances-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        let switch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        let tree = [
            ("gpu", format!("{switch}/0000:3c:00.0/0000:3d:00.0"), 0),
            ("same_switch", format!("{switch}/0000:3c:01.0/0000:3e:00.0"), 0),
            (
                "behind_another",
                format!("{switch}/0000:3c:02.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0"),
                0,
            ),
            ("same_root", "pci0000:3a/0000:3a:01.0/0000:42:00.0".into(), 0),
            ("same_node", "pci0000:5a/0000:5a:00.0/0000:5b:00.0".into(), 0),
            ("other_node", "pci0000:80/0000:80:00.0/0000:81:00.0".into(), 1),
        ];
        let mut cards = Vec::new();
        for (name, path, numa) in &tree {
            let device = root.join("devices").join(path);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("numa_node"), numa.to_string()).unwrap();
            let pci = device.file_name().unwrap().to_string_lossy().into_owned();
            std::os::unix::fs::symlink(&device, root.join("bus/pci/devices").join(&pci)).unwrap();
            cards.push(Nic { name: (*name).into(), ports: Vec::new(), numa: None, pci });
        }
        cards.push(Nic {
            name: "nowhere".into(),
            ports: Vec::new(),
            numa: None,
            pci: "0000:99:00.0".into(),
        });
        let gpu = cards.remove(0);
        cards.reverse();
        let found = distances(&root, &gpu.pci, &cards);
        let names =
            |d: &(String, Option<Distance>)| format!("{} {}", d.0, d.1.map_or("?", Distance::name));
        let expected = [
            "same_switch PIX",
            "behind_another PXB",
            "same_root PHB",
            "same_node NODE",
            "other_node SYS",
            "nowhere ?",
        ];
        assert_eq!(found.iter().map(names).collect::<Vec<_>>(), expected);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_nearest_card_is_below_the_same_bridge() {
        let root = std::env::temp_dir().join(format!("mk-nearest-{}", std::process::id()));
        let card = |name: &str, pci: &str| Nic {
            name: name.into(),
            ports: Vec::new(),
            numa: None,
            pci: pci.into(),
        };
        for (bridge, pci) in [("3a", "3b"), ("3a", "3c"), ("5a", "5b")] {
            let path = format!("devices/pci0000:{bridge}/0000:{bridge}:00.0/0000:{pci}:00.0");
            fs::create_dir_all(root.join(&path)).unwrap();
            fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
            let link = root.join(format!("bus/pci/devices/0000:{pci}:00.0"));
            std::os::unix::fs::symlink(root.join(&path), link).unwrap();
        }
        let cards = [card("mlx5_0", "0000:5b:00.0"), card("mlx5_1", "0000:3c:00.0")];
        assert_eq!(nearest(&root, "0000:3b:00.0", &cards), ["mlx5_1"]);
        assert!(nearest(&root, "0000:3b:00.0", &[]).is_empty());
        fs::remove_dir_all(&root).unwrap();
        let limits = "Max locked memory         67108864             67108864             bytes";
        assert_eq!(limit_in(limits), Some(64 << 20));
        assert_eq!(limit_in("Max locked memory         unlimited            unlimited"), None);
    }
}
