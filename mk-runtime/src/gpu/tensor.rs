//! Dense row-major tensors in device memory.

use crate::mem::DeviceBuffer;
use crate::world::World;
use crate::{Error, Result};
use mk_abi::DType;

/// A tensor argument of a launch: an address and a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRef {
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
}

impl TensorRef {
    /// Borrows device memory of another owner. Null is allowed for 0 bytes.
    ///
    /// # Safety
    /// The `bytes` bytes at `ptr` must be device memory that the rank's GPU can access, and must live until every
    /// launch that was given them is done (a captured graph: until it is dropped).
    pub unsafe fn from_raw(ptr: u64, bytes: u64) -> TensorRef {
        TensorRef { ptr, bytes }
    }

    /// Device address.
    pub fn ptr(self) -> u64 {
        self.ptr
    }

    /// Its first bytes, so many at most.
    pub fn first(self, bytes: u64) -> TensorRef {
        TensorRef { ptr: self.ptr, bytes: bytes.min(self.bytes) }
    }

    /// Size in bytes.
    pub fn size_bytes(self) -> u64 {
        self.bytes
    }
}

/// A dense row-major tensor on one rank's GPU. Its memory is freed on drop, which waits for the GPU.
#[derive(Debug)]
pub struct DeviceTensor {
    rank: u32,
    dtype: DType,
    shape: Vec<u64>,
    buffer: DeviceBuffer,
}

impl DeviceTensor {
    /// Allocates; the contents are undefined. `shape` is outermost first.
    ///
    /// # Errors
    /// [`Error::Cuda`], out of memory among others; [`Error::Shape`] when the size overflows.
    pub fn new(world: &World, rank: u32, dtype: DType, shape: &[u64]) -> Result<DeviceTensor> {
        let bytes =
            shape.iter().try_fold(dtype.size_bytes(), |n, d| n.checked_mul(*d)).ok_or_else(
                || Error::Shape { what: format!("a tensor of shape {shape:?} is too large") },
            )?;
        Ok(DeviceTensor {
            rank,
            dtype,
            shape: shape.to_vec(),
            buffer: DeviceBuffer::new(world, rank, bytes)?,
        })
    }

    /// Allocates and zeroes.
    ///
    /// # Errors
    /// As [`DeviceTensor::new`].
    pub fn zeros(world: &World, rank: u32, dtype: DType, shape: &[u64]) -> Result<DeviceTensor> {
        let tensor = DeviceTensor::new(world, rank, dtype, shape)?;
        tensor.buffer.fill(0)?;
        Ok(tensor)
    }

    /// Allocates and uploads; see [`DeviceTensor::upload_f32`].
    ///
    /// # Errors
    /// As [`DeviceTensor::new`] and [`DeviceTensor::upload_f32`].
    pub fn from_f32(
        world: &World,
        rank: u32,
        dtype: DType,
        shape: &[u64],
        values: &[f32],
    ) -> Result<DeviceTensor> {
        let tensor = DeviceTensor::new(world, rank, dtype, shape)?;
        tensor.upload_f32(values)?;
        Ok(tensor)
    }

    /// Rank that owns it.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The memory.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// As a launch argument. The tensor must outlive the launch's enqueueing; dropping it waits for the GPU.
    pub fn as_arg(&self) -> TensorRef {
        TensorRef { ptr: self.buffer.ptr(), bytes: self.buffer.size_bytes() }
    }

    /// Rounds to the tensor's type (ties to even), copies, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of values is not the number of elements, or the type is not a float;
    /// [`Error::Cuda`].
    pub fn upload_f32(&self, values: &[f32]) -> Result<()> {
        if self.dtype.is_integer() {
            return Err(self.not("of floats"));
        }
        self.buffer.upload(&self.dtype.to_bytes(values))
    }

    /// Copies behind the GPU's launches, and widens to f32 (exact).
    ///
    /// # Errors
    /// [`Error::Shape`] when the type is not a float; [`Error::Cuda`], also that of an earlier kernel.
    pub fn download_f32(&self) -> Result<Vec<f32>> {
        let bytes = self.buffer.download()?;
        if self.dtype.is_integer() {
            return Err(self.not("of floats"));
        }
        Ok(self.dtype.from_bytes(&bytes).collect())
    }

    /// Copies integers, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of values or the type does not fit; [`Error::Cuda`].
    pub fn upload_i32(&self, values: &[i32]) -> Result<()> {
        if self.dtype != DType::I32 {
            return Err(self.not("of integers"));
        }
        self.buffer.upload(&pack(values, i32::to_le_bytes))
    }

    /// Copies integers, behind the GPU's launches.
    ///
    /// # Errors
    /// [`Error::Shape`] when the type does not fit; [`Error::Cuda`], also that of an earlier kernel.
    pub fn download_i32(&self) -> Result<Vec<i32>> {
        if self.dtype != DType::I32 {
            return Err(self.not("of integers"));
        }
        Ok(unpack(&self.buffer.download()?, i32::from_le_bytes))
    }

    /// Copies integers to a tensor of 32 or 64 bits, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of values or the type does not fit, or a value is beyond the type;
    /// [`Error::Cuda`].
    pub fn upload_integers(&self, values: &[i64]) -> Result<()> {
        if self.dtype == DType::I64 {
            return self.buffer.upload(&pack(values, i64::to_le_bytes));
        }
        let narrow: Result<Vec<i32>, _> = values.iter().map(|v| i32::try_from(*v)).collect();
        self.upload_i32(&narrow.map_err(|_| self.not("that has them all"))?)
    }

    /// Copies integers of 32 or 64 bits, behind the GPU's launches.
    ///
    /// # Errors
    /// [`Error::Shape`] when the type does not fit; [`Error::Cuda`], also that of an earlier kernel.
    pub fn download_integers(&self) -> Result<Vec<i64>> {
        if self.dtype == DType::I64 {
            return Ok(unpack(&self.buffer.download()?, i64::from_le_bytes));
        }
        Ok(self.download_i32()?.into_iter().map(i64::from).collect())
    }

    /// Fills with bytes 0xFF, a NaN in every float type, so that an element that nobody writes shows.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn poison(&self) -> Result<()> {
        self.buffer.fill(0xFF)
    }

    /// Copies another tensor of the same type and number of elements, perhaps from another GPU, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] when they differ; [`Error::Cuda`].
    pub fn copy_from(&self, from: &DeviceTensor) -> Result<()> {
        if self.dtype != from.dtype || self.elements() != from.elements() {
            return Err(Error::Shape {
                what: format!(
                    "{} {:?} cannot be copied to {} {:?}",
                    from.dtype, from.shape, self.dtype, self.shape
                ),
            });
        }
        self.buffer.copy_from(&from.buffer)
    }

    fn not(&self, what: &str) -> Error {
        Error::Shape { what: format!("a tensor of {} is not one {what}", self.dtype) }
    }
}

fn pack<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|v| to(*v)).collect()
}

fn unpack<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|c| from(*c)).collect()
}
