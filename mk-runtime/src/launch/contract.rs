//! What a kernel source must satisfy before anything is allocated for it, and a launch before anything is enqueued.

use super::options::RankTensors;
use super::program;
use crate::{Error, Result};
use mk_abi::device::{MAX_CTAS, MAX_RANKS, MAX_RUNTIME_DIMS, SymHeader};
use mk_abi::{KernelSource, MapBase, TensorDirection, TensorMapSpec};
use std::mem::size_of;

/// Checks a source against itself.
pub(super) fn check_source(source: &KernelSource) -> Result<()> {
    let bad = |what: String| Error::BadSource { kernel: source.name.clone(), what };
    let ensure = |ok: bool, what: &dyn Fn() -> String| if ok { Ok(()) } else { Err(bad(what())) };

    ensure((1..=MAX_RANKS as u32).contains(&source.world_size), &|| {
        format!("{} ranks are not 1 to {MAX_RANKS}", source.world_size)
    })?;
    ensure(source.ranks.len() == source.world_size as usize, &|| {
        format!("it binds {} ranks and has {}", source.ranks.len(), source.world_size)
    })?;
    ensure((1..=MAX_CTAS as u32).contains(&source.grid), &|| {
        format!("a grid of {} CTAs is not 1 to {MAX_CTAS}", source.grid)
    })?;
    ensure(source.cluster > 0 && source.grid.is_multiple_of(source.cluster), &|| {
        format!("clusters of {} do not divide a grid of {}", source.cluster, source.grid)
    })?;
    ensure((1..=1024).contains(&source.block), &|| {
        format!("{} threads per CTA are not 1 to 1024", source.block)
    })?;
    let space = &source.workspace;
    ensure(space.symmetric_bytes >= size_of::<SymHeader>() as u64, &|| {
        format!("symmetric memory of {} bytes is smaller than its header", space.symmetric_bytes)
    })?;
    ensure(
        (size_of::<SymHeader>() as u64..=space.symmetric_bytes).contains(&space.zeroed_bytes),
        &|| {
            format!(
                "{} zeroed bytes do not cover the header within {} bytes",
                space.zeroed_bytes, space.symmetric_bytes
            )
        },
    )?;
    ensure(source.runtime_dims.len() <= MAX_RUNTIME_DIMS, &|| {
        let n = source.runtime_dims.len();
        format!("{n} run-time dimensions are more than {MAX_RUNTIME_DIMS}")
    })?;
    for dim in &source.runtime_dims {
        let known = |t: &mk_abi::RuntimeRows| {
            let shape = source.ranks[0].tensor_shapes.get(t.tensor as usize);
            shape.is_some_and(|shape| (t.dim as usize) < shape.len())
        };
        ensure(dim.max > 0 && dim.tensors.iter().all(known), &|| {
            let name = &dim.name;
            format!("run-time dimension {name} bounds nothing, or names no dimension of a tensor")
        })?;
    }
    let n_maps = source.ranks[0].maps.len();
    for (rank, binding) in source.ranks.iter().enumerate() {
        ensure(binding.maps.len() == n_maps, &|| {
            format!("rank {rank} has {} tensor maps and rank 0 has {n_maps}", binding.maps.len())
        })?;
        ensure(binding.tensor_shapes.len() == source.tensors.len(), &|| {
            format!(
                "rank {rank} has {} shapes for {} tensors",
                binding.tensor_shapes.len(),
                source.tensors.len()
            )
        })?;
        for (i, map) in binding.maps.iter().enumerate() {
            check_map(source, map).map_err(|what| bad(format!("rank {rank}, map {i}: {what}")))?;
        }
    }
    if let Some(program) = &source.host {
        program::check(source, program).map_err(bad)?;
    }
    Ok(())
}

fn check_map(source: &KernelSource, map: &TensorMapSpec) -> Result<(), String> {
    let n = map.dims.len();
    if !(1..=5).contains(&n) || map.box_dims.len() != n || map.strides_bytes.len() + 1 != n {
        return Err(format!(
            "{n} dimensions, {} strides, {} box extents",
            map.strides_bytes.len(),
            map.box_dims.len()
        ));
    }
    if let Some(s) = map.strides_bytes.iter().find(|s| !s.is_multiple_of(16)) {
        return Err(format!("a stride of {s} bytes is not a multiple of 16"));
    }
    if let Some(b) = map.box_dims.iter().find(|b| !(1..=256).contains(*b)) {
        return Err(format!("a box extent of {b} is not 1 to 256"));
    }
    let space = &source.workspace;
    let inside = match map.base {
        MapBase::Tensor(t) => (t as usize) < source.tensors.len(),
        MapBase::Symmetric(at) => at < space.symmetric_bytes,
        MapBase::Peer(p, at) => p < source.world_size && at < space.symmetric_bytes,
        MapBase::Scratch(at) => at < space.scratch_bytes,
        MapBase::Net(at) => source.net.as_ref().is_some_and(|net| at < net.bytes),
    };
    if !inside {
        return Err(format!("{:?} is outside the kernel's memory", map.base));
    }
    Ok(())
}

/// Bytes of each tensor of a rank.
pub(super) fn tensor_bytes(
    source: &KernelSource,
    rank: u32,
    shapes: &[Vec<u64>],
) -> Result<Vec<u64>> {
    shapes
        .iter()
        .zip(&source.tensors)
        .map(|(shape, arg)| {
            shape.iter().try_fold(arg.dtype.size_bytes(), |n, d| n.checked_mul(*d)).ok_or_else(
                || Error::Tensor {
                    kernel: source.name.clone(),
                    rank,
                    tensor: arg.name.clone(),
                    what: format!("has shape {shape:?}, which is too large"),
                },
            )
        })
        .collect()
}

/// The tensor that shares memory with result `i`, if one does: plans are proved for buffers that do not, but for a
/// parameter that the result replaces.
fn overlapping<'s>(source: &'s KernelSource, given: &RankTensors, i: usize) -> Option<&'s str> {
    if source.tensors[i].direction != TensorDirection::Out {
        return None;
    }
    let a = given.tensors[i];
    let replaced = source.tensors[i].in_place.map(|j| j as usize);
    let meets = |(j, b): &(usize, &crate::gpu::TensorRef)| {
        let in_place = Some(*j) == replaced && (a.ptr, a.bytes) == (b.ptr, b.bytes);
        *j != i
            && !in_place
            && a.ptr < b.ptr.saturating_add(b.bytes)
            && b.ptr < a.ptr.saturating_add(a.bytes)
    };
    let (j, _) = given.tensors.iter().enumerate().find(meets)?;
    Some(&source.tensors[j].name)
}

/// The rows of a rank's tensors that have its own number of them, by the size of the first; 0 without any.
///
/// # Errors
/// [`Error::Tensor`] for a part of a row, and for more rows than there is room for.
pub(super) fn own_rows(
    source: &KernelSource,
    rank: u32,
    expected_bytes: &[u64],
    given: &RankTensors,
) -> Result<u32> {
    let Some(i) = source.tensors.iter().position(|t| t.own_rows) else { return Ok(0) };
    let shape = source.ranks.get(rank as usize).and_then(|r| r.tensor_shapes.get(i));
    let most = shape.and_then(|s| s.first()).copied().unwrap_or(0);
    let row = expected_bytes.get(i).and_then(|bytes| bytes.checked_div(most)).unwrap_or(0);
    let bytes = given.tensors.get(i).map_or(0, |t| t.bytes);
    let rows = bytes.checked_div(row).unwrap_or(0);
    match u32::try_from(rows) {
        Ok(n) if rows <= most && rows * row == bytes => Ok(n),
        _ => Err(Error::Tensor {
            kernel: source.name.clone(),
            rank,
            tensor: source.tensors[i].name.clone(),
            what: format!(
                "has {bytes} bytes, and its rows, 0 to {most} of them, have {row} bytes each"
            ),
        }),
    }
}

/// Checks the arguments of one rank. No allocation unless it fails.
pub(super) fn check_tensors(
    source: &KernelSource,
    rank: u32,
    expected_bytes: &[u64],
    dims: &[u32],
    given: &RankTensors,
) -> Result<()> {
    if given.tensors.len() != expected_bytes.len() {
        return Err(Error::Count {
            kernel: source.name.clone(),
            what: "tensors",
            expected: expected_bytes.len(),
            given: given.tensors.len(),
        });
    }
    let own = own_rows(source, rank, expected_bytes, given)?;
    for (i, (tensor, most)) in given.tensors.iter().zip(expected_bytes).enumerate() {
        let shape = source.ranks.get(rank as usize).and_then(|r| r.tensor_shapes.get(i));
        let rows = shape.and_then(|s| s.first()).filter(|_| source.tensors[i].own_rows);
        let expected = &rows.map_or(*most, |rows| most / (*rows).max(1) * u64::from(own));
        let what = if tensor.bytes != *expected {
            let mut shape = source.shapes(rank, dims)[i].clone();
            if let (Some(_), Some(first)) = (rows, shape.first_mut()) {
                *first = own.into();
            }
            format!(
                "has {} bytes, and {} {shape:?} has {expected}",
                tensor.bytes, source.tensors[i].dtype
            )
        } else if tensor.ptr == 0 && *expected > 0 {
            "is a null pointer".into()
        } else if !tensor.ptr.is_multiple_of(16) {
            format!(
                "is at {:#x}, which is not a multiple of 16 bytes; a part of another tensor may begin anywhere, a \
                 copy of it does not",
                tensor.ptr
            )
        } else if let Some(other) = overlapping(source, given, i) {
            format!("overlaps `{other}`: a result needs memory of its own")
        } else {
            continue;
        };
        return Err(Error::Tensor {
            kernel: source.name.clone(),
            rank,
            tensor: source.tensors[i].name.clone(),
            what,
        });
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gpu::TensorRef;
    use mk_abi::{DType, RankBinding, Swizzle, TensorArg, TensorDirection, WorkspaceLayout};

    pub(in crate::launch) fn source() -> KernelSource {
        KernelSource {
            name: "k".into(),
            cuda: String::new(),
            entry: "k".into(),
            arch: "sm_90a".into(),
            options: vec![],
            world_size: 1,
            grid: 4,
            cluster: 2,
            block: 128,
            smem_bytes: 0,
            workspace: WorkspaceLayout {
                symmetric_bytes: 4096,
                zeroed_bytes: 2048,
                scratch_bytes: 0,
            },
            tensors: vec![TensorArg {
                name: "x".into(),
                dtype: DType::Bf16,
                direction: TensorDirection::In,
                in_place: None,
                own_rows: false,
            }],
            ranks: vec![RankBinding {
                tensor_shapes: vec![vec![8, 16]],
                maps: vec![TensorMapSpec {
                    base: MapBase::Tensor(0),
                    dtype: DType::Bf16,
                    dims: vec![16, 8],
                    strides_bytes: vec![32],
                    box_dims: vec![16, 8],
                    swizzle: Swizzle::None,
                }],
            }],
            roles: vec![],
            edges: vec![],
            spill_bytes: 0,
            plan_hash: 0,
            trace: None,
            host: None,
            net: None,
            runtime_dims: vec![],
            cooperative: true,
            meets: true,
        }
    }

    fn refused(change: impl FnOnce(&mut KernelSource)) -> String {
        let mut source = source();
        change(&mut source);
        check_source(&source).map_or_else(|e| e.to_string(), |()| "accepted".into())
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(refused(|_| {}), "accepted");
        assert!(refused(|s| s.cluster = 3).contains("do not divide"));
        assert!(refused(|s| s.grid = 1024).contains("not 1 to 512"));
        assert!(refused(|s| s.world_size = 2).contains("binds 1 ranks"));
        assert!(refused(|s| s.workspace.zeroed_bytes = 0).contains("zeroed bytes"));
        assert!(refused(|s| s.ranks[0].maps[0].strides_bytes[0] = 24).contains("multiple of 16"));
        assert!(refused(|s| s.ranks[0].maps[0].base = MapBase::Scratch(0)).contains("outside"));
        assert!(refused(|s| s.ranks[0].maps[0].box_dims = vec![16]).contains("box extents"));
    }

    #[test]
    fn tensors_are_checked() {
        let source = source();
        let check = |ptr, bytes| {
            let tensors = RankTensors::from(vec![TensorRef { ptr, bytes }]);
            check_tensors(&source, 0, &[256], &[], &tensors)
                .map_or_else(|e| e.to_string(), |()| "accepted".into())
        };
        assert_eq!(check(0x1000, 256), "accepted");
        assert_eq!(
            check(0x1000, 128),
            "kernel k: tensor x of rank 0 has 128 bytes, and bf16 [8, 16] has 256"
        );
        assert!(check(0, 256).contains("null"));
        assert!(check(0x1008, 256).contains("multiple of 16"));
        let mut two = source.clone();
        two.tensors.push(TensorArg {
            name: "y".into(),
            dtype: DType::Bf16,
            direction: TensorDirection::Out,
            in_place: None,
            own_rows: false,
        });
        let both = |two: &KernelSource, result| {
            let place = |ptr| TensorRef { ptr, bytes: 256 };
            let tensors = RankTensors::from(vec![place(0x1000), place(result)]);
            check_tensors(two, 0, &[256, 256], &[], &tensors).is_ok()
        };
        assert_eq!([0x1000, 0x1010, 0x1100].map(|at| both(&two, at)), [false, false, true]);
        two.tensors[1].in_place = Some(0);
        assert_eq!([0x1000, 0x1010, 0x1100].map(|at| both(&two, at)), [true, false, true]);
        // Of its own number of rows, 0 to 8, as many of each.
        two.tensors.iter_mut().for_each(|t| (t.own_rows, t.in_place) = (true, None));
        two.ranks[0].tensor_shapes.push(vec![8, 16]);
        let own = |x: u64, y: u64| {
            let place = |ptr, bytes| TensorRef { ptr, bytes };
            let tensors = RankTensors::from(vec![place(0x1000, x), place(0x2000, y)]);
            let rows = own_rows(&two, 0, &[256, 256], &tensors);
            let checked = check_tensors(&two, 0, &[256, 256], &[], &tensors);
            checked.and(rows).map_err(|e| e.to_string())
        };
        assert_eq!([0, 32, 256].map(|bytes| own(bytes, bytes)), [Ok(0), Ok(1), Ok(8)]);
        assert!(
            own(64, 32)
                .expect_err("fewer")
                .contains("y of rank 0 has 32 bytes, and bf16 [2, 16] has 64")
        );
        for bytes in [16, 288] {
            assert!(
                own(bytes, bytes)
                    .expect_err("no rows")
                    .contains("0 to 8 of them, have 32 bytes each")
            );
        }
        let none = check_tensors(&source, 0, &[256], &[], &RankTensors::default());
        assert!(matches!(none, Err(Error::Count { expected: 1, given: 0, .. })));
    }
}
