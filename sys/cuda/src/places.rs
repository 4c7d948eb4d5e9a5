//! Where CUDA's libraries are.

use std::ffi::OsString;
use std::path::PathBuf;

use ferrotron_dynlib::{Place, Search};

/// Folders where installers put CUDA's libraries when nobody says otherwise.
const USUAL: [&str; 3] = ["/usr/local/cuda/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64"];

/// Where to look. A value, not the process's variables, so that tests and reports can have their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// CUDA_HOME.
    pub home: Option<PathBuf>,
    /// CUDA_PATH, likewise.
    pub path: Option<PathBuf>,
    /// Look in the usual folders too, and ask the system's loader.
    pub system: bool,
}

impl Environment {
    /// From variables that `get` reads; the system's places too.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Environment {
        let path = |name: &str| get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Environment { home: path("CUDA_HOME"), path: path("CUDA_PATH"), system: true }
    }

    /// An installation in one folder, and nothing else.
    pub fn only(home: impl Into<PathBuf>) -> Environment {
        Environment { home: Some(home.into()), ..Environment::default() }
    }

    /// Folders, in order.
    pub fn places(&self) -> Vec<Place> {
        let named = [("CUDA_HOME/lib64", &self.home), ("CUDA_PATH/lib64", &self.path)];
        let folder = |(why, root): (&str, &Option<PathBuf>)| Some(Place::folder(why, root.clone()?.join("lib64")));
        let mut places: Vec<Place> = named.into_iter().filter_map(folder).collect();
        if self.system {
            places.push(Place::system());
            places.extend(USUAL.iter().map(|f| Place::folder("usual place", f)));
        }
        places
    }

    /// A library of CUDA's by its names, the best first.
    pub fn search(&self, names: &[&str]) -> Search {
        Search::new(names.iter().copied()).places(self.places())
    }

    /// The driver. A toolkit's `stubs/libcuda.so` is none: only the name with a version is the driver's own.
    pub fn driver(&self) -> Search {
        self.search(&["libcuda.so.1"])
    }

    /// Matrix products, the newest first.
    pub fn cublas_lt(&self) -> Search {
        self.search(&["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"])
    }

    /// The compiler at run time for a driver of this CUDA (12 of 12.4), the newest first. One of a later CUDA makes code that
    /// the driver cannot load.
    pub fn nvrtc(&self, cuda: i32) -> Search {
        let names: &[&str] = if cuda >= 13 {
            &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
        } else {
            &["libnvrtc.so.12", "libnvrtc.so"]
        };
        self.search(names)
    }

    /// Collectives. Runtime packages have the name with a version only.
    pub fn nccl(&self) -> Search {
        self.search(&["libnccl.so.2", "libnccl.so"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_home_path_loader_usual() {
        let e = Environment::from_variables(|name| (name != "CUDA_PATH").then(|| "/opt/cuda".into()));
        let driver = e.driver().candidates();
        assert_eq!(driver[0], "/opt/cuda/lib64/libcuda.so.1 (CUDA_HOME/lib64)");
        assert_eq!(driver[1], "libcuda.so.1 (the system's loader (LD_LIBRARY_PATH, ld.so.cache))");
        assert_eq!((driver.len(), e.cublas_lt().candidates().len(), e.nccl().candidates().len()), (5, 15, 10));
        assert_eq!((e.nvrtc(12).candidates().len(), e.nvrtc(13).candidates().len()), (10, 15));
        assert_eq!(Environment::only("/x").nccl().candidates().len(), 2);
    }
}
