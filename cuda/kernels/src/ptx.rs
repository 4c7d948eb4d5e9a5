//! PTX: text that a driver compiles.

/// What a PTX text says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// Version of the language: (8, 0).
    pub version: (u32, u32),
    /// The lowest compute capability, times ten.
    pub chip: u32,
    /// Names of the kernels.
    pub kernels: Vec<String>,
}

impl Ptx {
    /// Reads one; `None` when it has no version or no target.
    pub fn read(text: &str) -> Option<Ptx> {
        let after = |word: &str| text.lines().find_map(|l| Some(l.trim().strip_prefix(word)?.trim()));
        let (major, minor) = after(".version ")?.split_once('.')?;
        let chip = after(".target ")?.strip_prefix("sm_")?;
        let digits = chip.find(|c: char| !c.is_ascii_digit()).unwrap_or(chip.len());
        let entry = |l: &str| Some(l.split(".entry ").nth(1)?.split('(').next()?.trim().to_string());
        Some(Ptx {
            version: (major.parse().ok()?, minor.parse().ok()?),
            chip: chip[..digits].parse().ok()?,
            kernels: text.lines().filter_map(entry).collect(),
        })
    }

    /// A text without comments and white space, which tools change.
    pub fn bare(text: &str) -> String {
        let code = text.lines().map(|l| l.split("//").next().unwrap_or_default());
        code.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
    }

    /// The oldest CUDA whose drivers take this version of the language, as the driver tells it: 12000 is 12.0. The language
    /// has a version for each CUDA from 8.0 (12.0) on, but that 12.6 has 12.5's.
    pub fn oldest_cuda(&self) -> u32 {
        let (major, minor) = self.version;
        let behind = u32::from(major == 8 && minor > 5);
        (major + 4) * 1000 + (minor + behind) * 10
    }
}
