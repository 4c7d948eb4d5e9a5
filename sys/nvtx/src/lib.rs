//! NVTX: named ranges of threads, for NVIDIA's profilers (Nsight Systems and Compute, and others of the same interface).
//!
//! There are two ways to a profiler, and [`Nvtx::open`] takes the first that is there: a shared library with the functions
//! (`libnvToolsExt.so.1` up to CUDA 12.8, `libnvtx3interop.so.1` since), which finds the profiler itself; or what NVTX's own
//! headers compile into a C program, in Rust ([`inject`]): the profiler names its library in `NVTX_INJECTION64_PATH`, and
//! puts its functions into slots that this process holds out.
//!
//! Names are the vendor's.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

pub mod inject;
mod types;

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use ferrotron_dynlib::{Library, Search};

pub use types::*;

/// The variable by which a profiler names its library to the programs that it starts.
pub const INJECTION_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// A value of it that asks for no tool: nothing can be loaded by this name.
const NO_TOOL: &str = "./.";
/// Names of the shared library, the one that finds profilers of all ages first.
pub const LIBRARIES: [&str; 2] = ["libnvToolsExt.so.1", "libnvtx3interop.so.1"];
/// Bytes of a name with its NUL; what is longer is cut.
const LONGEST_NAME: usize = 128;

ferrotron_dynlib::table! {
    /// The functions of the shared library that are used here.
    pub struct ToolsExt {
        required {
            /// Opens a range of this thread inside those that are open; gives its level from 0, or a negative number.
            fn nvtxRangePushA(message: *const c_char) -> c_int;
            /// Ends the innermost; gives its level, or a negative number.
            fn nvtxRangePop() -> c_int;
            /// A name for a thread, by the number that the system knows it by.
            fn nvtxNameOsThreadA(thread: u32, name: *const c_char);
        }
        optional {}
    }
}

/// Why nobody hears of ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNvtx {
    /// No library is here, and no profiler has named itself.
    #[error(
        "{} ({} places searched), and {INJECTION_VARIABLE} names no tool; start the program under a profiler, which sets it: \
         nsys profile --trace=cuda,nvtx ...",
        why_no_library(.unfit), .searched.len()
    )]
    Nobody {
        /// Where the library was looked for.
        searched: Vec<String>,
        /// A library that is there, and why it does not serve.
        unfit: Option<String>,
    },
    /// A profiler has named itself and does not serve.
    #[error("the tool {tool} that {INJECTION_VARIABLE} names {why}; {remedy}")]
    Tool {
        /// Its library.
        tool: String,
        /// What is wrong with it.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
}

fn why_no_library(unfit: &Option<String>) -> String {
    unfit.clone().unwrap_or_else(|| format!("there is no {}", LIBRARIES.join(" or ")))
}

/// The way to a profiler.
pub struct Nvtx {
    way: Way,
    path: String,
}

enum Way {
    Library(ToolsExt),
    Injected,
}

impl Nvtx {
    /// The first library of `libraries` (whose names are [`LIBRARIES`]), else the tool that a profiler has named, the value
    /// of [`INJECTION_VARIABLE`]. A process has one tool: the first that was tried stays, whether it serves or not.
    ///
    /// # Errors
    /// Nobody would hear of ranges.
    pub fn open(libraries: &Search, tool: Option<OsString>) -> Result<Nvtx, NoNvtx> {
        let (searched, unfit) = match libraries.open().map(Arc::new) {
            Ok(library) => match ToolsExt::load(std::slice::from_ref(&library)) {
                Ok(table) => return Ok(Nvtx { path: library.path().into(), way: Way::Library(table) }),
                Err(missing) => (vec![library.path().to_string()], Some(missing.to_string())),
            },
            Err(none) => (none.tried.iter().map(ToString::to_string).collect(), None),
        };
        let tool = tool.filter(|t| !t.is_empty() && t != NO_TOOL).ok_or(NoNvtx::Nobody { searched, unfit })?;
        inject::attach(&tool, load)?;
        Ok(Nvtx { path: Path::new(&tool).display().to_string(), way: Way::Injected })
    }

    /// The library, or the tool's.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Opens a range of this thread. Gives its level, from 0, or a negative number where nobody counts. A name is cut at a
    /// NUL, and after 127 bytes.
    pub fn push(&self, name: &str) -> i32 {
        with_c_str(name, |name| match &self.way {
            // SAFETY: a C string that lives as long as the call.
            Way::Library(table) => unsafe { (table.nvtxRangePushA)(name.as_ptr()) },
            Way::Injected => inject::push(name),
        })
    }

    /// Ends the innermost range of this thread. Gives its level, or a negative number where nobody counts.
    pub fn pop(&self) -> i32 {
        match &self.way {
            // SAFETY: no arguments.
            Way::Library(table) => unsafe { (table.nvtxRangePop)() },
            Way::Injected => inject::pop(),
        }
    }

    /// Names this thread, where the system tells its number.
    pub fn name_thread(&self, name: &str) {
        let Some(thread) = thread_number() else { return };
        with_c_str(name, |name| match &self.way {
            // SAFETY: as in `push`.
            Way::Library(table) => unsafe { (table.nvtxNameOsThreadA)(thread, name.as_ptr()) },
            Way::Injected => inject::name_thread(thread, name),
        });
    }
}

impl std::fmt::Debug for Nvtx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nvtx({})", self.path)
    }
}

/// A profiler's library and its entry.
fn load(tool: &OsStr) -> Result<inject::Entry, NoNvtx> {
    let told = |why, remedy| NoNvtx::Tool { tool: Path::new(tool).display().to_string(), why, remedy };
    let library = Library::open(tool)
        .map_err(|words| told(format!("cannot be loaded ({words})"), "unset the variable, or mend the installation"))?;
    inject::Entry::of(library)
        .map_err(|e| told(format!("is none: {e}"), "unset the variable, or let it name an NVTX tool"))
}

/// Calls with a name as a C string, on the stack: ranges are opened often.
fn with_c_str<T>(name: &str, call: impl FnOnce(&CStr) -> T) -> T {
    let mut bytes = [0u8; LONGEST_NAME];
    let length = name.floor_char_boundary(LONGEST_NAME - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    call(CStr::from_bytes_until_nul(&bytes).unwrap_or_default())
}

/// This thread's number on Linux, as profilers know it: the end of `PID/task/TID`.
fn thread_number() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_to_what_a_c_string_holds() {
        let text = |name: &str| with_c_str(name, |c| c.to_str().unwrap().to_string());
        assert_eq!((text("optimizer"), text(""), text("a\0b")), ("optimizer".into(), String::new(), "a".into()));
        assert_eq!(text(&"x".repeat(300)), "x".repeat(127));
        // a letter of two bytes that would end beyond the buffer goes as a whole
        assert_eq!(text(&"é".repeat(100)), "é".repeat(63));
    }

    #[test]
    fn a_thread_has_a_number_of_its_own() {
        let (here, there) = (thread_number(), std::thread::spawn(thread_number).join().unwrap());
        assert!(here.is_some() && here != there, "{here:?} {there:?}");
    }
}
