//! Binding in a world of processes: every rank must bind the same kernel in the same way, and finds out before any
//! memory is made.

use super::options::InstanceOptions;
use crate::world::{Deadline, Group};
use crate::{Error, Result};
use mk_abi::KernelSource;
use sha2::{Digest, Sha256};

/// How processes call this; not the kernel's name, which may be what differs.
pub(super) const CALL: &str = "binding a kernel";

type Hash = [u8; 32];

/// What must be equal, in the order in which a difference is reported.
const PARTS: [&str; 5] = [
    "the number of instances bound before",
    "the plan",
    "the shapes and the memory layout",
    "the generated text",
    "the bind options",
];

fn parts(source: &KernelSource, options: &InstanceOptions, generation: u64) -> [Hash; 5] {
    let hash = |text: String| -> Hash { Sha256::digest(text.as_bytes()).into() };
    let layout = (
        source.world_size,
        (source.grid, source.cluster, source.block, source.smem_bytes),
        &source.workspace,
        &source.tensors,
        &source.ranks,
        &source.runtime_dims,
        &source.host,
    );
    let text = (&source.cuda, &source.entry, &source.arch, &source.options);
    // A network's parts are of each process.
    let options = InstanceOptions { net: None, ..options.clone() };
    [
        hash(generation.to_string()),
        hash(format!("{} {:08x}", source.name, source.plan_hash)),
        hash(format!("{layout:?}")),
        hash(format!("{text:?}")),
        hash(format!("{options:?}")),
    ]
}

/// Compares with every other rank; `mine` is what this rank found on its own.
///
/// # Errors
/// `mine`; [`Error::PeerFailed`] with another rank's; [`Error::Disagree`] on every rank with the first thing that
/// differs; what the group says.
pub(super) fn agree(
    group: &Group,
    rank: u32,
    source: &KernelSource,
    options: &InstanceOptions,
    generation: u64,
    mine: Result<()>,
    deadline: Deadline,
) -> Result<()> {
    let parts = parts(source, options, generation);
    // First the hashes: a rank with an error of its own still tells what it has.
    let all = group.all_gather(CALL, parts.as_flattened(), deadline)?;
    let same = compare(rank, &parts, &all);
    // A rank's own error says more than that ranks differ, and may be why they do.
    group.agree(CALL, mine.and(same), deadline)
}

fn compare(rank: u32, mine: &[Hash; 5], all: &[Vec<u8>]) -> Result<()> {
    for (i, (hash, what)) in mine.iter().zip(PARTS).enumerate() {
        let theirs = |bytes: &Vec<u8>| bytes.get(i * 32..i * 32 + 32) == Some(&hash[..]);
        let ranks: Vec<u32> =
            (0..).zip(all).filter(|(_, bytes)| !theirs(bytes)).map(|(r, _)| r).collect();
        if !ranks.is_empty() {
            return Err(Error::Disagree { during: CALL.into(), what: what.into(), rank, ranks });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::contract::tests::source;
    use super::*;
    use mk_abi::{HostOp, HostProgram};

    fn difference(
        change: impl FnOnce(&mut KernelSource, &mut InstanceOptions, &mut u64),
    ) -> String {
        let (mut theirs, mut options, mut generation) = (source(), InstanceOptions::default(), 1);
        let mine = parts(&theirs, &options, generation);
        change(&mut theirs, &mut options, &mut generation);
        let other = parts(&theirs, &options, generation).as_flattened().to_vec();
        let all = [mine.as_flattened().to_vec(), other];
        compare(0, &mine, &all).map_or_else(|e| e.to_string(), |()| "the same".into())
    }

    fn host() -> HostProgram {
        HostProgram { gate: "g".into(), gate_threads: 64, ranks: vec![vec![HostOp::AwaitEntry]] }
    }

    #[test]
    fn what_differs_is_named() {
        assert_eq!(difference(|_, _, _| ()), "the same");
        assert_eq!(
            difference(|s, _, _| s.plan_hash = 9),
            "binding a kernel: rank 0 differs from rank 1 in the plan; every rank must pass the same"
        );
        assert!(difference(|s, _, _| s.ranks[0].tensor_shapes[0][0] = 9).contains("the shapes"));
        assert!(difference(|s, _, _| s.host = Some(host())).contains("the shapes"));
        assert!(difference(|s, _, _| s.cuda.push(' ')).contains("the generated text"));
        assert!(difference(|_, o, _| o.overlap = true).contains("the bind options"));
        assert!(difference(|_, _, g| *g = 2).contains("instances bound before"));
    }

    #[test]
    fn a_short_message_is_a_difference() {
        let mine = parts(&source(), &InstanceOptions::default(), 1);
        let all = [mine.as_flattened().to_vec(), vec![1, 2, 3]];
        assert!(
            matches!(compare(0, &mine, &all), Err(Error::Disagree { ranks, .. }) if ranks == [1])
        );
    }
}
