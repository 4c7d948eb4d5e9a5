//! Typed tables of functions.

use std::ffi::CStr;
use std::sync::Arc;

use crate::{Library, SymbolAddress};

/// Required symbols that no library has: one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{table}: {} of its symbols missing{}", .names.len(), lines(.names, .searched))]
pub struct MissingSymbols {
    /// The table.
    pub table: &'static str,
    /// The missing symbols.
    pub names: Vec<&'static str>,
    /// The libraries searched for each, in order.
    pub searched: Vec<String>,
}

fn lines(names: &[&str], searched: &[String]) -> String {
    names.iter().map(|n| format!("\n  no {n} in {}", searched.join(", "))).collect()
}

/// Libraries searched in order for symbols: the first that has one gives it.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    libraries: Vec<Arc<Library>>,
    missing: Vec<&'static str>,
}

impl Symbols {
    /// Searches these, in order.
    pub fn of(libraries: &[Arc<Library>]) -> Symbols {
        Symbols { libraries: libraries.to_vec(), missing: Vec::new() }
    }

    /// The address of an optional symbol.
    pub fn find(&self, name: &CStr) -> Option<SymbolAddress> {
        self.libraries.iter().find_map(|l| l.symbol(name))
    }

    /// The address of a required symbol; when missing, `name` goes on the list that [`Symbols::finish`] reports.
    pub fn require(&mut self, name: &'static CStr) -> Option<SymbolAddress> {
        let found = self.find(name);
        if found.is_none() {
            self.missing.push(name.to_str().unwrap_or("a symbol whose name is not UTF-8"));
        }
        found
    }

    /// The error, if a required symbol was missing.
    pub fn finish(&self, table: &'static str) -> MissingSymbols {
        let searched = self.libraries.iter().map(|l| l.path().to_string()).collect();
        MissingSymbols { table, names: self.missing.clone(), searched }
    }
}

/// Declares a struct of C functions found at run time. Required ones are plain function pointers: loading fails, with
/// all that are missing, when there is one less. Optional ones are `Option`s.
///
/// ```
/// use std::ffi::c_double;
/// ferrotron_dynlib::table! {
///     /// Some of libm.
///     pub struct Maths {
///         required {
///             /// Cosine.
///             fn cos(x: c_double) -> c_double;
///         }
///         optional {
///             /// No libm has this.
///             fn cosine_of_tomorrow(x: c_double) -> c_double;
///         }
///     }
/// }
/// let libm = ferrotron_dynlib::Search::new(["libm.so.6"]).places([ferrotron_dynlib::Place::system()]).open()?;
/// let maths = Maths::load(&[libm.into()])?;
/// assert_eq!(unsafe { (maths.cos)(0.0) }, 1.0);
/// assert!(maths.cosine_of_tomorrow.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! table {
    (
        $(#[$doc:meta])*
        $vis:vis struct $table:ident {
            required { $($(#[$rdoc:meta])* fn $rname:ident($($rarg:ident: $rty:ty),* $(,)?) $(-> $rret:ty)?;)* }
            optional { $($(#[$odoc:meta])* fn $oname:ident($($oarg:ident: $oty:ty),* $(,)?) $(-> $oret:ty)?;)* }
        }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        $vis struct $table {
            $($(#[$rdoc])* pub $rname: unsafe extern "C" fn($($rarg: $rty),*) $(-> $rret)?,)*
            $($(#[$odoc])* pub $oname: Option<unsafe extern "C" fn($($oarg: $oty),*) $(-> $oret)?>,)*
            /// The libraries that the functions are of.
            pub libraries: Vec<$crate::__Arc<$crate::Library>>,
        }

        #[allow(non_snake_case, clippy::macro_metavars_in_unsafe)]
        impl $table {
            /// Names of the required functions.
            pub const REQUIRED: &'static [&'static str] = &[$(stringify!($rname)),*];
            /// Names of the optional functions.
            pub const OPTIONAL: &'static [&'static str] = &[$(stringify!($oname)),*];

            /// Every function with the bytes of each argument and of its result: for checks against headers.
            pub const SIGNATURES: &'static [(&'static str, &'static [usize], usize)] = &[
                $((stringify!($rname), &[$(size_of::<$rty>()),*], 0 $(+ size_of::<$rret>())?),)*
                $((stringify!($oname), &[$(size_of::<$oty>()),*], 0 $(+ size_of::<$oret>())?),)*
            ];

            /// Finds every function in the first of the libraries that has it.
            pub fn load(
                libraries: &[$crate::__Arc<$crate::Library>],
            ) -> Result<$table, $crate::MissingSymbols> {
                #[allow(unused_mut)]
                let mut symbols = $crate::Symbols::of(libraries);
                $(let $rname = symbols.require($crate::c_name!($rname));)*
                let ($(Some($rname),)*) = ($($rname,)*) else { return Err(symbols.finish(stringify!($table))) };
                Ok($table {
                    // SAFETY: the address is that of the C function of this name, whose signature is stated here; a
                    // function pointer and a data pointer are of one size on every platform with dlsym.
                    $($rname: unsafe { std::mem::transmute::<
                        $crate::SymbolAddress, unsafe extern "C" fn($($rty),*) $(-> $rret)?>($rname) },)*
                    // SAFETY: as above.
                    $($oname: symbols.find($crate::c_name!($oname)).map(|address| unsafe { std::mem::transmute::<
                        $crate::SymbolAddress, unsafe extern "C" fn($($oty),*) $(-> $oret)?>(address) }),)*
                    libraries: libraries.to_vec(),
                })
            }

            /// Names of the optional functions that these libraries lack.
            pub fn lacking(&self) -> Vec<&'static str> {
                let all: &[(&'static str, bool)] = &[$((stringify!($oname), self.$oname.is_some())),*];
                all.iter().filter(|(_, found)| !found).map(|(name, _)| *name).collect()
            }
        }
    };
}

/// The name of an identifier as a C string, with a suffix if one is given.
#[macro_export]
macro_rules! c_name {
    ($name:ident $(, $suffix:literal)?) => {{
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
            concat!(stringify!($name), $($suffix,)? "\0").as_bytes(),
        ) {
            Ok(name) => name,
            Err(_) => panic!("an identifier has no NUL"),
        };
        NAME
    }};
}
