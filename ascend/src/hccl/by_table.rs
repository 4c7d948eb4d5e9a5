//! Communicators by a rank table: one of all ranks from the file, and each group as a part of it.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrotron_base::philox::hash_name;
use ferrotron_comm::Seat;
use ferrotron_device::{Error, Result};
use ferrotron_hccl_sys::{CommConfig, HcclComm};

use super::init::{CONFIG_VERSION, config, refused};
use super::options::HcclOptions;
use super::rank_table::{RankTable, Version};
use super::{Loaded, check};
use crate::shared::{Shared, lock};

/// MiB of the buffer of the communicator of all ranks, over which nothing goes.
const PARENT_BUFFER_MIB: u32 = 1;

/// The table, once it is read, and the communicators of all ranks: one for each rank of this process.
pub struct ByTable {
    path: PathBuf,
    table: Mutex<Option<Arc<Table>>>,
    parents: Mutex<HashMap<usize, Parent>>,
}

struct Table {
    table: RankTable,
    /// For HCCL.
    file: CString,
}

struct Parent {
    loaded: Arc<Loaded>,
    shared: Arc<Shared>,
    comm: usize,
}

impl Drop for Parent {
    fn drop(&mut self) {
        // Groups, which are parts of it, are gone: they do not outlive the fabric, which holds this.
        let _ = self.shared.enter();
        // SAFETY: the communicator is ours, and this is its last use.
        unsafe { (self.loaded.hccl.HcclCommDestroy)(self.comm as HcclComm) };
    }
}

impl ByTable {
    pub fn new(path: PathBuf) -> ByTable {
        ByTable { path, table: Mutex::default(), parents: Mutex::default() }
    }

    /// Waits for the table, at most so long, and checks it against the job and the chip.
    fn table(&self, shared: &Shared, seat: &Seat, patience: Duration) -> Result<Arc<Table>> {
        let failed = |what: String| refused(shared, &what);
        let mut known = lock(&self.table);
        if let Some(table) = &*known {
            return Ok(table.clone());
        }
        let table = RankTable::wait(&self.path, patience).map_err(failed)?;
        let path = self.path.display();
        if table.ranks.len() != seat.world {
            let n = table.ranks.len();
            return Err(failed(format!(
                "rank table {path} has {n} ranks, the job has {}: start as many ranks as the table has, or unset \
                 RANK_TABLE_FILE",
                seat.world
            )));
        }
        let chip = shared.cann.chip();
        let wanted = if chip.starts_with("Ascend910_93") {
            Some((Version::V1_2, "1.2"))
        } else if chip.starts_with("Ascend910B") {
            Some((Version::V1_0, "1.0"))
        } else {
            None
        };
        if let Some((_, name)) = wanted.filter(|(v, _)| *v != table.version) {
            return Err(failed(format!("rank table {path} is of another generation: {chip} needs version {name}")));
        }
        let unfit = |e: &dyn std::fmt::Display| failed(format!("rank table {path} cannot be given to HCCL: {e}"));
        let file = table.file(&self.path).map_err(|e| unfit(&e))?;
        let file = CString::new(file.as_os_str().as_bytes()).map_err(|e| unfit(&e))?;
        let made = Arc::new(Table { table, file });
        *known = Some(made.clone());
        Ok(made)
    }

    /// This rank's communicator of a group.
    pub fn communicator(
        &self,
        loaded: &Arc<Loaded>,
        shared: &Arc<Shared>,
        options: &HcclOptions,
        seat: &Seat,
    ) -> Result<HcclComm> {
        let (Some(by_file), Some(part)) =
            (loaded.hccl.HcclCommInitClusterInfoConfig, loaded.hccl.HcclCreateSubCommConfig)
        else {
            return Err(Error::Unsupported {
                op: "communicators by a rank table",
                device: shared.name.clone(),
                why: "this release of HCCL has no HcclCommInitClusterInfoConfig or no HcclCreateSubCommConfig; unset \
                      RANK_TABLE_FILE to let the ranks negotiate"
                    .into(),
            });
        };
        let table = self.table(shared, seat, options.connect_timeout)?;
        let me = seat.ranks[seat.place];
        own_device(&table.table, me, shared, options)?;
        // Making the first communicator waits for all ranks: a lock would keep this process's other ranks from coming.
        let made = lock(&self.parents).get(&me).map(|p| p.comm);
        let mut parent = match made {
            Some(comm) => comm as HcclComm,
            None => {
                let all = CommConfig {
                    buffer_mib: Some(PARENT_BUFFER_MIB),
                    name: "world_by_rank_table".into(),
                    ..CommConfig::default()
                };
                let layout = all.layout(CONFIG_VERSION, loaded.capability).map_err(|e| refused(shared, &e))?;
                let mut comm = std::ptr::null_mut();
                // SAFETY: a C string, a configuration of its own size, an out-parameter; all alive.
                let result = unsafe { by_file(table.file.as_ptr(), me as u32, layout.as_ptr().cast_mut(), &mut comm) };
                check(
                    shared,
                    &format!("HcclCommInitClusterInfoConfig of rank {me} by {}", self.path.display()),
                    result,
                )?;
                let parent = Parent { loaded: loaded.clone(), shared: shared.clone(), comm: comm as usize };
                lock(&self.parents).insert(me, parent);
                comm
            }
        };
        let own = config(loaded, shared, options, seat).unwrap_or_default();
        let layout = own.layout(CONFIG_VERSION, loaded.capability).map_err(|e| refused(shared, &e))?;
        let mut ranks: Vec<u32> = seat.ranks.iter().map(|r| *r as u32).collect();
        let mut comm = std::ptr::null_mut();
        // SAFETY: the communicator of all ranks lives as long as this; so many ranks; a configuration of its own size.
        let result = unsafe {
            part(
                &mut parent,
                ranks.len() as u32,
                ranks.as_mut_ptr(),
                id(seat),
                seat.place as u32,
                layout.as_ptr().cast_mut(),
                &mut comm,
            )
        };
        check(shared, &format!("HcclCreateSubCommConfig of group {}/{}", seat.name, seat.purpose), result)?;
        Ok(comm)
    }
}

/// The table gives this rank the device that it has opened.
fn own_device(table: &RankTable, me: usize, shared: &Shared, options: &HcclOptions) -> Result<()> {
    let Some(place) = table.ranks.get(me) else { return Ok(()) };
    let logical = shared.ordinal as usize;
    let physical = match &options.visible {
        Some(list) => list.get(logical).copied(),
        None => Some(shared.ordinal),
    };
    if physical == Some(place.device) {
        return Ok(());
    }
    let has = physical.map_or("an unknown device".into(), |d| format!("physical device {d}"));
    let what = format!(
        "the rank table gives rank {me} device {} of server {}, but it has {has} ({} of those visible): number the ranks \
         of a host in the order of its devices, or set ASCEND_RT_VISIBLE_DEVICES",
        place.device, place.server, shared.name
    );
    Err(refused(shared, &what))
}

/// A number that all ranks of a group have for it, and no other group has.
fn id(seat: &Seat) -> u64 {
    let name = format!("{}/{} {:?}", seat.name, seat.purpose, seat.ranks);
    hash_name(&name)
}
