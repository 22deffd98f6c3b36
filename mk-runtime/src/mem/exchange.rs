//! The same memory on every rank: each process makes its own, and imports what others of its node made.

use super::vmm::Physical;
use crate::world::{Deadline, Group, World};
use crate::{Error, Result};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// How processes call what they do here.
pub(super) const CALL: &str = "allocating symmetric memory";

/// Makes memory of `bytes`, a multiple of the granularity, on every rank. Collective. Returns that of the ranks that
/// this process maps.
pub(super) fn everywhere(
    world: &World,
    bytes: u64,
    deadline: Deadline,
) -> Result<Vec<(u32, Physical)>> {
    let create = |rank, exported| {
        let own = Physical::create(world.context(rank)?.ordinal(), bytes, exported)?;
        Ok((rank, own))
    };
    let Some(group) = world.group() else {
        return world.local_ranks().map(|rank| create(rank, false)).collect();
    };
    let rank = world.local_ranks().start;
    let mine = create(rank, true).and_then(|own| Ok((own.1.export()?, own)));
    let (fd, own) = group.agree(CALL, mine, deadline)?;
    let made = import(group, rank, world.topology().reach(rank), fd, bytes, deadline);
    let mut parts = group.agree(CALL, made, deadline)?;
    parts.push(own);
    Ok(parts)
}

/// What the other processes of the node made. A failure is this process's own and still to be told.
fn import(
    group: &Group,
    first: u32,
    node: Range<u32>,
    own: OwnedFd,
    bytes: u64,
    deadline: Deadline,
) -> Result<Vec<(u32, Physical)>> {
    let size = bytes.to_le_bytes();
    let sizes = group.all_gather(CALL, &size, deadline)?;
    let fds = group.all_fds(CALL, own, node.clone(), deadline)?;
    let sizes = sizes.into_iter().skip(node.start as usize);
    let mut parts = Vec::new();
    for (rank, (fd, theirs)) in node.zip(fds.into_iter().zip(sizes)) {
        let Some(fd) = fd else { continue };
        if theirs != size {
            let what = "the size of symmetric memory".into();
            return Err(Error::Disagree {
                during: CALL.into(),
                what,
                rank: first,
                ranks: vec![rank],
            });
        }
        parts.push((rank, Physical::import(fd)?));
    }
    Ok(parts)
}
