//! One kernel on a stream: its arguments, packed as C packs them, and its grid.

use std::ffi::c_void;
use std::fmt::Write;
use std::sync::Arc;

use ferrotron_cuda_sys as sys;
use ferrotron_device::{DType, Error, Result, Stream, Tensor};

use crate::device::CudaOps;
use crate::shared::Omit;
use crate::stream::{Core, CudaStream};

/// Threads of a block of every kernel: `THREADS` of `../kernels/prelude.cuh`.
const THREADS: u32 = 256;
/// Threads of a warp: `WARP` there.
const WARP: u32 = 32;
/// Most blocks of a kernel that strides over elements: enough for any chip, and results do not depend on it.
const MAX_BLOCKS: usize = 4096;
/// Shared memory that a kernel may use without asking.
const FREE_SHARED: usize = 48 << 10;
/// Most bytes of arguments of a kernel.
const MAX_ARGUMENTS: usize = 512;

/// An operand: `In` and `Out` of `../kernels/prelude.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    at: u64,
    n: u64,
    dtype: u32,
}

/// The codes of element types there.
fn code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::BF16 => 1,
        DType::F16 => 2,
        DType::I32 => 3,
        DType::F64 => 4,
        // no kernel takes these: the contract's checks refuse them before
        DType::I64 | DType::U8 => u32::MAX,
    }
}

/// A kernel that is being launched.
pub struct Launch<'a> {
    core: &'a Arc<Core>,
    name: &'static str,
    function: sys::CUfunction,
    /// Eight-byte words, so that every argument is aligned.
    arguments: [u64; MAX_ARGUMENTS / 8],
    used: usize,
    words: String,
}

impl CudaOps {
    /// Begins a launch of a kernel.
    pub fn kernel<'a>(&'a self, s: &'a Stream, name: &'static str) -> Result<Launch<'a>> {
        let core = CudaStream::of(s)?;
        core.begin()?;
        let function = self.kernels.get(name)?;
        Ok(Launch { core, name, function, arguments: [0; MAX_ARGUMENTS / 8], used: 0, words: String::new() })
    }
}

impl Launch<'_> {
    /// Puts a plain value, whose alignment is its size or 8, at the next place that C would take.
    fn put<T: Copy>(mut self, v: T) -> Self {
        let at = self.used.next_multiple_of(align_of::<T>());
        self.used = at + size_of::<T>();
        assert!(self.used <= MAX_ARGUMENTS, "{} has more than {MAX_ARGUMENTS} bytes of arguments", self.name);
        // SAFETY: inside the words, which outlive the call; every `T` here is plain.
        unsafe { self.arguments.as_mut_ptr().cast::<u8>().add(at).cast::<T>().write(v) };
        self
    }

    /// Memory as an operand.
    pub fn memory(mut self, at: u64, n: usize, dtype: DType) -> Self {
        let comma = if self.words.is_empty() { "" } else { ", " };
        // writing to a string cannot fail
        let _ = write!(self.words, "{comma}{dtype}[{n}]");
        self.put(Operand { at, n: n as u64, dtype: code(dtype) })
    }

    /// A tensor as an operand.
    pub fn tensor(self, t: &Tensor) -> Self {
        self.memory(t.ptr().0, t.numel(), t.dtype())
    }

    /// A tensor, or an operand of no elements.
    pub fn optional(self, t: Option<&Tensor>) -> Self {
        match t {
            Some(t) => self.tensor(t),
            None => self.memory(0, 0, DType::F32),
        }
    }

    /// A value: u32, u64, i64, f32, f64, or a `repr(C)` struct of them that the kernel has too.
    pub fn value<T: Copy>(self, v: T) -> Self {
        self.put(v)
    }

    /// Runs it over `n` elements.
    pub fn over(self, n: usize) -> Result<()> {
        self.blocks(n.div_ceil(THREADS as usize).clamp(1, MAX_BLOCKS), 1, 0)
    }

    /// Runs it with a warp for each of `n` tokens or slots.
    pub fn over_warps(self, n: usize) -> Result<()> {
        self.blocks(n.div_ceil((THREADS / WARP) as usize), 1, 0)
    }

    /// Runs it over columns, 32 a block: `COLUMNS` of the prelude.
    pub fn over_columns(self, n: usize) -> Result<()> {
        self.blocks(n.div_ceil(32), 1, 0)
    }

    /// Runs `x` times `y` blocks with bytes of dynamic shared memory.
    pub fn blocks(mut self, x: usize, y: usize, shared: usize) -> Result<()> {
        let device = &self.core.shared;
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else {
            let why = format!("{x} times {y} blocks are more than a launch can have");
            return Err(Error::Unsupported { op: self.name, device: device.name.clone(), why });
        };
        let driver = &device.cuda.driver;
        if shared > FREE_SHARED && !device.omits(Omit::SharedMemory) {
            let most = device.cuda.attribute(device.device, sys::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
            if shared > most.unsigned_abs() as usize {
                let why = format!("it needs {shared} bytes of shared memory for this head size, the chip has {most}");
                return Err(Error::Unsupported { op: self.name, device: device.name.clone(), why });
            }
            let attribute = sys::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a kernel of this context.
            let status = unsafe { (driver.cuFuncSetAttribute)(self.function, attribute, shared as i32) };
            self.core.check("cuFuncSetAttribute", status)?;
        }
        self.core.note(format!("{}<{x}x{y}>({})", self.name, self.words));
        let mut bytes = self.used;
        let mut extra = [
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize as *mut c_void,
            self.arguments.as_mut_ptr().cast::<c_void>(),
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize as *mut c_void,
            (&raw mut bytes).cast::<c_void>(),
            sys::CU_LAUNCH_PARAM_END_AS_INT as usize as *mut c_void,
        ];
        let stream = device.stream_for(self.core, Omit::KernelStream);
        // SAFETY: the arguments are packed and copied by the call; operands live as long as work on them is queued, by the
        // rules of the pool.
        let status = unsafe {
            (driver.cuLaunchKernel)(
                self.function,
                x,
                y,
                1,
                THREADS,
                1,
                1,
                shared as u32,
                stream,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        self.core.check("cuLaunchKernel", status)
    }
}
