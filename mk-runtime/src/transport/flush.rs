//! Whether a GPU sees a card's data when it sees the word behind it, or a flush is needed in between.

use super::{Ordering, TransportError};
use crate::{Error, driver, env};
use cudarc::driver::sys::{self, CUdevice_attribute as Attr};
use std::{fmt, str::FromStr};

/// What is done between a card's write to a GPU's memory and the word that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// Nothing: the GPU sees writes in order.
    #[default]
    None,
    /// The card reads the memory, behind its writes. No transport does.
    ReadBack,
    /// The receiver's proxy calls `cuFlushGPUDirectRDMAWrites` before it sets words.
    Driver,
}

impl Flush {
    /// What `MK_NET_FLUSH` asks for.
    ///
    /// # Errors
    /// [`Error::Variable`] for what is no flush.
    pub(crate) fn asked() -> crate::Result<Option<Flush>> {
        env::net_flush().map(Flush::named).transpose()
    }

    fn named(value: String) -> crate::Result<Flush> {
        let flush = value.parse();
        flush.map_err(|what| Error::Variable { variable: "MK_NET_FLUSH", value, what })
    }

    const ALL: [(Flush, &str); 3] =
        [(Flush::None, "none"), (Flush::ReadBack, "read-back"), (Flush::Driver, "driver")];
}

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Flush::ALL[*self as usize].1)
    }
}

impl FromStr for Flush {
    type Err = String;

    fn from_str(text: &str) -> Result<Flush, String> {
        let found = Flush::ALL.iter().find(|(_, name)| *name == text);
        found.map(|f| f.0).ok_or_else(|| "`none`, `read-back` or `driver` is needed".into())
    }
}

/// What a GPU and its host say of cards' writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visibility {
    /// The GPU, as CUDA counts.
    pub gpu: i32,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Whether host and GPU are joined by NVLink-C2C: cards are then on another path than words.
    pub c2c: bool,
    /// GPUDirect write ordering of the driver: 100 is order for the GPU that owns the memory.
    pub ordering: i32,
    /// Whether the driver has a flush.
    pub driver: bool,
}

const OWNER: i32 =
    sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;

impl Visibility {
    /// Of a GPU of this machine.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(crate) fn of(gpu: i32) -> crate::Result<Visibility> {
        let get = |which| driver::attribute(gpu, which);
        let number = |which| get(which).map(|v| v.max(0) as u32);
        let options = get(Attr::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        let host =
            sys::CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
        Ok(Visibility {
            gpu,
            capability: (
                number(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            c2c: cfg!(target_arch = "aarch64"),
            ordering: get(Attr::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?,
            driver: options & host as i32 != 0,
        })
    }

    /// The rule, which is NCCL's (`ncclTopoNeedFlush`): none from compute capability 9.0 on, but for C2C hosts; and
    /// none but where the driver promises order.
    pub fn rule(&self) -> Flush {
        match (self.ordering >= OWNER && self.capability >= (9, 0) && !self.c2c, self.driver) {
            (true, _) => Flush::None,
            (false, true) => Flush::Driver,
            (false, false) => Flush::ReadBack,
        }
    }

    /// The flush that is asked for, else the rule's, where a transport of this ordering can do it.
    ///
    /// # Errors
    /// [`TransportError::Refused`], with the reason.
    pub fn flush(
        &self,
        asked: Option<Flush>,
        ordering: Ordering,
        transport: &str,
    ) -> Result<Flush, TransportError> {
        let Visibility { gpu, .. } = *self;
        let flush = asked.unwrap_or_else(|| self.rule());
        let what = match (flush, ordering) {
            (Flush::None, _) if self.ordering < OWNER => format!(
                "GPU {gpu} may see a card's word before the data in front of it (GPUDirect write ordering {}, and \
                 {OWNER} is needed)",
                self.ordering
            ),
            (Flush::ReadBack, _) => {
                format!("GPU {gpu} needs a read behind cards' writes, and no transport reads")
            }
            (Flush::Driver, _) if !self.driver => format!("the driver of GPU {gpu} has no flush"),
            (Flush::Driver, Ordering::InOrder) => format!(
                "GPU {gpu} needs a flush (`driver`) before a word, which the card itself sets: take an unordered \
                    network"
            ),
            (Flush::None | Flush::Driver, _) => return Ok(flush),
        };
        let what = format!("{what}; use pinned memory of the host");
        Err(TransportError::Refused { transport: transport.into(), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Visibility =
        Visibility { gpu: 3, capability: (9, 0), c2c: false, ordering: 100, driver: true };

    #[test]
    fn the_rule() {
        let table = [
            (H100, Flush::None),
            (Visibility { ordering: 200, driver: false, ..H100 }, Flush::None),
            (Visibility { capability: (10, 0), ..H100 }, Flush::None),
            // Before Hopper, whatever the driver promises.
            (Visibility { capability: (8, 9), ..H100 }, Flush::Driver),
            (Visibility { capability: (8, 0), driver: false, ..H100 }, Flush::ReadBack),
            (Visibility { c2c: true, ..H100 }, Flush::Driver),
            (Visibility { c2c: true, driver: false, ..H100 }, Flush::ReadBack),
            (Visibility { ordering: 0, ..H100 }, Flush::Driver),
            (Visibility { ordering: 0, driver: false, ..H100 }, Flush::ReadBack),
        ];
        for (of, flush) in table {
            assert_eq!(of.rule(), flush, "{of:?}");
        }
    }

    #[test]
    fn what_is_asked_for_comes_first_where_it_can_be_done() {
        use Ordering::{InOrder, Unordered};
        let old = Visibility { capability: (8, 0), ..H100 };
        let unordered = Visibility { ordering: 0, ..H100 };
        let table = [
            (H100, None, InOrder, Ok(Flush::None)),
            (H100, Some(Flush::Driver), Unordered, Ok(Flush::Driver)),
            (H100, Some(Flush::Driver), InOrder, Err("take an unordered network")),
            (H100, Some(Flush::ReadBack), Unordered, Err("no transport reads")),
            (
                Visibility { driver: false, ..H100 },
                Some(Flush::Driver),
                Unordered,
                Err("has no flush"),
            ),
            (old, None, Unordered, Ok(Flush::Driver)),
            (old, Some(Flush::None), InOrder, Ok(Flush::None)),
            (unordered, None, Unordered, Ok(Flush::Driver)),
            (unordered, None, InOrder, Err("take an unordered network")),
            (unordered, Some(Flush::None), Unordered, Err("GPU 3 may see a card's word")),
        ];
        for (of, asked, ordering, want) in table {
            match (of.flush(asked, ordering, "verbs"), want) {
                (Ok(flush), Ok(want)) => assert_eq!(flush, want, "{of:?} {asked:?}"),
                (Err(TransportError::Refused { what, .. }), Err(reason)) => {
                    assert!(what.contains(reason) && what.contains("pinned memory"), "{what}");
                }
                (is, want) => panic!("{of:?} {asked:?} {ordering:?}: {is:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn names_read_back() {
        for (flush, name) in Flush::ALL {
            assert_eq!((name.parse(), flush.to_string()), (Ok(flush), name.to_string()));
        }
        for wrong in ["None", "yes"] {
            let error = Flush::named(wrong.into()).unwrap_err();
            assert!(matches!(&error, Error::Variable { variable: "MK_NET_FLUSH", .. }), "{error}");
            assert!(error.to_string().contains("read-back"), "{error}");
        }
    }
}
