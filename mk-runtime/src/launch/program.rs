//! What a host program must satisfy, and which peers' memory a kernel may name, before anything is allocated for it.

use super::dims;
use crate::Result;
use crate::world::Topology;
use mk_abi::{HostOp, HostProgram, KernelSource, MapBase};

/// Bytes of a flag.
pub(super) const WORD: usize = 4;

/// Whether the operations are in an order that the runtime keeps, and stay inside the memory that they are for.
pub(super) fn check(source: &KernelSource, program: &HostProgram) -> Result<(), String> {
    if program.ranks.len() != source.world_size as usize {
        let (n, world) = (program.ranks.len(), source.world_size);
        return Err(format!("it has host operations for {n} ranks, and there are {world}"));
    }
    if !(1..=1024).contains(&program.gate_threads) {
        return Err(format!("{} threads of its gate are not 1 to 1024", program.gate_threads));
    }
    for (rank, ops) in program.ranks.iter().enumerate() {
        let waits = ops.iter().filter(|op| **op == HostOp::AwaitEntry).count();
        if ops.first() != Some(&HostOp::AwaitEntry) || waits != 1 {
            return Err(format!(
                "the host operations of rank {rank} wait for the ranks' entry {waits} times, and must once, before \
                 all others"
            ));
        }
        if let Some(op) = ops.iter().find(|op| !inside(source, rank, op)) {
            return Err(format!(
                "a host operation of rank {rank} is outside the kernel's memory: {op:?}"
            ));
        }
    }
    Ok(())
}

/// Whether an operation of a rank reads and writes memory that the kernel has. Data goes to buffers, epochs to words.
fn inside(source: &KernelSource, rank: usize, op: &HostOp) -> bool {
    let space = &source.workspace;
    let fits = |from: u64, bytes: u64, held: u64| from.saturating_add(bytes) <= held;
    let buffer = |rank: u32, at: u64, bytes: u64| {
        rank < source.world_size
            && at >= space.zeroed_bytes
            && fits(at, bytes, space.symmetric_bytes)
    };
    let signal = |rank: u32, word: u64| {
        let at = word.saturating_mul(WORD as u64);
        rank < source.world_size && fits(at, WORD as u64, space.zeroed_bytes)
    };
    match *op {
        HostOp::AwaitEntry => true,
        HostOp::Copy { tensor, from_bytes, to_rank, to_bytes, bytes } => {
            let tensor = tensor as usize;
            let shape = source.ranks.get(rank).and_then(|r| r.tensor_shapes.get(tensor));
            let (Some(arg), Some(shape)) = (source.tensors.get(tensor), shape) else {
                return false;
            };
            let size = arg.dtype.size_bytes();
            let held = shape.iter().fold(size, |n, d| n.saturating_mul(*d));
            bytes > 0
                && fits(from_bytes, bytes, held)
                && buffer(to_rank, to_bytes, bytes)
                && !dims::decides(source, tensor)
        }
        HostOp::Raise { rank, word } => signal(rank, word),
    }
}

/// Whether all ranks reach the memory that their tensor maps and host operations name. The source has those of every
/// rank, so that all processes find the same.
///
/// # Errors
/// [`Error::Unreachable`](crate::Error::Unreachable) for a peer of another node.
pub(super) fn check_reach(source: &KernelSource, topology: &Topology) -> Result<()> {
    for (rank, binding) in (0..).zip(&source.ranks) {
        for map in &binding.maps {
            if let MapBase::Peer(peer, _) = map.base {
                topology.check(rank, peer)?;
            }
        }
    }
    let programs = source.host.iter().flat_map(|program| (0..).zip(&program.ranks));
    for (rank, ops) in programs {
        for op in ops {
            match *op {
                HostOp::AwaitEntry => {}
                HostOp::Copy { to_rank: peer, .. } | HostOp::Raise { rank: peer, .. } => {
                    topology.check(rank, peer)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::contract::{check_source, tests::source};
    use super::*;
    use crate::Error;
    use mk_abi::TensorMapSpec;

    /// One rank: copies 128 bytes, and sets the last flag.
    fn program() -> HostProgram {
        let copy =
            HostOp::Copy { tensor: 0, from_bytes: 128, to_rank: 0, to_bytes: 2048, bytes: 128 };
        let ops = vec![HostOp::AwaitEntry, copy, HostOp::Raise { rank: 0, word: 511 }];
        HostProgram { gate: "mk_gate".into(), gate_threads: 64, ranks: vec![ops] }
    }

    fn judged(change: impl FnOnce(&mut HostProgram)) -> String {
        let (mut source, mut program) = (source(), program());
        change(&mut program);
        source.host = Some(program);
        check_source(&source).map_or_else(|e| e.to_string(), |()| "accepted".into())
    }

    #[test]
    fn operations_stay_inside_their_memory() {
        assert_eq!(judged(|_| {}), "accepted");
        let copy = |tensor, from_bytes, to_rank, to_bytes, bytes| HostOp::Copy {
            tensor,
            from_bytes,
            to_rank,
            to_bytes,
            bytes,
        };
        for outside in [
            copy(1, 128, 0, 2048, 128),
            copy(0, 129, 0, 2048, 128),
            copy(0, 128, 1, 2048, 128),
            copy(0, 128, 0, 2047, 128),
            copy(0, 128, 0, 4096 - 127, 128),
            copy(0, 128, 0, 2048, u64::MAX),
            copy(0, 128, 0, 2048, 0),
            HostOp::Raise { rank: 1, word: 511 },
            HostOp::Raise { rank: 0, word: 512 },
            HostOp::Raise { rank: 0, word: u64::MAX },
        ] {
            let said = judged(|p| p.ranks[0][1] = outside);
            assert!(said.contains("outside the kernel's memory"), "{outside:?}: {said}");
        }
    }

    #[test]
    fn every_rank_waits_for_all_first() {
        assert!(judged(|p| p.ranks.clear()).contains("host operations for 0 ranks"));
        assert!(judged(|p| p.gate_threads = 0).contains("threads of its gate"));
        // The kernel's word is reset by the stream that waits for it: without the wait it would let the next launch
        // begin.
        assert!(judged(|p| p.ranks[0].clear()).contains("entry 0 times"));
        assert!(judged(|p| p.ranks[0].swap(0, 1)).contains("must once, before all others"));
        assert!(judged(|p| p.ranks[0].push(HostOp::AwaitEntry)).contains("entry 2 times"));
    }

    /// Four ranks of which each maps and writes memory, and sets a flag, of the next one of its pair.
    fn in_pairs() -> KernelSource {
        let mut source = source();
        source.world_size = 4;
        let binding = source.ranks[0].clone();
        let peer = |rank: u32| rank ^ 1;
        let bind = |rank: u32| {
            let mut binding = binding.clone();
            let base = MapBase::Peer(peer(rank), 2048);
            binding.maps.push(TensorMapSpec { base, ..binding.maps[0].clone() });
            binding
        };
        source.ranks = (0..4).map(bind).collect();
        let ops = |rank: u32| {
            let to_rank = peer(rank);
            vec![
                HostOp::AwaitEntry,
                HostOp::Copy { tensor: 0, from_bytes: 0, to_rank, to_bytes: 2048, bytes: 64 },
                HostOp::Raise { rank: to_rank, word: 300 },
            ]
        };
        source.host = Some(HostProgram { ranks: (0..4).map(ops).collect(), ..program() });
        check_source(&source).unwrap();
        source
    }

    #[test]
    fn only_ranks_of_the_node_are_named() {
        let two = Topology::nodes_of(4, 2).unwrap();
        let judged = |change: &dyn Fn(&mut KernelSource), topology: &Topology| {
            let mut source = in_pairs();
            change(&mut source);
            match check_reach(&source, topology) {
                Ok(()) => None,
                Err(Error::Unreachable { from, to }) => Some((from, to)),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(judged(&|_| {}, &two), None);
        let map = |s: &mut KernelSource| s.ranks[3].maps[1].base = MapBase::Peer(0, 2048);
        let raise = |s: &mut KernelSource| {
            s.host.as_mut().unwrap().ranks[1][2] = HostOp::Raise { rank: 2, word: 300 };
        };
        let copy = |s: &mut KernelSource| {
            s.host.as_mut().unwrap().ranks[2][1] =
                HostOp::Copy { tensor: 0, from_bytes: 0, to_rank: 1, to_bytes: 2048, bytes: 64 };
        };
        assert_eq!(judged(&map, &two), Some((3, 0)));
        assert_eq!(judged(&raise, &two), Some((1, 2)));
        assert_eq!(judged(&copy, &two), Some((2, 1)));
        let one = Topology::one_node(4);
        for change in [&map as &dyn Fn(&mut KernelSource), &raise, &copy] {
            assert_eq!(judged(change, &one), None);
        }
    }
}
