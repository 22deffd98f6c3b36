//! The device library of Hopper: real CUDA headers, in the order in which each uses only what stands before it.

macro_rules! library {
    ($($path:literal,)*) => {
        pub(super) const FILES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("../../../../templates/", $path)))),*];
    };
}

library! {
    "ptx/types.cuh",
    "ptx/convert.cuh",
    "ptx/memory.cuh",
    "ptx/fence.cuh",
    "ptx/mbarrier.cuh",
    "ptx/barrier.cuh",
    "ptx/tma.cuh",
    "ptx/bulk.cuh",
    "ptx/stmatrix.cuh",
    "ptx/sm90_regs.cuh",
    "ptx/sm90_cluster.cuh",
    "ptx/sm90_wgmma.cuh",
    "sync/context.cuh",
    "sync/fault.cuh",
    "sync/wait.cuh",
    "sync/post.cuh",
    "sync/chaos.cuh",
    "sync/launch.cuh",
    "sync/schedule.cuh",
    "nic/fifo.cuh",
    "tile/gemm_config.cuh",
    "tile/gemm_tiles.cuh",
    "tile/cluster_depth.cuh",
    "tile/gemm_loader.cuh",
    "tile/epilogue.cuh",
    "tile/three_consumers.cuh",
    "tile/cluster_sums.cuh",
    "tile/gemm_consumer.cuh",
    "tile/gemm_storer.cuh",
    "tile/attend_config.cuh",
    "tile/attend_loader.cuh",
    "tile/attend_softmax.cuh",
    "tile/attend_consumer.cuh",
    "tile/attend_storer.cuh",
    "tile/attend_grad_config.cuh",
    "tile/attend_grad_loader.cuh",
    "tile/attend_grad_products.cuh",
    "tile/attend_dq.cuh",
    "tile/attend_dkv.cuh",
    "comm/copy_bulk.cuh",
    "comm/copy_rows.cuh",
    "comm/reduce_rows.cuh",
    "comm/stats_rows.cuh",
    "comm/norm_rows.cuh",
    "comm/gather_rows.cuh",
    "comm/combine_rows.cuh",
    "comm/dot_rows.cuh",
    "comm/tabulate.cuh",
    "comm/route.cuh",
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_order_file_is_the_order() {
        let order = include_str!("../../../../templates/ORDER");
        let files: Vec<_> = super::FILES.iter().map(|f| f.0).collect();
        assert_eq!(order.lines().collect::<Vec<_>>(), files);
    }
}
