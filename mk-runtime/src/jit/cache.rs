//! Kernels in the [store](crate::store): the body of an item is the log's length (u64, little-endian), the log, and the
//! CUBIN.

use super::Unit;
use crate::store::{Key, Kind, Store};

/// What a compilation leaves: the binary and the log, from which the report is parsed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) cubin: Vec<u8>,
    pub(super) log: String,
}

/// Of everything that the result depends on.
pub(super) fn key(unit: Unit<'_>, flags: &[String], build: &str) -> Key {
    let flags = flags.iter().map(String::as_str);
    Key::of([build, unit.arch, unit.name, unit.cuda].into_iter().chain(flags))
}

pub(super) fn read(store: &Store, key: &Key) -> Option<Output> {
    let output = decode(&store.read(Kind::Kernel, key)?);
    if output.is_none() {
        tracing::warn!(key = key.hex(), "a cached kernel makes no sense, and is compiled again");
    }
    output
}

pub(super) fn encode(output: &Output) -> Vec<u8> {
    let mut body = Vec::with_capacity(8 + output.log.len() + output.cubin.len());
    body.extend((output.log.len() as u64).to_le_bytes());
    body.extend(output.log.as_bytes());
    body.extend(&output.cubin);
    body
}

fn decode(body: &[u8]) -> Option<Output> {
    let (length, rest) = body.split_first_chunk::<8>()?;
    let (log, cubin) = rest.split_at_checked(u64::from_le_bytes(*length).try_into().ok()?)?;
    Some(Output { cubin: cubin.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_reads_back() {
        let cubin = (0..=255u8).cycle().take(5000).collect();
        let output = Output { cubin, log: "ptxas info\n".into() };
        assert_eq!(decode(&encode(&output)), Some(output.clone()));
        for bad in [&[][..], &[9; 7], &[255; 8], &encode(&output)[..12]] {
            assert_eq!(decode(bad), None);
        }
    }

    #[test]
    fn every_input_changes_the_key() {
        let unit = Unit { name: "k", cuda: "x", arch: "sm_90a", options: &[] };
        let key = |unit, flags: &[&str], build| {
            let flags: Vec<String> = flags.iter().map(|f| f.to_string()).collect();
            key(unit, &flags, build)
        };
        let base = key(unit, &["-a"], "1");
        assert_ne!(base, key(Unit { cuda: "y", ..unit }, &["-a"], "1"));
        assert_ne!(base, key(Unit { arch: "sm_90", ..unit }, &["-a"], "1"));
        assert_ne!(base, key(unit, &["-b"], "1"));
        assert_ne!(base, key(unit, &["-a"], "2"));
        assert_eq!(base, key(unit, &["-a"], "1"));
    }
}
