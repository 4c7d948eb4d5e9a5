//! How a communicator is made.

use ferrotron_base::fnv::{FNV, fnv};
use ferrotron_comm::Seat;
use ferrotron_device::{Error, Result};
use ferrotron_hccl_sys::{CommConfig, HCCL_ROOT_INFO_BYTES, HcclComm, HcclRootInfo};

use super::options::HcclOptions;
use super::{Loaded, check};
use crate::shared::Shared;

/// The oldest layout of the configuration; it has every field that is set here.
pub const CONFIG_VERSION: u32 = 8;

/// Joins the group, which its first rank's root info describes: all its ranks call this at once.
pub fn by_root_info(
    loaded: &Loaded,
    shared: &Shared,
    options: &HcclOptions,
    seat: &Seat,
    root: &[u8],
) -> Result<HcclComm> {
    let mut info = HcclRootInfo { internal: [0; HCCL_ROOT_INFO_BYTES] };
    if root.len() != info.internal.len() {
        return Err(Error::mismatch("HcclCommInitRootInfo", "bytes of the root info", info.internal.len(), root.len()));
    }
    info.internal.copy_from_slice(root);
    let (ranks, rank) = (seat.ranks.len() as u32, seat.place as u32);
    let mut comm = std::ptr::null_mut();
    let (call, result) = match (loaded.hccl.HcclCommInitRootInfoConfig, config(loaded, shared, options, seat)) {
        (Some(init), Some(config)) => {
            let layout = config.layout(CONFIG_VERSION, loaded.capability).map_err(|e| refused(shared, &e))?;
            // SAFETY: the info and a configuration of its own size, both alive; an out-parameter.
            let result = unsafe { init(ranks, &info, rank, layout.as_ptr(), &mut comm) };
            ("HcclCommInitRootInfoConfig", result)
        }
        // SAFETY: as above.
        _ => ("HcclCommInitRootInfo", unsafe { (loaded.hccl.HcclCommInitRootInfo)(ranks, &info, rank, &mut comm) }),
    };
    check(shared, &format!("{call} of group {}/{}, rank {rank} of {ranks}", seat.name, seat.purpose), result)?;
    Ok(comm)
}

/// The configuration, as far as the library takes it; nothing when it takes none, and none of ours is needed: the
/// variables do the same for all communicators.
pub fn config(loaded: &Loaded, shared: &Shared, options: &HcclOptions, seat: &Seat) -> Option<CommConfig> {
    // the variable where it is set, else --deterministic-mode
    let deterministic = options.deterministic.or(shared.options.deterministic.then_some(1));
    let mut config = CommConfig { buffer_mib: options.buffer_mib, deterministic, name: name(seat) };
    // What the library has no field for it reads from HCCL_BUFFSIZE and HCCL_DETERMINISTIC, which are the process's.
    if loaded.capability < 1 {
        return None;
    }
    if loaded.capability < 2 {
        config.deterministic = None;
    }
    if loaded.capability < 3 {
        config.name.clear();
    }
    Some(config)
}

pub fn refused(shared: &Shared, why: &dyn std::fmt::Display) -> Error {
    Error::Device { device: shared.name.clone(), what: why.to_string() }
}

/// A name that no other communicator of the job has, for HCCL's logs: group, purpose, and the global ranks.
fn name(seat: &Seat) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let group: String = format!("{}_{}", seat.name, seat.purpose).chars().map(plain).take(60).collect();
    let ranks = fnv(FNV, seat.ranks.iter().flat_map(|r| (*r as u64).to_le_bytes()));
    let first = seat.ranks.first().copied().unwrap_or_default();
    format!("{group}_from{first}_of{}_{ranks:016x}", seat.ranks.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_differ() {
        let seat = |name: &str, ranks: &[usize]| Seat {
            device: "npu:0".into(),
            name: name.into(),
            purpose: "forward".into(),
            ranks: ranks.to_vec(),
            place: 0,
            world: 8,
        };
        let (a, b) = (name(&seat("pp 0>1", &[0, 4])), name(&seat("pp 0>1", &[0, 5])));
        assert!(a.starts_with("pp_0_1_forward_from0_of2_") && a != b, "{a} {b}");
        assert_ne!(name(&seat("pp", &[0, 4])), name(&seat("pp", &[4, 0])));
        assert!(name(&seat(&"x".repeat(200), &[1])).len() < 128);
    }
}
