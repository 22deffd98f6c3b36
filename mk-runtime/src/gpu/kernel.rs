//! A loaded module and one of its functions.

use crate::driver::ledger::between_launches;
use crate::driver::{Context, cu};
use crate::{Error, Result};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// A CUBIN loaded into one context. Unloaded when the last kernel of it drops.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: a CUmodule may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a CUBIN.
    pub(crate) fn load(context: &Arc<Context>, cubin: &[u8]) -> Result<Arc<Module>> {
        let _quiet = between_launches();
        let _in = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a complete ELF file, which carries its own length.
        unsafe { cu!(Some(context.ordinal()), cuModuleLoadData(&mut raw, cubin.as_ptr().cast())) }?;
        Ok(Arc::new(Module { context: context.clone(), raw }))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _quiet = between_launches();
        self.context.free("a module was not unloaded", |gpu| {
            // SAFETY: our module; no kernel of it runs, because owners wait first.
            unsafe { cu!(gpu, cuModuleUnload(self.raw)) }
        });
    }
}

/// A function of a module, loaded and ready.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    module: Arc<Module>,
    function: sys::CUfunction,
}

// SAFETY: a CUfunction may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Finds a function and loads it now: a lazy load at the first launch may wait for the GPU, and the GPU may be
    /// waiting for the launch.
    pub(crate) fn new(module: &Arc<Module>, entry: &str, kernel: &str) -> Result<Kernel> {
        let name = CString::new(entry).map_err(|_| Error::BadSource {
            kernel: kernel.into(),
            what: "the entry point's name contains a NUL byte".into(),
        })?;
        let _quiet = between_launches();
        let context = &module.context;
        let device = Some(context.ordinal());
        let _in = context.enter()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a valid out-pointer, a live module, a NUL-terminated name.
        unsafe { cu!(device, cuModuleGetFunction(&mut function, module.raw, name.as_ptr())) }?;
        // SAFETY: a live function.
        unsafe { cu!(device, cuFuncLoad(function)) }?;
        Ok(Kernel { module: module.clone(), function })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.module.context
    }

    pub(crate) fn function(&self) -> sys::CUfunction {
        self.function
    }

    /// Size of the first parameter, in bytes; `None` when there are none or several.
    pub(crate) fn only_param_bytes(&self) -> Result<Option<usize>> {
        let device = Some(self.context().ordinal());
        let _in = self.context().enter()?;
        let mut sizes = [0usize; 2];
        for (i, size) in sizes.iter_mut().enumerate() {
            let mut offset = 0;
            // SAFETY: valid out-pointers and a live function.
            let found =
                unsafe { cu!(device, cuFuncGetParamInfo(self.function, i, &mut offset, size)) };
            match found {
                Ok(()) => {}
                // CUDA_ERROR_INVALID_VALUE: no such parameter.
                Err(Error::Cuda { code: 1, .. }) => *size = 0,
                Err(error) => return Err(error),
            }
        }
        Ok((sizes[0] > 0 && sizes[1] == 0).then_some(sizes[0]))
    }

    /// Sets a function attribute.
    pub(crate) fn set(&self, which: sys::CUfunction_attribute, value: i32) -> Result<()> {
        let _in = self.context().enter()?;
        // SAFETY: a live function.
        unsafe {
            cu!(Some(self.context().ordinal()), cuFuncSetAttribute(self.function, which, value))
        }
    }

    /// Launches a plain kernel: `grid` by `block` with that much dynamic shared memory, parameters by address.
    ///
    /// # Safety
    /// The parameters must have the number and types that the kernel declares; device pointers among them must be
    /// valid until it is done; the stream must belong to the kernel's context.
    pub(crate) unsafe fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        smem_bytes: u32,
        stream: sys::CUstream,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        let _in = self.context().enter()?;
        // SAFETY: by the caller.
        unsafe {
            cu!(
                Some(self.context().ordinal()),
                cuLaunchKernel(
                    self.function,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    smem_bytes,
                    stream,
                    params.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
        }
    }
}
