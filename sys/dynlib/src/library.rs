//! One loaded library.

use std::ffi::{CStr, OsStr, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;

/// The address of a symbol. Never null.
pub type SymbolAddress = std::ptr::NonNull<c_void>;

/// A loaded shared library. It stays loaded until the process ends: vendors' runtimes start threads and register
/// handlers that would run code which is no longer there.
pub struct Library {
    path: String,
    handle: ManuallyDrop<libloading::Library>,
}

impl Library {
    /// Loads a library: a path with a slash is that file, a bare name is what the system's loader finds for it
    /// (LD_LIBRARY_PATH, then its cache). `Err` has the loader's words.
    pub fn open(path: &OsStr) -> Result<Library, String> {
        // SAFETY: loading runs the library's initialisers. The caller names a vendor's runtime whose initialisers are
        // made to be run by dlopen; there is no way to check that of a foreign file.
        let handle = unsafe { libloading::Library::new(path) }.map_err(|e| words(&e))?;
        Ok(Library { path: Path::new(path).display().to_string(), handle: ManuallyDrop::new(handle) })
    }

    /// The path or name it was loaded by.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The address of a symbol, or `None` when this library and what it links have none of that name.
    pub fn symbol(&self, name: &CStr) -> Option<SymbolAddress> {
        // SAFETY: the symbol is only taken as an address here; the table macro gives it its type.
        let symbol = unsafe { self.handle.get::<*mut c_void>(name) }.ok()?;
        SymbolAddress::new(*symbol)
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.path)
    }
}

/// The loader's message: libloading's own text says only which call failed.
fn words(e: &libloading::Error) -> String {
    let source = std::error::Error::source(e);
    source.map_or_else(|| e.to_string(), |s| s.to_string())
}
