//! NVRTC 12.4: it reads a program as the compiler does, as far as kernels and files are found, and gives an image that names
//! the kernels. Faults in compiling are asked for as `nvrtc:compile`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use ferrotron_cuda_kernels::names_in;
use ferrotron_cuda_sys::*;

use crate::driver::put;
use crate::world::{Answer, Object, World, lock, world};

/// Chips that this version knows.
const CHIPS: [c_int; 14] = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90];

/// A program, and what was made of it.
#[derive(Default)]
pub struct Program {
    name: String,
    source: String,
    headers: BTreeMap<String, String>,
    log: String,
    cubin: Vec<u8>,
    ptx: Vec<u8>,
}

/// A failed compilation: code and words.
struct Failed(c_int, String);

impl Program {
    fn compile(&mut self, options: &[String]) -> Result<(), Failed> {
        let mut target = None;
        for option in options {
            match option.strip_prefix("--gpu-architecture=") {
                Some(value) => target = Some(value),
                None if option == "-std=c++17" => {}
                None => {
                    return Err(Failed(
                        NVRTC_ERROR_INVALID_OPTION,
                        format!("nvrtc: error: unrecognized option {option} found"),
                    ));
                }
            }
        }
        let invalid =
            || Failed(NVRTC_ERROR_INVALID_OPTION, "nvrtc: error: invalid value for --gpu-architecture (-arch)".into());
        let target = target.ok_or_else(invalid)?;
        let (kind, chip) = target.split_once('_').ok_or_else(invalid)?;
        let chip: u32 = chip.parse().ok().filter(|c| CHIPS.contains(&(*c as c_int))).ok_or_else(invalid)?;
        let (mut text, mut seen) = (String::new(), BTreeSet::new());
        self.read(&self.name, &self.source, &mut text, &mut seen)?;
        let kernels: Vec<&str> = names_in(&text).collect();
        match kind {
            "sm" => self.cubin = crate::cubin::make(chip, &kernels),
            "compute" => {
                let mut ptx = format!(".version 8.4\n.target sm_{chip}\n.address_size 64\n");
                kernels.iter().for_each(|k| ptx.push_str(&format!(".visible .entry {k}()\n")));
                self.ptx = ptx.into_bytes();
                self.ptx.push(0);
            }
            _ => return Err(invalid()),
        }
        Ok(())
    }

    /// Adds a file's lines and those of the files that it includes, each once, as they all ask. Parts for the emulator are
    /// left out, for its name is not defined.
    fn read(&self, name: &str, source: &str, text: &mut String, seen: &mut BTreeSet<String>) -> Result<(), Failed> {
        let mut off = Vec::new();
        for (i, line) in source.lines().enumerate() {
            let words = line.trim();
            if words.starts_with("#if") {
                off.push(words == "#ifdef CUDA_EMULATOR");
            } else if words.starts_with("#else") {
                off.iter_mut().last().into_iter().for_each(|o| *o = !*o);
            } else if words.starts_with("#endif") {
                off.pop();
            } else if off.contains(&true) {
                continue;
            } else if let Some(file) = words.strip_prefix("#include") {
                let file = file.trim().trim_matches(['"', '<', '>']);
                let Some(inner) = self.headers.get(file) else {
                    let words = format!("{name}({}): catastrophic error: cannot open source file \"{file}\"", i + 1);
                    return Err(Failed(NVRTC_ERROR_COMPILATION, words));
                };
                if seen.insert(file.into()) {
                    self.read(file, inner, text, seen)?;
                }
            } else {
                text.push_str(line);
                text.push('\n');
            }
        }
        Ok(())
    }
}

/// Runs a call. NVRTC needs no context.
fn called(body: impl FnOnce(&'static World) -> Answer<()>) -> nvrtcResult {
    body(world()).err().unwrap_or(NVRTC_SUCCESS)
}

fn program(w: &World, handle: nvrtcProgram) -> Answer<Arc<Mutex<Program>>> {
    match w.get(handle as usize) {
        Ok(Object::Program(p)) => Ok(p),
        _ => Err(NVRTC_ERROR_INVALID_PROGRAM),
    }
}

/// A text of the caller's.
///
/// # Safety
/// A C string.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: as asked.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// Texts of the caller's.
///
/// # Safety
/// As many C strings as `count`.
unsafe fn texts(count: c_int, at: *const *const c_char) -> Answer<Vec<String>> {
    let count = usize::try_from(count).map_err(|_| NVRTC_ERROR_INVALID_INPUT)?;
    // SAFETY: as asked.
    Ok((0..count).map(|i| unsafe { text(*at.add(i)) }).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult {
    // SAFETY: out-parameters.
    called(|_| unsafe { put(major, 12).and(put(minor, 4)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(result: nvrtcResult) -> *const c_char {
    match result {
        NVRTC_SUCCESS => c"NVRTC_SUCCESS",
        NVRTC_ERROR_INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        NVRTC_ERROR_INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        NVRTC_ERROR_INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        NVRTC_ERROR_COMPILATION => c"NVRTC_ERROR_COMPILATION",
        NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => c"NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        _ => c"NVRTC_ERROR unknown",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult {
    // SAFETY: out-parameter.
    called(|_| unsafe { put(count, CHIPS.len() as c_int) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetSupportedArchs(chips: *mut c_int) -> nvrtcResult {
    // SAFETY: as many as the function above says.
    called(|_| (0..CHIPS.len()).try_for_each(|i| unsafe { put(chips.add(i), CHIPS[i]) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    out: *mut nvrtcProgram,
    source: *const c_char,
    name: *const c_char,
    count: c_int,
    headers: *const *const c_char,
    names: *const *const c_char,
) -> nvrtcResult {
    called(|w| {
        if source.is_null() || name.is_null() || (count > 0 && (headers.is_null() || names.is_null())) {
            return Err(NVRTC_ERROR_INVALID_INPUT);
        }
        // SAFETY: the caller's arrays of that length, and C strings.
        let (source, name, names, headers) =
            unsafe { (text(source), text(name), texts(count, names)?, texts(count, headers)?) };
        let headers = names.into_iter().zip(headers).collect();
        let made = Program { name, source, headers, ..Program::default() };
        // SAFETY: out-parameter.
        unsafe { put(out, w.add(Object::Program(Arc::new(Mutex::new(made)))) as *mut c_void) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(handle: *mut nvrtcProgram) -> nvrtcResult {
    called(|w| {
        // SAFETY: the caller's handle, which is set to null.
        let one = unsafe { std::mem::replace(&mut *handle, std::ptr::null_mut()) };
        program(w, one)?;
        w.remove(one as usize).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    handle: nvrtcProgram,
    count: c_int,
    options: *const *const c_char,
) -> nvrtcResult {
    called(|w| {
        let program = program(w, handle)?;
        // SAFETY: as many C strings.
        let options = unsafe { texts(count, options) }?;
        let mut program = lock(&program);
        let made = match w.devices[w.current().unwrap_or(0)].faults().visit("nvrtc:compile") {
            Some(code) => Err(Failed(code, format!("{}(1): error: made on purpose", program.name))),
            None => program.compile(&options),
        };
        made.map_err(|Failed(code, words)| {
            program.log = words;
            code
        })
    })
}

/// Gives an output's size, or the output.
macro_rules! outputs {
    ($($size:ident, $get:ident: |$p:ident| $bytes:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $size(handle: nvrtcProgram, bytes: *mut usize) -> nvrtcResult {
            called(|w| {
                let one = program(w, handle)?;
                let $p = lock(&one);
                let n = $bytes.len();
                // SAFETY: out-parameter.
                unsafe { put(bytes, n) }
            })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(handle: nvrtcProgram, to: *mut c_char) -> nvrtcResult {
            called(|w| {
                let one = program(w, handle)?;
                let $p = lock(&one);
                let bytes = &$bytes;
                // SAFETY: a buffer of the size that the function above told.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
                Ok(())
            })
        }
    )*};
}

outputs! {
    nvrtcGetProgramLogSize, nvrtcGetProgramLog: |p| [p.log.as_bytes(), &[0]].concat();
    nvrtcGetPTXSize, nvrtcGetPTX: |p| p.ptx;
    nvrtcGetCUBINSize, nvrtcGetCUBIN: |p| p.cubin;
}
