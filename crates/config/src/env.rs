//! The environment variables that a run reads, taken once at the top of the program and passed down.

use serde::Serialize;

use crate::violation::{Severity, Violation};

/// Ranks and threads as a launcher states them (torchrun's names).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// `WORLD_SIZE`, 1 when absent.
    pub world_size: usize,
    /// `RANK`, 0 when absent.
    pub rank: usize,
    /// `LOCAL_RANK`, 0 when absent.
    pub local_rank: usize,
    /// `MASTER_ADDR`.
    pub master_addr: Option<String>,
    /// `MASTER_PORT`.
    pub master_port: Option<u16>,
    /// `OMP_NUM_THREADS`: threads of the CPU device.
    pub omp_num_threads: Option<usize>,
}

impl Default for Environment {
    /// One rank.
    fn default() -> Environment {
        Environment {
            world_size: 1,
            rank: 0,
            local_rank: 0,
            master_addr: None,
            master_port: None,
            omp_num_threads: None,
        }
    }
}

impl Environment {
    /// Reads the variables through `get` (in a program: `|name| std::env::var(name).ok()`); also returns what is wrong.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> (Environment, Vec<Violation>) {
        let mut faults = Vec::new();
        let mut number = |name: &str, least: u64, most: u64| -> Option<u64> {
            let text = get(name).filter(|t| !t.trim().is_empty())?;
            match text.trim().parse::<u64>() {
                Ok(n) if (least..=most).contains(&n) => Some(n),
                _ => {
                    let what =
                        format!("environment variable {name}='{text}' is not a whole number from {least} to {most}");
                    faults.push(Violation::new(Severity::Invalid, &[name], what));
                    None
                }
            }
        };
        const MOST_RANKS: u64 = 1 << 24;
        let world_size = number("WORLD_SIZE", 1, MOST_RANKS).unwrap_or(1) as usize;
        let rank = number("RANK", 0, MOST_RANKS).unwrap_or(0) as usize;
        let environment = Environment {
            world_size,
            rank,
            local_rank: number("LOCAL_RANK", 0, MOST_RANKS).unwrap_or(0) as usize,
            master_port: number("MASTER_PORT", 0, u16::MAX.into()).map(|p| p as u16),
            omp_num_threads: number("OMP_NUM_THREADS", 1, 1 << 16).map(|n| n as usize),
            master_addr: get("MASTER_ADDR").filter(|a| !a.is_empty()),
        };
        if rank >= world_size {
            let what = format!("RANK={rank} is not below WORLD_SIZE={world_size}");
            faults.push(Violation::new(Severity::Invalid, &["RANK", "WORLD_SIZE"], what));
        }
        (environment, faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_torchruns_names_and_reports_nonsense() {
        let vars = [("WORLD_SIZE", "8"), ("RANK", "3"), ("MASTER_PORT", "29500"), ("OMP_NUM_THREADS", "0")];
        let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let (env, faults) = Environment::from_vars(get);
        assert_eq!((env.world_size, env.rank, env.master_port, env.omp_num_threads), (8, 3, Some(29500), None));
        assert!(faults.len() == 1 && faults[0].what.contains("OMP_NUM_THREADS='0'"));
        let (env, faults) = Environment::from_vars(|n| (n == "RANK").then(|| "2".to_string()));
        assert_eq!((env.world_size, faults.len()), (1, 1));
    }
}
