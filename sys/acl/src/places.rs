//! Where CANN's libraries are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ferrotron_dynlib::{Place, Search};

/// Folders where installers put CANN when nobody says otherwise.
const USUAL: [&str; 3] =
    ["/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/latest"];

/// Where to look for CANN. A value, not the process's variables, so that tests and reports can have their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// ASCEND_HOME_PATH, which set_env.sh sets.
    pub home: Option<PathBuf>,
    /// ASCEND_TOOLKIT_HOME, likewise.
    pub toolkit: Option<PathBuf>,
    /// ASCEND_OPP_PATH: operator packages.
    pub opp: Option<PathBuf>,
    /// ASCEND_CUSTOM_OPP_PATH: own operator packages, in order.
    pub custom_opp: Vec<PathBuf>,
    /// Look in the usual folders too, and ask the system's loader.
    pub system: bool,
}

impl Environment {
    /// From variables that `get` reads; the system's places too.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Environment {
        let path = |name: &str| get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let list = get("ASCEND_CUSTOM_OPP_PATH").unwrap_or_default();
        Environment {
            home: path("ASCEND_HOME_PATH"),
            toolkit: path("ASCEND_TOOLKIT_HOME"),
            opp: path("ASCEND_OPP_PATH"),
            custom_opp: std::env::split_paths(&list).filter(|p| !p.as_os_str().is_empty()).collect(),
            system: true,
        }
    }

    /// An installation in one folder, and nothing else.
    pub fn only(home: impl Into<PathBuf>) -> Environment {
        Environment { home: Some(home.into()), ..Environment::default() }
    }

    /// Roots of installations, with why, in order.
    fn roots(&self) -> Vec<(&'static str, PathBuf)> {
        let named = [("ASCEND_HOME_PATH", &self.home), ("ASCEND_TOOLKIT_HOME", &self.toolkit)];
        let mut roots: Vec<_> = named.into_iter().filter_map(|(why, p)| Some((why, p.clone()?))).collect();
        // operator packages lie in <root>/opp
        roots.extend(self.opp.as_deref().and_then(Path::parent).map(|p| ("ASCEND_OPP_PATH/..", p.to_path_buf())));
        roots
    }

    /// Folders of CANN's own libraries, in order.
    pub fn places(&self) -> Vec<Place> {
        let folder = |(why, root): &(&'static str, PathBuf)| Place::folder(format!("{why}/lib64"), root.join("lib64"));
        let mut places: Vec<Place> = self.roots().iter().map(folder).collect();
        if self.system {
            places.push(Place::system());
            places.extend(USUAL.iter().map(|root| Place::folder("usual place", Path::new(root).join("lib64"))));
        }
        places
    }

    /// Folders of own operators, in order: ASCEND_CUSTOM_OPP_PATH, then the vendors of ASCEND_OPP_PATH.
    pub fn custom_places(&self) -> Vec<Place> {
        let lib = |root: &Path| root.join("op_api").join("lib");
        let mut places: Vec<Place> =
            self.custom_opp.iter().map(|p| Place::folder("ASCEND_CUSTOM_OPP_PATH", lib(p))).collect();
        if let Some(vendors) = self.opp.as_ref().map(|p| p.join("vendors")) {
            // config.ini: load_priority=first,second
            let text = std::fs::read_to_string(vendors.join("config.ini")).unwrap_or_default();
            let names = text.lines().find_map(|l| l.trim().strip_prefix("load_priority")?.trim().strip_prefix('='));
            for name in names.unwrap_or("").split(',').map(str::trim).filter(|n| !n.is_empty()) {
                places.push(Place::folder(format!("ASCEND_OPP_PATH/vendors/{name}"), lib(&vendors.join(name))));
            }
        }
        places
    }

    /// The runtime.
    pub fn runtime(&self) -> Search {
        Search::new(["libascendcl.so", "libacl_rt.so"]).places(self.places())
    }

    /// Objects of operators.
    pub fn nnopbase(&self) -> Search {
        Search::new(["libnnopbase.so"]).places(self.places())
    }

    /// Libraries of operators in the order in which an operator is looked for: own ones (which override), libopapi,
    /// and what it was split into in 8.5. Each that is there is loaded.
    pub fn operators(&self) -> Vec<Search> {
        let mut names = vec!["libopapi.so".to_string()];
        let mut split: Vec<String> =
            self.places().iter().filter_map(|p| p.folder.as_deref()).flat_map(split_in).collect();
        split.sort();
        split.dedup();
        names.extend(split);
        names.extend(SPLIT.iter().map(|s| s.to_string()));
        let own = Search::new(["libcust_opapi.so"]);
        let own = self.custom_places().into_iter().map(move |p| own.clone().places([p]));
        own.chain(names.into_iter().map(|n| Search::new([n]).places(self.places()))).collect()
    }
}

/// Operator libraries of later releases.
const SPLIT: [&str; 3] = ["libaclnn_ops_infer.so", "libaclnn_ops_train.so", "libaclnn_math.so"];

/// Names of `libopapi_*.so` in a folder.
fn split_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    names.filter(|n| n.starts_with("libopapi_") && n.ends_with(".so")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        Environment::from_variables(|name| {
            Some(match name {
                "ASCEND_HOME_PATH" => "/opt/home".into(),
                "ASCEND_TOOLKIT_HOME" => "/opt/toolkit".into(),
                "ASCEND_OPP_PATH" => "/opt/cann/opp".into(),
                "ASCEND_CUSTOM_OPP_PATH" => "/own/a:/own/b".into(),
                _ => return None,
            })
        })
    }

    #[test]
    fn the_order_is_home_toolkit_opp_loader_usual() {
        let runtime = environment().runtime().candidates();
        let want = [
            "/opt/home/lib64/libascendcl.so (ASCEND_HOME_PATH/lib64)",
            "/opt/toolkit/lib64/libascendcl.so (ASCEND_TOOLKIT_HOME/lib64)",
            "/opt/cann/lib64/libascendcl.so (ASCEND_OPP_PATH/../lib64)",
            "libascendcl.so (the system's loader (LD_LIBRARY_PATH, ld.so.cache))",
            "/usr/local/Ascend/cann/lib64/libascendcl.so (usual place)",
        ];
        assert_eq!(runtime[..5], want);
        assert_eq!(runtime[7], "/opt/home/lib64/libacl_rt.so (ASCEND_HOME_PATH/lib64)");
        assert_eq!(runtime.len(), 14);
    }

    #[test]
    fn own_operators_come_first() {
        let all: Vec<String> = environment().operators().iter().flat_map(Search::candidates).collect();
        assert_eq!(all[0], "/own/a/op_api/lib/libcust_opapi.so (ASCEND_CUSTOM_OPP_PATH)");
        assert_eq!(all[1], "/own/b/op_api/lib/libcust_opapi.so (ASCEND_CUSTOM_OPP_PATH)");
        assert_eq!(all[2], "/opt/home/lib64/libopapi.so (ASCEND_HOME_PATH/lib64)");
        assert!(all.iter().any(|c| c.starts_with("/opt/home/lib64/libaclnn_math.so")));
    }

    #[test]
    fn split_libraries_and_vendors_are_found_in_their_folders() {
        let root = std::env::temp_dir().join(format!("ferrotron-places-{}", std::process::id()));
        let lib = root.join("lib64");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(root.join("opp/vendors")).unwrap();
        for name in ["libopapi_nn.so", "libopapi_math.so", "libopapi.txt"] {
            std::fs::write(lib.join(name), "").unwrap();
        }
        std::fs::write(root.join("opp/vendors/config.ini"), "load_priority=ours, theirs\n").unwrap();
        let e = Environment { opp: Some(root.join("opp")), ..Environment::only(&root) };
        let files: Vec<String> = e.operators().iter().map(|s| s.candidates()[0].clone()).collect();
        std::fs::remove_dir_all(&root).unwrap();
        let names: Vec<&str> =
            files.iter().map(|f| f.split(" (").next().unwrap().rsplit('/').next().unwrap()).collect();
        assert_eq!(
            names[..5],
            ["libcust_opapi.so", "libcust_opapi.so", "libopapi.so", "libopapi_math.so", "libopapi_nn.so"]
        );
        assert!(files[0].contains("vendors/ours/op_api/lib/"), "{}", files[0]);
    }
}
