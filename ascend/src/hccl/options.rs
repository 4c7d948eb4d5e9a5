//! What the environment says about HCCL, as far as this program acts on it. The library reads the other variables itself.

use std::path::PathBuf;
use std::time::Duration;

/// MiB of a communicator's buffer when nobody says otherwise.
const DEFAULT_BUFFER_MIB: u32 = 200;
/// The largest buffer that is taken for one: a TiB.
const MOST_MIB: u32 = 1 << 20;

/// Seconds: HCCL's default for connecting, and its limit.
const CONNECT_TIMEOUT: (u64, u64) = (120, 7200);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcclOptions {
    /// `HCCL_BUFFSIZE`: MiB of each of a communicator's two buffers; the library's default when absent.
    pub buffer_mib: Option<u32>,
    /// `HCCL_DETERMINISTIC`: 0 off, 1 on, 2 in the order of ranks (`strict`).
    pub deterministic: Option<u32>,
    /// `RANK_TABLE_FILE`, or `RANK_TABLE`: where all ranks are, in place of a negotiation.
    pub rank_table: Option<PathBuf>,
    /// `HCCL_CONNECT_TIMEOUT`: how long a rank table that is being written is waited for.
    pub connect_timeout: Duration,
    /// `ASCEND_RT_VISIBLE_DEVICES`: the physical device of each visible one; all when absent.
    pub visible: Option<Vec<u32>>,
}

impl Default for HcclOptions {
    /// As with no variable set.
    fn default() -> HcclOptions {
        let connect_timeout = Duration::from_secs(CONNECT_TIMEOUT.0);
        HcclOptions { buffer_mib: None, deterministic: None, rank_table: None, connect_timeout, visible: None }
    }
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
        let (least, most) = (CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1);
        let seconds = match set("HCCL_CONNECT_TIMEOUT") {
            Some(v) => match v.parse::<u64>() {
                Ok(s) if (least..=most).contains(&s) => s,
                _ => return Err(wrong("HCCL_CONNECT_TIMEOUT", v, "a whole number of seconds from 120 to 7200")),
            },
            None => least,
        };
        let visible = match set("ASCEND_RT_VISIBLE_DEVICES") {
            Some(v) => match v.split(',').map(|d| d.trim().parse()).collect::<Result<Vec<u32>, _>>() {
                Ok(list) => Some(list),
                Err(_) => return Err(wrong("ASCEND_RT_VISIBLE_DEVICES", v, "numbers of devices joined by commas")),
            },
            None => None,
        };
        let rank_table = set("RANK_TABLE_FILE").or_else(|| set("RANK_TABLE")).map(PathBuf::from);
        let connect_timeout = Duration::from_secs(seconds);
        Ok(HcclOptions { buffer_mib, deterministic, rank_table, connect_timeout, visible })
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
        assert!(read(&[("HCCL_CONNECT_TIMEOUT", "60")]).unwrap_err().to_string().contains("from 120 to 7200"));
        let o = read(&[("ASCEND_RT_VISIBLE_DEVICES", "4, 5"), ("RANK_TABLE", "t")]).unwrap();
        assert_eq!((o.visible, o.rank_table), (Some(vec![4, 5]), Some("t".into())));
    }
}
