//! Shared libraries at run time: ordered search, typed tables of required and optional symbols, version gates.
//!
//! Nothing here panics: a machine without the vendor's software gets one error that lists every place searched and
//! every symbol that is missing, one a line.

mod header;
mod library;
mod search;
mod table;
mod version;

pub use header::HeaderCheck;
pub use library::{Library, SymbolAddress};
pub use search::{NotFound, Place, Search, Tried};
pub use table::{MissingSymbols, Symbols};
pub use version::{Gate, Version, VersionError};

#[doc(hidden)]
pub use std::sync::Arc as __Arc;
