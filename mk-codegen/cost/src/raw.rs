//! What a machine does by itself, with no plan in between: kept beside the fitted figures, to judge them by.

use super::error::ModelError;
use serde::{Deserialize, Serialize};

/// Raw figures of one GPU among its peers. Seconds and bytes throughout. No prediction reads them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFigures {
    /// Name of the GPU, as the driver says it.
    pub gpu: String,
    /// By which command it was measured, and how.
    pub measured: String,
    /// GPUs of the machine that took part.
    pub ranks: u32,
    /// Memory that all SMs of a GPU read, launch included; the cache begins full of dirty lines, which are written back
    /// meanwhile.
    pub hbm_read_bytes_per_s: f64,
    /// Memory that all SMs of a GPU read and write in a copy, reads and writes together; what is written last may still
    /// be in the cache.
    pub hbm_copy_bytes_per_s: f64,
    /// From a release on one SM to the end of a wait on another of the same GPU.
    pub flag_local_s: f64,
    /// From a release on one GPU to the end of a wait on another, for a word in the latter's memory.
    pub flag_peer_s: f64,
    /// What the launch of an empty kernel takes of the host.
    pub launch_host_s: f64,
    /// From the begin of an empty kernel to the begin of the next behind it in the stream.
    pub launch_device_s: f64,
    /// Long copies, by method, number of ranks that send at once, size of a piece, and SMs.
    pub by_sms: Vec<RawCopy>,
    /// Copies by method, number of ranks that send at once, and bytes of the message.
    pub by_size: Vec<RawCopy>,
    /// Products of tensor cores alone, by SMs and length; none in files of before they were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mma: Vec<RawMma>,
}

/// Dense GEMMs in bf16 (`wgmma`, m64n256k16, two warpgroups an SM) of random operands in shared memory, nothing else
/// going on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawMma {
    /// SMs of one GPU that multiplied.
    pub sms: u32,
    /// Multiplications and additions of all of them.
    pub flop: f64,
    /// What they took, launch not included.
    pub seconds: f64,
}

impl RawMma {
    /// Multiplications and additions a second, of all SMs.
    pub fn flop_per_s(&self) -> f64 {
        self.flop / self.seconds
    }
}

/// Copies that several ranks made at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCopy {
    /// How.
    pub method: CopyMethod,
    /// How many ranks did so at once.
    pub senders: u32,
    /// SMs of each; 0 for the copy engine.
    pub sms: u32,
    /// Of which size bulk copies were; 0 for other methods.
    pub piece_bytes: u32,
    /// What each rank moved.
    pub bytes: u64,
    /// Until the slowest rank was done, launch included.
    pub seconds: f64,
}

impl RawCopy {
    /// What each rank moved a second, in bytes.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// How bytes get from one memory to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyMethod {
    /// Bulk copies inside a GPU.
    BulkLocal,
    /// Bulk copies to a peer.
    BulkPush,
    /// Bulk copies from a peer.
    BulkPull,
    /// Bulk sums of bf16 in a peer's memory.
    BulkReduce,
    /// Loads and stores inside a GPU.
    LdstLocal,
    /// Loads, and stores to a peer.
    LdstPush,
    /// Loads from a peer, and stores.
    LdstPull,
    /// The driver's copy to a peer.
    CopyEngine,
}

impl CopyMethod {
    /// The name in words.
    pub fn words(self) -> &'static str {
        match self {
            CopyMethod::BulkLocal => "bulk local",
            CopyMethod::BulkPush => "bulk push",
            CopyMethod::BulkPull => "bulk pull",
            CopyMethod::BulkReduce => "bulk reduce",
            CopyMethod::LdstLocal => "ld/st local",
            CopyMethod::LdstPush => "ld/st push",
            CopyMethod::LdstPull => "ld/st pull",
            CopyMethod::CopyEngine => "copy engine",
        }
    }

    /// Whether nothing crosses a link.
    pub fn is_local(self) -> bool {
        matches!(self, CopyMethod::BulkLocal | CopyMethod::LdstLocal)
    }
}

impl RawFigures {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ModelError`] for what is no JSON of such figures, and for figures that are not positive.
    pub fn parse(text: &str) -> Result<RawFigures, ModelError> {
        let raw: RawFigures = serde_json::from_str(text)?;
        raw.check()?;
        Ok(raw)
    }

    /// The text of a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        let figures = named!(self;
            hbm_read_bytes_per_s hbm_copy_bytes_per_s flag_local_s flag_peer_s launch_host_s
            launch_device_s);
        let copies = self.by_sms.iter().chain(&self.by_size);
        let copies =
            copies.flat_map(|c| [c.seconds, c.bytes as f64].map(|v| (c.method.words(), v)));
        let products = self.mma.iter().flat_map(|m| [("mma flop", m.flop), ("mma", m.seconds)]);
        let all = figures.into_iter().chain(copies).chain(products);
        match all.into_iter().find(|(_, v)| !(*v > 0.0 && v.is_finite())) {
            None => Ok(()),
            Some((name, v)) => {
                Err(ModelError::Value { what: format!("raw {name} is {v}, and must be positive") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceModel;

    fn raw() -> RawFigures {
        let copy = |method, piece_bytes| RawCopy {
            method,
            senders: 4,
            sms: 16,
            piece_bytes,
            bytes: 1 << 28,
            seconds: 7.5e-4,
        };
        RawFigures {
            gpu: "NVIDIA H200".into(),
            measured: "a test".into(),
            ranks: 4,
            hbm_read_bytes_per_s: 4e12,
            hbm_copy_bytes_per_s: 3.9e12,
            flag_local_s: 6e-7,
            flag_peer_s: 1.5e-6,
            launch_host_s: 2.1e-6,
            launch_device_s: 1.3e-6,
            by_sms: vec![copy(CopyMethod::BulkReduce, 16384), copy(CopyMethod::LdstPull, 0)],
            by_size: vec![RawCopy { sms: 0, ..copy(CopyMethod::CopyEngine, 0) }],
            mma: vec![RawMma { sms: 132, flop: 1.948e11, seconds: 2.4e-4 }],
        }
    }

    #[test]
    fn raw_figures_are_read_as_they_were_written() {
        let json = raw().to_json();
        assert_eq!(RawFigures::parse(&json).unwrap(), raw());
        assert!(json.contains(r#""method": "bulk_reduce""#), "{json}");
    }

    #[test]
    fn files_without_products_are_read() {
        let without = RawFigures { mma: Vec::new(), ..raw() };
        let json = without.to_json();
        assert!(!json.contains("mma"), "{json}");
        assert_eq!(RawFigures::parse(&json).unwrap(), without);
        assert!((raw().mma[0].flop_per_s() / 811.7e12 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_model_holds_them_or_does_without() {
        assert!(DeviceModel::h200().raw.is_some());
        let without = DeviceModel { raw: None, ..DeviceModel::h200().clone() };
        assert!(!without.to_json().contains("raw"));
        let with = DeviceModel { raw: Some(raw()), ..without.clone() };
        assert_eq!(DeviceModel::parse(&with.to_json()).unwrap(), with);
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        let refusal = |change: fn(&mut RawFigures)| {
            let mut raw = raw();
            change(&mut raw);
            let model = DeviceModel { raw: Some(raw), ..DeviceModel::h200().clone() };
            DeviceModel::parse(&model.to_json()).map_or_else(|e| e.to_string(), |_| String::new())
        };
        assert!(refusal(|r| r.flag_peer_s = 0.0).contains("raw flag_peer_s is 0"));
        assert!(refusal(|r| r.by_sms[1].seconds = -1.0).contains("raw ld/st pull is -1"));
        assert!(refusal(|r| r.mma[0].seconds = -1.0).contains("raw mma is -1"));
        assert!(refusal(|r| r.mma[0].flop = 0.0).contains("raw mma flop is 0"));
        assert!(refusal(|r| r.by_size[0].seconds = 0.0).contains("raw copy engine is 0"));
    }
}
