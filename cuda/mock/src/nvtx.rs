//! What a profiler hears: NVTX ranges by both ways, and the driver's switch.
//!
//! The library is `libnvToolsExt`, and a tool that injects itself as NVTX 3 has it. Both write what they are told to the file
//! that `FERROTRON_MOCK_NVTX` names, a line each: the thread's number, what it did, the name. What breaks a rule stands there
//! as `broke`. `FERROTRON_MOCK_NVTX_TOOL` makes the tool one that `refuses`, fills no slot (`deaf`), or only that of pushes
//! (`pushes`).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use ferrotron_cuda_sys::CUresult;
use ferrotron_nvtx_sys as nvtx;

use crate::driver::calls;
use crate::world::lock;

thread_local! {
    static OPEN: Cell<c_int> = const { Cell::new(0) };
}

/// Slots of every module by its number, without the null behind them: what the headers of NVTX 3 have, stated apart from the
/// table that is under test.
const SLOTS: [(c_int, u32); 6] = [(1, 16), (2, 9), (3, 15), (4, 7), (5, 16), (6, 7)];
/// The first module.
const CORE: c_int = 1;
/// Slots of the core.
const PUSH: usize = 9;
const POP: usize = 11;
const NAME_THREAD: usize = 14;

/// Writes a line.
fn tell(what: &str) {
    static OUT: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        Some(Mutex::new(File::options().create(true).append(true).open(std::env::var_os("FERROTRON_MOCK_NVTX")?).ok()?))
    };
    let Some(out) = OUT.get_or_init(open) else { return };
    let thread = std::fs::read_link("/proc/thread-self").ok();
    let thread = thread.as_ref().and_then(|t| t.file_name()?.to_str()).unwrap_or("?");
    // one write a line: several processes may share the file
    let _ = lock(out).write_all(format!("{thread} {what}\n").as_bytes());
}

/// A name as it came.
///
/// # Safety
/// Null, or a C string.
unsafe fn name(text: *const c_char) -> String {
    if text.is_null() {
        return "nothing".into();
    }
    // SAFETY: the caller's C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Opens a range; gives its level.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvtxRangePushA(message: *const c_char) -> c_int {
    // SAFETY: the caller gives a C string.
    tell(&format!("push {}", unsafe { name(message) }));
    OPEN.replace(OPEN.get() + 1)
}

/// Ends the innermost; gives its level.
#[unsafe(no_mangle)]
pub extern "C" fn nvtxRangePop() -> c_int {
    let level = OPEN.get() - 1;
    if level < 0 {
        tell("broke pop without a push");
        return -1;
    }
    tell("pop");
    OPEN.set(level);
    level
}

/// Names a thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvtxNameOsThreadA(thread: u32, text: *const c_char) {
    // SAFETY: the caller gives a C string.
    tell(&format!("thread {thread} {}", unsafe { name(text) }));
}

/// The tool's entry. It looks at all that the program holds out, as a tool may, and attaches when all is in order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(get: nvtx::NvtxGetExportTableFunc_t) -> c_int {
    let how = std::env::var("FERROTRON_MOCK_NVTX_TOOL").unwrap_or_default();
    if how == "refuses" {
        return 0;
    }
    // SAFETY: the program's function.
    match unsafe { attach(get, &how) } {
        Ok(()) => {
            tell("attached");
            1
        }
        Err(broken) => {
            tell(&format!("broke {broken}"));
            0
        }
    }
}

/// # Safety
/// `get` is a program's export function.
unsafe fn attach(get: nvtx::NvtxGetExportTableFunc_t, how: &str) -> Result<(), String> {
    // SAFETY: the program's function, for this and the tables below.
    let table = |id| unsafe { get(id) };
    for id in [0, 2, 4, 77] {
        if !table(id).is_null() {
            return Err(format!("a table of number {id}"));
        }
    }
    let version = table(nvtx::NVTX_ETID_VERSIONINFO).cast::<nvtx::NvtxExportTableVersionInfo>();
    // SAFETY: null, or the program's table of this number, which lives as long as the process.
    let version = unsafe { version.as_ref() }.ok_or("no table of versions")?;
    if (version.struct_size, version.version, version.reserved0) != (24, 3, 0) {
        return Err(format!("versions {} {}", version.struct_size, version.version));
    }
    // SAFETY: the program's function.
    unsafe { (version.SetInjectionNvtxVersion)(3) };
    let callbacks = table(nvtx::NVTX_ETID_CALLBACKS).cast::<nvtx::NvtxExportTableCallbacks>();
    // SAFETY: as above.
    let callbacks = unsafe { callbacks.as_ref() }.ok_or("no table of callbacks")?;
    if callbacks.struct_size != 16 {
        return Err(format!("callbacks of {} bytes", callbacks.struct_size));
    }
    // SAFETY: out-parameters, which may be null.
    let ask = |module, table, size| unsafe { (callbacks.GetModuleFunctionTable)(module, table, size) };
    let none = (std::ptr::null_mut(), std::ptr::null_mut());
    for module in [-1, 0, 7, 99] {
        if ask(module, none.0, none.1) != 0 {
            return Err(format!("a module of number {module}"));
        }
    }
    let mut all = vec![];
    for (module, want) in SLOTS {
        let (mut slots, mut size): (nvtx::NvtxFunctionTable, u32) = (std::ptr::null_mut(), 0);
        if ask(module, &mut slots, &mut size) == 0 || slots.is_null() || size != want {
            return Err(format!("module {module} with {size} slots"));
        }
        // SAFETY: the table has `size` entries and a null.
        let slots = unsafe { std::slice::from_raw_parts(slots, size as usize + 1) };
        let (first, last) = (slots[0], slots[size as usize]);
        let between = &slots[1..size as usize];
        if !first.is_null() || !last.is_null() || between.iter().any(|s| s.is_null()) {
            return Err(format!("module {module} with slots that are not where they belong"));
        }
        all.extend_from_slice(between);
        if module == CORE && how != "deaf" {
            let fill = |id: usize, function: *mut c_void| {
                // SAFETY: the place of a function pointer, which only tools write.
                unsafe { slots[id].write(function) };
            };
            fill(PUSH, nvtxRangePushA as *mut c_void);
            if how != "pushes" {
                fill(POP, nvtxRangePop as *mut c_void);
                fill(NAME_THREAD, nvtxNameOsThreadA as *mut c_void);
            }
        }
    }
    all.sort();
    all.dedup();
    let want: u32 = SLOTS.iter().map(|(_, n)| n - 1).sum();
    if all.len() == want as usize { Ok(()) } else { Err("slots that are shared".into()) }
}

calls! {
    /// A profiler begins to capture.
    fn cuProfilerStart() |w| {
        tell(&format!("profiler start cuda:{}", w.current()?));
        Ok(())
    }
    /// It ends.
    fn cuProfilerStop() |w| {
        tell(&format!("profiler stop cuda:{}", w.current()?));
        Ok(())
    }
}
