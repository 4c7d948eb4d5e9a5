//! NVRTC: the kernels' sources compiled where a device is.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::Arc;

use ferrotron_cuda_kernels as kernels;
use ferrotron_cuda_sys::{Environment, NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, NVRTC_SUCCESS, Nvrtc, nvrtcProgram};
use ferrotron_dynlib::Library;

/// The oldest version that serves.
const OLDEST: (i32, i32) = (12, 0);

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code for a chip: 90 is compute capability 9.0.
    Chip(u32),
    /// PTX for a chip and all later ones.
    Ptx(u32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Chip(chip) => write!(f, "sm_{chip}"),
            Target::Ptx(chip) => write!(f, "compute_{chip}"),
        }
    }
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code, or the text of PTX.
    pub image: Vec<u8>,
    /// Warnings.
    pub log: String,
}

/// The library, loaded.
pub struct Compiler {
    nvrtc: Nvrtc,
    version: (i32, i32),
}

/// A program of NVRTC's, given up at the end.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: nvrtcProgram,
}

type Get<T> = unsafe extern "C" fn(nvrtcProgram, *mut T) -> i32;

impl Compiler {
    /// Finds the library for a driver of this CUDA (12 of 12.4). `Err` says where it was looked for, or what is wrong with it.
    pub fn load(environment: &Environment, cuda: i32) -> Result<Compiler, String> {
        let compiler = Compiler::of(environment.nvrtc(cuda).open().map_err(|e| e.to_string())?)?;
        if compiler.version.0 > cuda {
            return Err(format!("{} makes code that a driver for CUDA {cuda} does not read", compiler.name()));
        }
        Ok(compiler)
    }

    /// Takes a library that is loaded.
    pub fn of(library: Library) -> Result<Compiler, String> {
        let nvrtc = Nvrtc::load(&[Arc::new(library)]).map_err(|e| e.to_string())?;
        let mut version = (0, 0);
        // SAFETY: out-parameters.
        let status = unsafe { (nvrtc.nvrtcVersion)(&mut version.0, &mut version.1) };
        let compiler = Compiler { nvrtc, version };
        compiler.check("nvrtcVersion", status)?;
        if version < OLDEST {
            return Err(format!("{} is too old: 12.0 is the first that serves", compiler.name()));
        }
        Ok(compiler)
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// `NVRTC 12.4`.
    pub fn name(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// The chip to compile for: that of the device, else the nearest before it whose code runs there.
    pub fn chip_for(&self, (major, minor): (i32, i32)) -> Result<u32, String> {
        let mut count = 0;
        // SAFETY: an out-parameter.
        self.check("nvrtcGetNumSupportedArchs", unsafe { (self.nvrtc.nvrtcGetNumSupportedArchs)(&mut count) })?;
        let mut chips = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: an array of the length just told.
        self.check("nvrtcGetSupportedArchs", unsafe { (self.nvrtc.nvrtcGetSupportedArchs)(chips.as_mut_ptr()) })?;
        let serves = |chip: &&i32| (major * 10..=major * 10 + minor).contains(*chip);
        let best = chips.iter().filter(serves).max().and_then(|c| u32::try_from(*c).ok());
        best.ok_or_else(|| {
            let known: Vec<String> = chips.iter().map(|c| format!("{}.{}", c / 10, c % 10)).collect();
            format!("{} does not know compute capability {major}.{minor}, only {}", self.name(), known.join(", "))
        })
    }

    /// Compiles all kernels. `Err` has the compiler's words.
    pub fn compile(&self, target: Target) -> Result<Compiled, String> {
        let c_text = |text: &str| CString::new(text).map_err(|_| "a source has a NUL".to_string());
        let (source, name) = (c_text(&kernels::program())?, c"kernels.cu");
        let all = |part: fn(&(&'static str, &'static str)) -> &'static str| {
            kernels::SOURCES.iter().map(|file| c_text(part(file))).collect::<Result<Vec<CString>, String>>()
        };
        let (names, texts) = (all(|(name, _)| name)?, all(|(_, text)| text)?);
        let options = [c_text(&format!("--gpu-architecture={target}"))?, c_text("-std=c++17")?];
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<*const c_char>>();
        let mut program = Program { nvrtc: &self.nvrtc, handle: std::ptr::null_mut() };
        // SAFETY: an out-parameter, C strings, two arrays of as many of them; all are copied by the call.
        let status = unsafe {
            (self.nvrtc.nvrtcCreateProgram)(
                &mut program.handle,
                source.as_ptr(),
                name.as_ptr(),
                texts.len() as i32,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", status)?;
        // SAFETY: the program just made, an array of C strings.
        let status = unsafe {
            (self.nvrtc.nvrtcCompileProgram)(program.handle, options.len() as i32, pointers(&options).as_ptr())
        };
        let log = self.output(&program, self.nvrtc.nvrtcGetProgramLogSize, self.nvrtc.nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_string();
        self.check(&format!("nvrtcCompileProgram for {target}"), status).map_err(|e| format!("{e}\n{log}"))?;
        let image = match target {
            Target::Chip(_) => self.output(&program, self.nvrtc.nvrtcGetCUBINSize, self.nvrtc.nvrtcGetCUBIN)?,
            Target::Ptx(_) => {
                let mut text = self.output(&program, self.nvrtc.nvrtcGetPTXSize, self.nvrtc.nvrtcGetPTX)?;
                text.truncate(text.iter().position(|b| *b == 0).unwrap_or(text.len()));
                text
            }
        };
        Ok(Compiled { image, log })
    }

    /// One of the program's outputs.
    fn output(&self, program: &Program, size: Get<usize>, get: Get<c_char>) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: a live program, an out-parameter.
        self.check("nvrtcGet...Size", unsafe { size(program.handle, &mut bytes) })?;
        let mut out = vec![0u8; bytes];
        // SAFETY: a live program, a buffer of the size just told.
        self.check("nvrtcGet...", unsafe { get(program.handle, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }

    fn check(&self, call: &str, status: i32) -> Result<(), String> {
        if status == NVRTC_SUCCESS {
            return Ok(());
        }
        // SAFETY: gives a C string that lives as long as the library.
        let words = unsafe { CStr::from_ptr((self.nvrtc.nvrtcGetErrorString)(status)) }.to_string_lossy();
        let advice = if status == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE {
            ": libnvrtc-builtins of the same version must lie beside the library"
        } else {
            ""
        };
        Err(format!("{}: {call}: {status} {words}{advice}", self.name()))
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made by the call that set it, and used no more.
            unsafe { (self.nvrtc.nvrtcDestroyProgram)(&mut self.handle) };
        }
    }
}
