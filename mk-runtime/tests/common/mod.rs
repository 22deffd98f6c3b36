//! What the test binaries of this crate share.
#![allow(dead_code)]

use mk_abi::{KernelSource, RankBinding, WorkspaceLayout};
use mk_runtime::Error;
use mk_runtime::jit::{JitOptions, find_nvrtc};
use mk_skip::{Need, skip};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// A directory of this test's own, removed on drop.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("mk-test-{}-{name}", std::process::id()));
        // What others may write is no cache, whatever the umask.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
        TempDir(dir)
    }

    pub fn options(&self) -> JitOptions {
        JitOptions { cache_dir: Some(self.0.clone()), ..JitOptions::default() }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A cache that test runs share, and that is not the user's.
pub fn jit_options() -> JitOptions {
    JitOptions {
        cache_dir: Some(std::env::temp_dir().join("mk-test-cache")),
        ..JitOptions::default()
    }
}

/// Whether there is a compiler; says so where there is none.
pub fn has_nvrtc() -> bool {
    match find_nvrtc(&JitOptions::default()) {
        Ok(_) => true,
        Err(Error::NvrtcMissing { .. }) => {
            skip(Need::Nvrtc, "");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// A kernel with the smallest workspace, one binding per rank, no tensors.
pub fn kernel(name: &str, cuda: &str, world_size: u32) -> KernelSource {
    KernelSource {
        name: name.into(),
        cuda: cuda.into(),
        entry: name.into(),
        arch: "sm_90a".into(),
        options: vec![],
        world_size,
        grid: 1,
        cluster: 1,
        block: 128,
        smem_bytes: 0,
        workspace: WorkspaceLayout { symmetric_bytes: 1024, zeroed_bytes: 1024, scratch_bytes: 0 },
        tensors: vec![],
        ranks: vec![RankBinding { tensor_shapes: vec![], maps: vec![] }; world_size as usize],
        roles: vec![],
        edges: vec![],
        spill_bytes: 0,
        plan_hash: 0x6d6b,
        trace: None,
        host: None,
        net: None,
        runtime_dims: vec![],
        cooperative: true,
        meets: true,
    }
}
