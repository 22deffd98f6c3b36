//! The plans that calibrate the cost model on a machine.

/// Settings that are kept at plain values.
const PLAIN: &str = "--try last_wave=none --try tile_scheduler=static";

/// Lines as `mk tune --list` takes them: GEMMs alone on one GPU, by depth and number of waves; collectives alone, by
/// number of SMs and size of a copy; and fused pipelines of middle size, in which all of it happens at once.
pub fn probe_list(ranks: u32) -> Vec<String> {
    let n = u64::from(ranks);
    let mut list = Vec::new();
    let tiles = "128x256x64,128x192x64,128x128x64,128x160x64,256x128x64,256x160x64,128x64x64";
    // 66 blocks of 128 rows: whole waves of 132 SMs.
    for (k, columns) in [(512, 512), (512, 2048), (2048, 1024), (8192, 512), (8192, 2048)] {
        list.push(format!(
            "'gemm(a, b)' --shape a=8448x{k} --shape b={k}x{columns} --ranks 1 --try block={tiles} --try \
             consumers=cooperative,ping_pong {PLAIN}"
        ));
    }
    for rows in [512 * n, 2048 * n] {
        list.push(format!(
            "'gather(a)' --shape a={rows}x8192 --ranks {n} --try intra_comm_sms=1,2,4,8,16,32,64 --try \
             chunk_bytes=131072,524288"
        ));
        for op in ["reduce_scatter", "all_reduce"] {
            list.push(format!(
                "'{op}(a)' --shape a={rows}x8192 --ranks {n} --try intra_comm_sms=8,16,32,64"
            ));
        }
    }
    let tiles =
        format!("--try block=128x256x64,128x128x64,256x128x64 --try consumers=cooperative {PLAIN}");
    for (rows, k, columns) in [(1024, 4096, 1024), (2048, 8192, 2048)] {
        let (rows, width) = (rows * n, columns * n);
        list.push(format!(
            "'gather(a) -> gemm(b)' --shape a={rows}x{k} --shape b={k}x{width} --ranks {n} {tiles} --try \
             intra_comm_sms=4,8,16,24 --try chunk_bytes=131072,524288 --try k_slices=1,4 --try \
             gather=sms,copy_engine,copy_engine/4"
        ));
        for op in ["reduce_scatter", "all_reduce"] {
            list.push(format!(
                "'gemm(a, b) -> {op}' --shape a={rows}x{width} --shape b={width}x{k} --ranks {n} {tiles} --try \
                 intra_comm_sms=8,16,24,32"
            ));
        }
    }
    list.push(format!(
        "'gemm(a, b) -> all_reduce' --shape a=128x{} --shape b={}x8192 --ranks {n} --try \
         block=128x256x64,128x128x64,128x64x64 --try consumers=cooperative {PLAIN} --try intra_comm_sms=8,16,32 --try \
         split_k=1,4",
        4096 * n,
        4096 * n
    ));
    list.push(format!(
        "'gemm(a, b) -> all_reduce' --shape a=64x{} --shape b={}x8192 --ranks {n} --try block=64x256x64,64x128x64 \
         --try consumers=cooperative --try split_k=2,4 --try reduction=after_last_wave --try \
         all_reduce=one_shot,by_columns",
        7168 * n,
        7168 * n
    ));
    list
}
