//! The kernels, loaded into a device's context. They ship in two forms, and can be compiled where a device is; a form that
//! the driver refuses is followed by the next:
//!
//! 1. the fatbin: machine code for the chips that it has, the PTX for others;
//! 2. the PTX alone, which the driver compiles for its chip and keeps (`~/.nv/ComputeCache`);
//! 3. the sources, which NVRTC compiles where its library is present; the code is kept in the user's cache folder.
//!
//! `FERROTRON_CUDA_KERNELS` names one form, and then no other is tried.

mod cache;
mod compiler;
mod module;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ferrotron_cuda_kernels::{FATBIN, PTX};
use ferrotron_cuda_sys as sys;
use ferrotron_device::{Error, Result};

pub use compiler::{Compiled, Compiler, Target};

use crate::shared::Shared;
use cache::Cache;
use module::{Attempt, Module};

/// Names the only form that may be loaded.
const VARIABLE: &str = "FERROTRON_CUDA_KERNELS";

/// How kernels reach the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelForm {
    /// Machine code that ships.
    Fatbin,
    /// Text that ships and the driver compiles.
    Ptx,
    /// Sources that ship and NVRTC compiles.
    Nvrtc,
}

impl KernelForm {
    /// All, in the order in which they are tried.
    pub const ALL: [KernelForm; 3] = [KernelForm::Fatbin, KernelForm::Ptx, KernelForm::Nvrtc];

    fn name(self) -> &'static str {
        match self {
            KernelForm::Fatbin => "fatbin",
            KernelForm::Ptx => "ptx",
            KernelForm::Nvrtc => "nvrtc",
        }
    }
}

impl fmt::Display for KernelForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelForm::Fatbin => "the embedded fatbin",
            KernelForm::Ptx => "the embedded PTX",
            KernelForm::Nvrtc => "NVRTC",
        })
    }
}

/// How a device gets its kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelOptions {
    /// The only form that may be loaded; `None` tries all.
    pub form: Option<KernelForm>,
    /// Where code that NVRTC made is kept; `None` keeps none.
    pub cache: Option<PathBuf>,
}

impl KernelOptions {
    /// From variables that `get` reads: `FERROTRON_CUDA_KERNELS`, and the user's cache folder by `XDG_CACHE_HOME` or `HOME`.
    /// `Err` says which words there are.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> std::result::Result<KernelOptions, String> {
        let form = match get(VARIABLE).filter(|v| !v.is_empty()) {
            None => None,
            Some(text) => {
                let word = text.to_string_lossy().to_ascii_lowercase();
                let found = KernelForm::ALL.into_iter().find(|f| f.name() == word);
                let names = KernelForm::ALL.map(KernelForm::name).join(", ");
                Some(found.ok_or_else(|| format!("{VARIABLE}={} is none of {names}", text.to_string_lossy()))?)
            }
        };
        // a relative path is to be ignored: XDG Base Directory Specification
        let folder = |name: &str| get(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        Ok(KernelOptions { form, cache: cache.map(|c| c.join("ferrotron")) })
    }
}

/// Functions by name.
pub struct Kernels {
    shared: Arc<Shared>,
    module: Module,
    origin: String,
    notes: Vec<String>,
}

impl Kernels {
    /// Loads all of them in the first form that the driver takes.
    pub fn load(shared: Arc<Shared>, options: &KernelOptions) -> Result<Kernels> {
        shared.enter()?;
        let (mut refused, mut notes) = (Vec::new(), Vec::new());
        for form in KernelForm::ALL.into_iter().filter(|f| options.form.is_none_or(|only| only == *f)) {
            let attempt = match form {
                KernelForm::Fatbin => Module::load(&shared, FATBIN).map(|m| (m, form.to_string())),
                KernelForm::Ptx => Module::load(&shared, PTX.as_bytes()).map(|m| (m, form.to_string())),
                KernelForm::Nvrtc => compiled(&shared, options, &mut notes)
                    .map_err(Attempt::Refused)
                    .and_then(|(code, origin)| Ok((Module::load(&shared, &code)?, origin))),
            };
            match attempt {
                Ok((module, origin)) => {
                    let chip = format!("code for compute capability {}.{}", module.chip / 10, module.chip % 10);
                    let first = |why: &String| why.lines().next().unwrap_or_default().to_string();
                    notes.extend(refused.iter().map(|(form, why)| format!("{form} does not serve: {}", first(why))));
                    return Ok(Kernels { shared, module, origin: format!("{origin} ({chip})"), notes });
                }
                Err(Attempt::Refused(why)) => refused.push((form, why)),
                Err(Attempt::Failed(e)) => return Err(e),
            }
        }
        let tries: String = refused.iter().map(|(form, why)| format!("\n{form}: {why}")).collect();
        let only =
            options.form.map_or(String::new(), |f| format!(" ({VARIABLE}={} lets no other form be tried)", f.name()));
        Err(Error::Device { device: shared.name.clone(), what: format!("the kernels cannot be loaded{only}{tries}") })
    }

    /// Where they are from, and for which chip the code is.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// What a user should know: forms that did not serve, code that cannot be kept. A line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A kernel.
    pub fn get(&self, name: &'static str) -> Result<sys::CUfunction> {
        let found = self.module.functions.get(name).map(|&f| f as sys::CUfunction);
        found.ok_or_else(|| self.shared.failed(format!("there is no kernel {name}")))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.shared.drain();
        let _ = self.shared.enter();
        // the streams have no kernel left, and the device that launches them is going
        self.module.unload(&self.shared);
    }
}

/// Machine code by NVRTC, from the cache where it is there, and where it is from.
fn compiled(
    shared: &Shared,
    options: &KernelOptions,
    notes: &mut Vec<String>,
) -> std::result::Result<(Vec<u8>, String), String> {
    let compiler = Compiler::load(&shared.cuda.environment, shared.cuda.version / 1000)?;
    let chip = compiler.chip_for(shared.cuda.capability(shared.device))?;
    let cache = options.cache.as_ref().map(|folder| Cache::new(folder, compiler.version(), chip));
    let name = compiler.name();
    if let Some(cache) = &cache
        && let Some(code) = cache.read()
    {
        return Ok((code, format!("{name}, kept in {}", cache.path().display())));
    }
    let code = compiler.compile(Target::Chip(chip))?.image;
    let kept = match &cache {
        None => Err("neither XDG_CACHE_HOME nor HOME is set".to_string()),
        Some(cache) => cache.write(&code).map_err(|e| format!("{}: {e}", cache.path().display())),
    };
    match (&cache, kept) {
        (Some(cache), Ok(())) => Ok((code, format!("{name}, now kept in {}", cache.path().display()))),
        (_, kept) => {
            let why = kept.err().unwrap_or_default();
            notes.push(format!("what NVRTC made cannot be kept, and is made again at the next start: {why}"));
            Ok((code, name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> std::result::Result<KernelOptions, String> {
        KernelOptions::from_variables(|name| Some(variables.iter().find(|(n, _)| *n == name)?.1.into()))
    }

    #[test]
    fn variables_name_a_form_and_the_cache() {
        let options = read(&[(VARIABLE, "PTX"), ("HOME", "/here"), ("XDG_CACHE_HOME", "/there")]).expect("a form");
        assert_eq!(options, KernelOptions { form: Some(KernelForm::Ptx), cache: Some("/there/ferrotron".into()) });
        let options = read(&[(VARIABLE, ""), ("HOME", "/here"), ("XDG_CACHE_HOME", "not/absolute")]).expect("none");
        assert_eq!(options, KernelOptions { form: None, cache: Some("/here/.cache/ferrotron".into()) });
        assert_eq!(read(&[]), Ok(KernelOptions::default()));
        let refused = read(&[(VARIABLE, "cubin")]).expect_err("no form");
        assert_eq!(refused, "FERROTRON_CUDA_KERNELS=cubin is none of fatbin, ptx, nvrtc");
    }
}
