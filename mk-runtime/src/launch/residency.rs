//! Whether a whole grid is resident at once, and the attributes that make it so.

use crate::driver::cu;
use crate::gpu::Kernel;
use crate::world::{DeviceLimits, World};
use crate::{Error, Result};
use cudarc::driver::sys;
use mk_abi::KernelSource;

/// CUDA's portable cluster size: larger ones need an attribute.
const PORTABLE_CLUSTER: u32 = 8;

/// Launch attributes. They live here, not in the driver: `config` points into them.
pub(super) struct Attributes {
    list: [sys::CUlaunchAttribute; 2],
    n: u32,
}

// SAFETY: the unions hold plain numbers here; the variants with pointers are never set.
unsafe impl Send for Attributes {}

impl Attributes {
    /// Cluster size, and the cooperative flag (the driver then starts all CTAs together or refuses).
    pub(super) fn new(source: &KernelSource, cooperative: bool) -> Attributes {
        let mut attributes = Attributes {
            list: [sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { pad: [0; 64] },
            }; 2],
            n: 0,
        };
        if source.cluster > 1 {
            let cluster =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: source.cluster, y: 1, z: 1 };
            attributes.push(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                sys::CUlaunchAttributeValue { clusterDim: cluster },
            );
        }
        if cooperative {
            attributes.push(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                sys::CUlaunchAttributeValue { cooperative: 1 },
            );
        }
        attributes
    }

    fn push(&mut self, id: sys::CUlaunchAttributeID, value: sys::CUlaunchAttributeValue) {
        let slot = &mut self.list[self.n as usize];
        (slot.id, slot.value) = (id, value);
        self.n += 1;
    }

    /// The launch configuration; valid for as long as `self` stays where it is.
    pub(super) fn config(
        &mut self,
        source: &KernelSource,
        stream: sys::CUstream,
    ) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: source.grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: source.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: source.smem_bytes,
            hStream: stream,
            attrs: self.list.as_mut_ptr(),
            numAttrs: self.n,
        }
    }
}

/// Raises the kernel's limits and checks that the grid fits; gives the number of SMs that it takes.
pub(super) fn prepare(
    world: &World,
    rank: u32,
    source: &KernelSource,
    kernel: &Kernel,
    reserve_sms: u32,
) -> Result<u32> {
    let limits = world.device(rank)?;
    check_arch(source, &limits)?;
    if source.smem_bytes > limits.smem_optin_bytes {
        return Err(Error::BadSource {
            kernel: source.name.clone(),
            what: format!(
                "it needs {} bytes of dynamic shared memory per CTA, and GPU {} offers {}",
                source.smem_bytes, limits.ordinal, limits.smem_optin_bytes
            ),
        });
    }
    use sys::CUfunction_attribute as Attr;
    kernel.set(Attr::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, source.smem_bytes as i32)?;
    if source.cluster > PORTABLE_CLUSTER {
        kernel.set(Attr::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
    }
    let sharing = world.sharing(rank);
    let (fits, per_sm) = resident_ctas(source, kernel, &limits, reserve_sms, sharing)?;
    // CTAs that wait only for their own cluster need not all be resident.
    let together = if source.cooperative { source.grid } else { source.cluster };
    if fits < together {
        return Err(Error::NotCoResident {
            kernel: source.name.clone(),
            device: limits.ordinal,
            grid: together,
            cluster: source.cluster,
            fits,
            sharing,
            reserved: reserve_sms,
        });
    }
    Ok(source.grid.min(fits).div_ceil(per_sm.max(1)))
}

/// CTAs of this kernel that one rank can have resident, and how many an SM takes.
fn resident_ctas(
    source: &KernelSource,
    kernel: &Kernel,
    limits: &DeviceLimits,
    reserve_sms: u32,
    sharing: u32,
) -> Result<(u32, u32)> {
    let _in = kernel.context().enter()?;
    let device = Some(limits.ordinal);
    let mut per_sm = 0;
    // SAFETY: a valid out-pointer and a live function.
    unsafe {
        cu!(
            device,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut per_sm,
                kernel.function(),
                source.block as i32,
                source.smem_bytes as usize
            )
        )
    }?;
    let per_sm = per_sm.max(0) as u32;
    let mut ctas = per_sm * limits.sms.saturating_sub(reserve_sms);
    if source.cluster > 1 {
        let mut attributes = Attributes::new(source, false);
        let config = attributes.config(source, std::ptr::null_mut());
        let mut clusters = 0;
        // SAFETY: a valid out-pointer, a live function, and a configuration that outlives the call.
        unsafe {
            cu!(device, cuOccupancyMaxActiveClusters(&mut clusters, kernel.function(), &config))
        }?;
        let clustered = clusters.max(0) as u32 * source.cluster;
        ctas = ctas.min(clustered.saturating_sub(reserve_sms.saturating_mul(per_sm)));
    }
    Ok((ctas / sharing.max(1) / source.cluster * source.cluster, per_sm))
}

/// `sm_90a` runs on 9.0 only; `sm_90` on 9.x.
fn check_arch(source: &KernelSource, limits: &DeviceLimits) -> Result<()> {
    let (major, minor) = limits.capability;
    let runs = match parse_arch(&source.arch) {
        Some((m, n, true)) => (m, n) == (major, minor),
        Some((m, n, false)) => m == major && n <= minor,
        None => false,
    };
    if runs {
        return Ok(());
    }
    Err(Error::WrongArch {
        kernel: source.name.clone(),
        arch: source.arch.clone(),
        device: limits.ordinal,
        have: limits.capability,
    })
}

/// `sm_90a` as (9, 0, true): major, minor, whether it is bound to that architecture.
fn parse_arch(arch: &str) -> Option<(u32, u32, bool)> {
    let rest = arch.strip_prefix("sm_")?;
    let (digits, exact) = match rest.strip_suffix('a') {
        Some(digits) => (digits, true),
        None => (rest, false),
    };
    let number: u32 = digits.parse().ok()?;
    Some((number / 10, number % 10, exact))
}

#[cfg(test)]
mod tests {
    use super::parse_arch;

    #[test]
    fn architectures_parse() {
        assert_eq!(parse_arch("sm_90a"), Some((9, 0, true)));
        assert_eq!(parse_arch("sm_89"), Some((8, 9, false)));
        assert_eq!(parse_arch("sm_100a"), Some((10, 0, true)));
        assert_eq!(parse_arch("compute_90a"), None);
    }
}
