//! Where devices are on the PCI bus, as the system says, and how near two of them are.

use std::path::{Path, PathBuf};

/// The system's own files.
pub(super) const SYS: &str = "/sys";

/// How far apart two devices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// One bridge or switch.
    Pix,
    /// Several bridges of one root port.
    Pxb,
    /// The host bridge.
    Phb,
    /// Host bridges of one NUMA node.
    Node,
    /// NUMA nodes.
    Sys,
}

impl Distance {
    /// `PIX`, `SYS`.
    pub fn name(self) -> &'static str {
        ["PIX", "PXB", "PHB", "NODE", "SYS"][self as usize]
    }
}

/// A place on the PCI bus. Nothing is known of a default one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// `/sys/devices/pci0000:3a/0000:3a:00.0/…`.
    pub path: Option<PathBuf>,
    /// Its NUMA node.
    pub numa: Option<i32>,
}

impl Place {
    /// Of a PCI device, below `/sys`.
    pub fn of(sys: &Path, pci: &str) -> Place {
        Place::at(&sys.join("bus/pci/devices").join(pci.to_ascii_lowercase()))
    }

    /// Of a folder of the system that is, or links to, a device's.
    pub fn at(device: &Path) -> Place {
        let path = device.canonicalize().ok();
        let numa = path.as_ref().and_then(|p| std::fs::read_to_string(p.join("numa_node")).ok());
        let numa = numa.and_then(|text| text.trim().parse().ok()).filter(|n| *n >= 0);
        Place { path, numa }
    }

    /// How far apart two devices are, as `nvidia-smi topo` says it; nothing where the system does not say.
    pub fn distance(&self, other: &Place) -> Option<Distance> {
        let of = |p: &Path| {
            p.components().filter(|c| c.as_os_str().to_string_lossy().contains(':')).count()
        };
        let (bridges, same_node) = self.nearness(other);
        let below = [self.path.as_deref()?, other.path.as_deref()?].map(|p| of(p) - bridges);
        Some(match bridges {
            0 if same_node => Distance::Node,
            0 => Distance::Sys,
            1 => Distance::Phb,
            // A device, and the port of a switch above it.
            _ if below.iter().all(|n| *n <= 2) => Distance::Pix,
            _ => Distance::Pxb,
        })
    }

    /// Larger is nearer: bridges above both, then the NUMA node.
    pub fn nearness(&self, other: &Place) -> (usize, bool) {
        let bridges = match (&self.path, &other.path) {
            (Some(a), Some(b)) => {
                let common = a.components().zip(b.components()).take_while(|(a, b)| a == b);
                common.filter(|(c, _)| c.as_os_str().to_string_lossy().contains(':')).count()
            }
            _ => 0,
        };
        (bridges, self.numa.is_some() && self.numa == other.numa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_from_the_system() {
        let root = std::env::temp_dir().join(format!("mk-places-{}", std::process::id()));
        let device = root.join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        std::fs::write(device.join("numa_node"), "1\n").unwrap();
        std::os::unix::fs::symlink(&device, root.join("bus/pci/devices/0000:3b:00.0")).unwrap();
        let place = Place::of(&root, "0000:3B:00.0");
        assert_eq!(
            (place.path.as_deref(), place.numa),
            (Some(&*device.canonicalize().unwrap()), Some(1))
        );
        std::fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(Place::of(&root, "0000:3b:00.0").numa, None);
        assert!(Place::of(&root, "0000:99:00.0").path.is_none());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
