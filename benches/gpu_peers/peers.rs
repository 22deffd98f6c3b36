//! cuBLAS and NCCL, opened at run time: what callers use today.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::{error::Error, ffi::c_void, mem::ManuallyDrop, ptr::null_mut};

type Handle = *mut c_void;
type Res<T> = Result<T, Box<dyn Error>>;

const CUBLAS_COMPUTE_32F: i32 = 68;
const CUDA_R_16BF: i32 = 14;
const NCCL_BFLOAT16: i32 = 9;

#[allow(clippy::type_complexity)]
pub struct Peers {
    blas: Vec<Handle>,
    comms: Vec<Handle>,
    set_device: unsafe extern "C" fn(i32) -> i32,
    set_stream: unsafe extern "C" fn(Handle, Handle) -> i32,
    gemm: unsafe extern "C" fn(
        Handle,
        i32,
        i32,
        i32,
        i32,
        i32,
        *const f32,
        u64,
        i32,
        i32,
        u64,
        i32,
        i32,
        *const f32,
        u64,
        i32,
        i32,
        i32,
        i32,
    ) -> i32,
    gather: unsafe extern "C" fn(u64, u64, usize, i32, Handle, Handle) -> i32,
    reduce: [unsafe extern "C" fn(u64, u64, usize, i32, i32, Handle, Handle) -> i32; 2],
    group: [unsafe extern "C" fn() -> i32; 2],
    /// Never closed: the vendor's libraries have threads and exit handlers of their own.
    _libraries: ManuallyDrop<[Library; 3]>,
}

fn ok(what: &str, status: i32) -> Res<()> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: status {status}").into()) }
}

impl Peers {
    /// Opens the libraries, and a communicator over GPUs 0 to `world`.
    pub fn new(world: usize) -> Res<Peers> {
        // SAFETY: libraries of the vendor, kept open for the life of the struct; every signature is that of its header.
        unsafe {
            let open = |name: &str| Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL);
            let rt = open("libcudart.so.13")?;
            let blas = open("libcublas.so.13")?;
            let nccl = open("libnccl.so.2")?;
            let set_device: unsafe extern "C" fn(i32) -> i32 = *rt.get(b"cudaSetDevice\0")?;
            let create: unsafe extern "C" fn(*mut Handle) -> i32 =
                *blas.get(b"cublasCreate_v2\0")?;
            let init: unsafe extern "C" fn(*mut Handle, i32, *const i32) -> i32 =
                *nccl.get(b"ncclCommInitAll\0")?;
            let mut handles = vec![null_mut(); world];
            for (i, h) in handles.iter_mut().enumerate() {
                ok("cudaSetDevice", set_device(i as i32))?;
                ok("cublasCreate", create(h))?;
            }
            let mut comms = vec![null_mut(); world];
            let devices: Vec<i32> = (0..world as i32).collect();
            ok("ncclCommInitAll", init(comms.as_mut_ptr(), world as i32, devices.as_ptr()))?;
            Ok(Peers {
                blas: handles,
                comms,
                set_device,
                set_stream: *blas.get(b"cublasSetStream_v2\0")?,
                gemm: *blas.get(b"cublasGemmEx\0")?,
                gather: *nccl.get(b"ncclAllGather\0")?,
                reduce: [*nccl.get(b"ncclReduceScatter\0")?, *nccl.get(b"ncclAllReduce\0")?],
                group: [*nccl.get(b"ncclGroupStart\0")?, *nccl.get(b"ncclGroupEnd\0")?],
                _libraries: ManuallyDrop::new([rt, blas, nccl]),
            })
        }
    }

    /// `c[m, n] = a[m, k] * b[k, n]`, row-major bf16.
    pub fn gemm(
        &self,
        rank: usize,
        stream: Handle,
        a: u64,
        b: u64,
        c: u64,
        [m, k, n]: [i32; 3],
    ) -> Res<()> {
        let (one, zero) = (1.0f32, 0.0f32);
        let h = self.blas[rank];
        let t = CUDA_R_16BF;
        // SAFETY: pointers to that many elements; row-major as column-major transposed.
        unsafe {
            ok("cudaSetDevice", (self.set_device)(rank as i32))?;
            ok("cublasSetStream", (self.set_stream)(h, stream))?;
            let status = (self.gemm)(
                h,
                0,
                0,
                n,
                m,
                k,
                &one,
                b,
                t,
                n,
                a,
                t,
                k,
                &zero,
                c,
                t,
                n,
                CUBLAS_COMPUTE_32F,
                -1,
            );
            ok("cublasGemmEx", status)
        }
    }

    /// All-gathers `elements` bf16 of each rank.
    pub fn gather(&self, streams: &[Handle], from: &[u64], to: &[u64], elements: usize) -> Res<()> {
        // SAFETY: pointers to that many elements on the rank's GPU.
        unsafe {
            ok("ncclGroupStart", (self.group[0])())?;
            for (r, comm) in self.comms.iter().enumerate() {
                ok(
                    "ncclAllGather",
                    (self.gather)(from[r], to[r], elements, NCCL_BFLOAT16, *comm, streams[r]),
                )?;
            }
            ok("ncclGroupEnd", (self.group[1])())
        }
    }

    /// Reduction over ranks: `elements` of the result on each rank; of all of them if `all`.
    pub fn reduce(
        &self,
        streams: &[Handle],
        from: &[u64],
        to: &[u64],
        elements: usize,
        all: bool,
    ) -> Res<()> {
        const NCCL_SUM: i32 = 0;
        // SAFETY: pointers to that many elements on the rank's GPU (times the ranks, for the source of a scatter).
        unsafe {
            ok("ncclGroupStart", (self.group[0])())?;
            for (r, comm) in self.comms.iter().enumerate() {
                let call = self.reduce[usize::from(all)];
                ok(
                    "ncclReduce",
                    call(from[r], to[r], elements, NCCL_BFLOAT16, NCCL_SUM, *comm, streams[r]),
                )?;
            }
            ok("ncclGroupEnd", (self.group[1])())
        }
    }
}
