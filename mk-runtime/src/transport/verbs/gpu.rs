//! How a card reaches memory of a GPU: by dmabuf, else by NVIDIA's peer-memory module, else not at all, with the
//! reason.

/// What the system, the driver and the device say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuAnswers {
    /// Whether the kernel and the card's driver register dmabufs, or the error.
    pub device_dmabuf: Result<(), String>,
    /// Whether the memory has a dmabuf, or the error of the GPU's driver.
    pub memory_dmabuf: Result<(), String>,
    /// Whether `nvidia_peermem` (or `nv_peer_mem`) is loaded.
    pub peermem: bool,
}

/// How an arena in GPU memory is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuAccess {
    /// Through a dmabuf.
    Dmabuf,
    /// By its address, through NVIDIA's module.
    Peermem,
    /// Not: use pinned memory of the host. The reason.
    Host(String),
}

impl GpuAnswers {
    /// What follows.
    pub fn access(&self) -> GpuAccess {
        let missing = match (&self.device_dmabuf, &self.memory_dmabuf) {
            (Ok(()), Ok(())) => return GpuAccess::Dmabuf,
            (Err(why), _) => format!("the card registers no dmabuf ({why})"),
            (_, Err(why)) => format!("the GPU gives no dmabuf of the memory ({why})"),
        };
        match self.peermem {
            true => GpuAccess::Peermem,
            false => GpuAccess::Host(format!("{missing}, and module nvidia_peermem is not loaded")),
        }
    }
}

/// Whether NVIDIA's module is there, below `/sys`.
#[cfg(any(test, feature = "verbs"))]
pub(super) fn has_peermem(sys: &std::path::Path) -> bool {
    ["module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem", "kernel/mm/memory_peers/nv_mem_nc"]
        .iter()
        .any(|path| sys.join(path).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dmabuf_else_peermem_else_the_reason() {
        let no = |why: &str| Err(why.to_string());
        let all = GpuAnswers { device_dmabuf: Ok(()), memory_dmabuf: Ok(()), peermem: true };
        assert_eq!(all.access(), GpuAccess::Dmabuf);
        assert_eq!(GpuAnswers { peermem: false, ..all.clone() }.access(), GpuAccess::Dmabuf);
        let old_kernel = GpuAnswers { device_dmabuf: no("EOPNOTSUPP"), ..all.clone() };
        assert_eq!(old_kernel.access(), GpuAccess::Peermem);
        let old_gpu = GpuAnswers { memory_dmabuf: no("CUDA_ERROR_NOT_SUPPORTED"), ..all };
        assert_eq!(old_gpu.access(), GpuAccess::Peermem);
        for (answers, reason) in [(old_kernel, "EOPNOTSUPP"), (old_gpu, "CUDA_ERROR_NOT_SUPPORTED")]
        {
            let GpuAccess::Host(why) = (GpuAnswers { peermem: false, ..answers }).access() else {
                panic!("the card has no way to the memory");
            };
            assert!(why.contains(reason) && why.contains("nvidia_peermem"), "{why}");
        }
    }

    #[test]
    fn the_module_is_found_where_it_shows() {
        let root = std::env::temp_dir().join(format!("mk-peermem-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        assert!(!has_peermem(&root));
        std::fs::create_dir_all(root.join("kernel/mm/memory_peers/nv_mem")).unwrap();
        assert!(has_peermem(&root));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
