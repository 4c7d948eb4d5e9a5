//! The environment of a rank, as torchrun sets it.

use crate::plan::Local;

/// Variables of the rank with this local number. `port` is where rank 0 listens, `attempt` counts restarts.
pub fn of_rank(local: &Local, local_rank: usize, port: u16, attempt: u32) -> Vec<(&'static str, String)> {
    let rank = local.first_rank() + local_rank;
    let (world, here) = (local.world_size().to_string(), local.local_world_size().to_string());
    let mut all = vec![
        ("LOCAL_RANK", local_rank.to_string()),
        ("RANK", rank.to_string()),
        ("GROUP_RANK", local.node_rank.to_string()),
        ("ROLE_RANK", rank.to_string()),
        ("ROLE_NAME", local.role.clone()),
        ("LOCAL_WORLD_SIZE", here),
        ("WORLD_SIZE", world.clone()),
        ("GROUP_WORLD_SIZE", local.slots.len().to_string()),
        ("ROLE_WORLD_SIZE", world),
        ("MASTER_ADDR", local.master_addr.clone()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", attempt.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", local.max_restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", local.run_id.clone()),
        // Rank 0 opens the store, not the launcher.
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_string()),
    ];
    if let Some(devices) = &local.devices {
        let list = devices.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(",");
        all.push(("ASCEND_RT_VISIBLE_DEVICES", list.clone()));
        all.push(("CUDA_VISIBLE_DEVICES", list));
    }
    if let Some(threads) = local.omp_threads {
        all.push(("OMP_NUM_THREADS", threads.to_string()));
    }
    all
}
