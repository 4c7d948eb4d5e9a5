//! Tells the profiler of this process a few ranges of two threads: for a look with `nsys profile --trace=nvtx`, and for
//! `cargo xtask cuda-check`, which lets a tool listen that NVIDIA's own headers were compiled into.

use ferrotron_cuda_sys::Environment;
use ferrotron_nvtx_sys::{INJECTION_VARIABLE, LIBRARIES, Nvtx};

fn main() {
    let libraries = Environment::from_variables(|name| std::env::var_os(name)).search(&LIBRARIES);
    let nvtx = match Nvtx::open(&libraries, std::env::var_os(INJECTION_VARIABLE)) {
        Ok(nvtx) => nvtx,
        Err(e) => {
            eprintln!("no NVTX ranges: {e}");
            std::process::exit(1);
        }
    };
    println!("NVTX ranges go to {}", nvtx.path());
    let ranges = |thread: &str| {
        nvtx.name_thread(thread);
        nvtx.push("iteration");
        nvtx.push("forward-backward");
        nvtx.pop();
        nvtx.push("optimizer");
        nvtx.pop();
        nvtx.pop();
    };
    ranges("rank 0");
    std::thread::scope(|s| {
        s.spawn(|| ranges("rank 1"));
    });
}
