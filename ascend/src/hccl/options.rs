//! What the environment says about HCCL, as far as this program acts on it. The library reads the other variables itself.

use std::path::PathBuf;

/// MiB of a communicator's buffer when nobody says otherwise.
const DEFAULT_BUFFER_MIB: u32 = 200;
/// The largest buffer that is taken for one: a TiB.
const MOST_MIB: u32 = 1 << 20;

/// Why HCCL cannot be set up as the environment asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HcclError {
    /// A variable has a value that it cannot have.
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is legal.
        legal: &'static str,
    },
}

impl std::fmt::Display for HcclError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HcclError::Variable { name, value, legal } => {
                write!(f, "environment variable {name}='{value}' is not {legal}")
            }
        }
    }
}

impl std::error::Error for HcclError {}

/// How communicators are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcclOptions {
    /// `HCCL_BUFFSIZE`: MiB of each of a communicator's two buffers; the library's default when absent.
    pub buffer_mib: Option<u32>,
    /// `HCCL_DETERMINISTIC`: 0 off, 1 on, 2 in the order of ranks (`strict`).
    pub deterministic: Option<u32>,
    /// `RANK_TABLE_FILE`: where all ranks are, in place of a negotiation.
    pub rank_table: Option<PathBuf>,
}

impl HcclOptions {
    /// From variables that `get` reads.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<HcclOptions, HcclError> {
        let set = |name: &str| get(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let wrong = |name, value: String, legal| HcclError::Variable { name, value, legal };
        let buffer_mib = match set("HCCL_BUFFSIZE") {
            Some(v) => match v.parse::<u32>() {
                Ok(mib) if (1..=MOST_MIB).contains(&mib) => Some(mib),
                _ => return Err(wrong("HCCL_BUFFSIZE", v, "a whole number of MiB from 1 to 1048576")),
            },
            None => None,
        };
        let deterministic = match set("HCCL_DETERMINISTIC").map(|v| (v.to_ascii_lowercase(), v)) {
            None => None,
            Some((word, v)) => match word.as_str() {
                "false" => Some(0),
                "true" => Some(1),
                "strict" => Some(2),
                _ => return Err(wrong("HCCL_DETERMINISTIC", v, "true, false or strict")),
            },
        };
        Ok(HcclOptions { buffer_mib, deterministic, rank_table: set("RANK_TABLE_FILE").map(PathBuf::from) })
    }

    /// MiB of each of a communicator's two buffers.
    pub fn buffer(&self) -> u32 {
        self.buffer_mib.unwrap_or(DEFAULT_BUFFER_MIB)
    }

    /// Device memory that a communicator takes, in bytes: a buffer to send and one to receive.
    pub fn memory(&self) -> usize {
        2 * ((self.buffer() as usize) << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<HcclOptions, HcclError> {
        HcclOptions::from_variables(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn variables_are_read_and_nonsense_is_refused() {
        let o = read(&[("HCCL_BUFFSIZE", "512"), ("HCCL_DETERMINISTIC", "Strict"), ("RANK_TABLE_FILE", "/a.json")]);
        let o = o.unwrap();
        assert_eq!((o.buffer_mib, o.deterministic, o.memory()), (Some(512), Some(2), 1 << 30));
        assert_eq!(o.rank_table, Some("/a.json".into()));
        let o = read(&[("HCCL_BUFFSIZE", " ")]).unwrap();
        assert_eq!((o.clone(), o.memory()), (HcclOptions::default(), 400 << 20));
        for bad in ["0", "-1", "2 MB", "1048577"] {
            let e = read(&[("HCCL_BUFFSIZE", bad)]).unwrap_err().to_string();
            assert!(e.contains("HCCL_BUFFSIZE='") && e.contains("from 1 to 1048576"), "{e}");
        }
        assert!(read(&[("HCCL_DETERMINISTIC", "1")]).is_err());
    }
}
