//! Releases of CANN and chips that the mock plays.
//!
//! What releases have is from the headers of a toolkit 8.1.RC1, the vendor's reference pages of 8.0 to 9.1, and what
//! torch-npu looks up at run time. A library cannot hide its functions by itself: a test that installs a release hides
//! them in a copy ([`hide`]).

/// A release of CANN.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// What it calls itself.
    pub version: &'static str,
    /// Functions of the mock that it has not.
    pub absent: &'static [&'static str],
    /// Files in its lib64.
    pub libraries: &'static [&'static str],
}

const WHOLE: &[&str] = &["libascendcl.so", "libnnopbase.so", "libopapi.so", "libhccl.so"];
/// Since 8.5 the runtime, operators and communicators are packages of their own.
const SPLIT: &[&str] = &[
    "libascendcl.so",
    "libacl_rt.so",
    "libnnopbase.so",
    "libopapi_math.so",
    "libopapi_nn.so",
    "libopapi_transformer.so",
    "libhccl.so",
    "libhcomm.so",
];

/// The releases, oldest first.
pub const RELEASES: [Release; 5] = [
    Release { version: "8.0.0", absent: &["aclrtLaunchHostFunc", "aclsysGetVersionStr"], libraries: WHOLE },
    Release { version: "8.1.RC1", absent: &["aclrtLaunchHostFunc", "aclsysGetVersionStr"], libraries: WHOLE },
    Release { version: "8.3.RC2", absent: &["aclsysGetVersionStr"], libraries: WHOLE },
    Release { version: "8.5.0", absent: &[], libraries: SPLIT },
    Release { version: "9.1.0", absent: &["aclsysGetCANNVersion"], libraries: SPLIT },
];

/// A chip.
#[derive(Clone, Copy, Debug)]
pub struct Chip {
    /// As `aclrtGetSocName` gives it.
    pub name: &'static str,
    /// Has bf16.
    pub bf16: bool,
}

/// The chips that we mean to run on (910B: A2; 910_93: the dies of a 910C, A3), and one that has no bf16.
pub const CHIPS: [Chip; 7] = [
    Chip { name: "Ascend910B1", bf16: true },
    Chip { name: "Ascend910B2", bf16: true },
    Chip { name: "Ascend910B3", bf16: true },
    Chip { name: "Ascend910B4", bf16: true },
    Chip { name: "Ascend910_9391", bf16: true },
    Chip { name: "Ascend910_9392", bf16: true },
    Chip { name: "Ascend910PremiumA", bf16: false },
];

/// Renames functions in a library's string tables, so that nobody finds them: the hash table still leads to the place,
/// and the name there is another. Gives how many names were found.
pub fn hide(library: &mut [u8], names: &[&str]) -> usize {
    let mut found = 0;
    for name in names {
        let wanted: Vec<u8> = [&[0], name.as_bytes(), &[0]].concat();
        let mut from = 0;
        let mut here = false;
        while let Some(at) = library[from..].windows(wanted.len()).position(|w| w == wanted) {
            library[from + at + 1] = b'_';
            from += at + wanted.len() - 1;
            here = true;
        }
        found += usize::from(here);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hidden_and_their_neighbours_are_not() {
        let mut table = b"\0aclInit\0aclInitialise\0aclInit\0end\0".to_vec();
        assert_eq!(hide(&mut table, &["aclInit", "nobody"]), 1);
        assert_eq!(table, b"\0_clInit\0aclInitialise\0_clInit\0end\0");
    }
}
