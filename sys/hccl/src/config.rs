//! The configuration of a communicator, which grows with every release.
//!
//! `HcclCommConfig` begins with its size, a magic number and a version; what a library does not know it must not be
//! given. (The headers' `HcclCommConfigInit` is an inline function: who loads the library writes the bytes himself.)
//! Offsets up to the service level are the same in every version seen: 8 (CANN 8.5), 10 (torch-npu 2.14), 11 (9.x).

use std::ffi::c_void;

/// Magic number of the header.
const MAGIC: u32 = 0xf0f0_f0f0;
/// "Not set" of u32 fields.
const UNSET: u32 = u32::MAX;

const BUFFER_SIZE: usize = 24;
const DETERMINISTIC: usize = 28;
const NAME: usize = 32;
const NAME_BYTES: usize = 128;
const EXPANSION: usize = 288;
const TRAFFIC_CLASS: usize = 292;
const SERVICE_LEVEL: usize = 296;
const WORLD_RANK: usize = 300;
const JOB: usize = 304;
const EXEC_TIMEOUT: usize = 316;

/// Version, bytes, and how many capabilities a library reports that knows the version's fields.
const VERSIONS: [(u32, usize); 3] = [(8, 2104), (10, 2240), (11, 2248)];

/// What cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The name is too long or has a NUL.
    Name(String),
    /// No layout of this version is known.
    Version(u32),
    /// The library does not take this field.
    Capability {
        /// The field.
        field: &'static str,
        /// Number of fields the library takes.
        library: u32,
    },
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigError::Name(n) => write!(f, "communicator name {n:?}: at most 127 bytes without NUL"),
            ConfigError::Version(v) => write!(f, "HcclCommConfig version {v}: versions 8, 10 and 11 are known"),
            ConfigError::Capability { field, library } => {
                write!(f, "this HCCL takes {library} fields of HcclCommConfig, {field} is not among them")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// The fields that we set, to be laid out for a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommConfig {
    /// MiB of each of two buffers, in place of HCCL_BUFFSIZE.
    pub buffer_mib: Option<u32>,
    /// 0 off, 1 deterministic, 2 order-preserving.
    pub deterministic: Option<u32>,
    /// Name, for logs and errors.
    pub name: String,
}

impl CommConfig {
    /// The struct for version 8, 10 or 11. `capability` is what `HcclGetCommConfigCapability` gave: fields beyond it
    /// are refused when set (buffer size is capability 0, determinism 1, the name 2).
    pub fn layout(&self, version: u32, capability: u32) -> Result<Layout, ConfigError> {
        let known = VERSIONS.iter().find(|(v, _)| *v == version);
        let bytes = known.ok_or(ConfigError::Version(version))?.1;
        let set = [
            ("bufferSize", self.buffer_mib.is_some()),
            ("deterministic", self.deterministic.is_some()),
            ("commName", !self.name.is_empty()),
        ];
        for (i, (field, is_set)) in set.into_iter().enumerate() {
            if is_set && i as u32 >= capability {
                return Err(ConfigError::Capability { field, library: capability });
            }
        }
        if self.name.len() >= NAME_BYTES || self.name.contains('\0') {
            return Err(ConfigError::Name(self.name.clone()));
        }
        let mut layout = Layout { words: vec![0; bytes.div_ceil(8)], bytes };
        layout.put(0, &bytes.to_ne_bytes());
        layout.put(8, &MAGIC.to_ne_bytes());
        layout.put(12, &version.to_ne_bytes());
        layout.put(BUFFER_SIZE, &self.buffer_mib.unwrap_or(UNSET).to_ne_bytes());
        layout.put(DETERMINISTIC, &self.deterministic.unwrap_or(UNSET).to_ne_bytes());
        layout.put(NAME, self.name.as_bytes());
        layout.put(EXPANSION, &0u32.to_ne_bytes());
        for at in [TRAFFIC_CLASS, SERVICE_LEVEL, WORLD_RANK] {
            layout.put(at, &UNSET.to_ne_bytes());
        }
        layout.put(JOB, &0u64.to_ne_bytes());
        layout.put(EXEC_TIMEOUT, &(-1i32).to_ne_bytes());
        Ok(layout)
    }
}

/// A `HcclCommConfig` in memory, aligned to 8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    words: Vec<u64>,
    bytes: usize,
}

impl Layout {
    fn put(&mut self, at: usize, value: &[u8]) {
        for (i, byte) in value.iter().enumerate() {
            let (word, shift) = ((at + i) / 8, (at + i) % 8);
            let mut bytes = self.words[word].to_ne_bytes();
            bytes[shift] = *byte;
            self.words[word] = u64::from_ne_bytes(bytes);
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_ne_bytes()).take(self.bytes).collect()
    }

    /// Its address, for as long as it lives.
    pub fn as_ptr(&self) -> *const c_void {
        self.words.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    #[test]
    fn every_version_says_its_size_and_keeps_its_offsets() {
        let c = CommConfig { buffer_mib: Some(512), deterministic: None, name: "tp 0".into() };
        for (version, size) in VERSIONS {
            let bytes = c.layout(version, 11).unwrap().bytes();
            assert_eq!(bytes.len(), size);
            assert_eq!(u32_at(&bytes, 0) as usize, size);
            assert_eq!((u32_at(&bytes, 8), u32_at(&bytes, 12)), (0xf0f0_f0f0, version));
            assert_eq!((u32_at(&bytes, 24), u32_at(&bytes, 28), u32_at(&bytes, 316)), (512, UNSET, UNSET));
            assert_eq!(&bytes[32..37], b"tp 0\0");
        }
    }

    #[test]
    fn what_the_library_does_not_know_is_refused() {
        let c = CommConfig { deterministic: Some(1), ..CommConfig::default() };
        assert!(c.layout(8, 2).is_ok());
        assert_eq!(c.layout(8, 1), Err(ConfigError::Capability { field: "deterministic", library: 1 }));
        assert_eq!(c.layout(9, 11), Err(ConfigError::Version(9)));
        let long = CommConfig { name: "n".repeat(128), ..CommConfig::default() };
        assert!(matches!(long.layout(8, 11), Err(ConfigError::Name(_))));
    }
}
