//! The program's half of NVTX 3 as its C headers have it: slots for a tool's functions, and the tables through which the tool
//! finds them. A slot that the tool leaves null is a call that does nothing.
//!
//! The slots are global because the interface is: a tool gets one function without context to ask for tables, keeps the
//! slots' addresses, and may write them at any time, from any thread.

use std::ffi::{CStr, OsStr, OsString, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use ferrotron_dynlib::Library;

use crate::NoNvtx;
use crate::types::*;

/// A slot. Atomic, for the tool writes it as plain memory of this size while ranges are opened.
type Slot = AtomicPtr<c_void>;

macro_rules! module {
    ($slots:ident, $table:ident, $size:expr) => {
        static $slots: [Slot; $size] = [const { AtomicPtr::new(null_mut()) }; $size];
        static $table: [Option<&Slot>; $size + 1] = table(&$slots);
    };
}

module!(CORE, CORE_TABLE, NVTX_CBID_CORE_SIZE);
module!(CUDA, CUDA_TABLE, NVTX_CBID_CUDA_SIZE);
module!(OPENCL, OPENCL_TABLE, NVTX_CBID_OPENCL_SIZE);
module!(CUDART, CUDART_TABLE, NVTX_CBID_CUDART_SIZE);
module!(CORE2, CORE2_TABLE, NVTX_CBID_CORE2_SIZE);
module!(SYNC, SYNC_TABLE, NVTX_CBID_SYNC_SIZE);

/// The addresses of slots 1 and on, between nulls.
const fn table<const N: usize, const M: usize>(slots: &'static [Slot; N]) -> [Option<&'static Slot>; M] {
    let mut table = [None; M];
    let mut i = 1;
    while i < N {
        table[i] = Some(&slots[i]);
        i += 1;
    }
    table
}

static CALLBACKS: NvtxExportTableCallbacks = NvtxExportTableCallbacks {
    struct_size: size_of::<NvtxExportTableCallbacks>(),
    GetModuleFunctionTable: module_table,
};

static VERSION_INFO: NvtxExportTableVersionInfo = NvtxExportTableVersionInfo {
    struct_size: size_of::<NvtxExportTableVersionInfo>(),
    version: NVTX_VERSION,
    reserved0: 0,
    SetInjectionNvtxVersion: set_version,
};

/// What a tool calls for a module's slots.
unsafe extern "C" fn module_table(module: c_int, table: *mut NvtxFunctionTable, size: *mut c_uint) -> c_int {
    let slots: &'static [Option<&Slot>] = match module {
        NVTX_CB_MODULE_CORE => &CORE_TABLE,
        NVTX_CB_MODULE_CUDA => &CUDA_TABLE,
        NVTX_CB_MODULE_OPENCL => &OPENCL_TABLE,
        NVTX_CB_MODULE_CUDART => &CUDART_TABLE,
        NVTX_CB_MODULE_CORE2 => &CORE2_TABLE,
        NVTX_CB_MODULE_SYNC => &SYNC_TABLE,
        _ => return 0,
    };
    if !size.is_null() {
        // SAFETY: by the interface a place for a number, or null. There are few slots.
        unsafe { size.write(slots.len() as c_uint - 1) };
    }
    if !table.is_null() {
        // An `Option` of a reference is a pointer that may be null, and a slot is what a function pointer's place is.
        // SAFETY: by the interface a place for a table, or null.
        unsafe { table.write(slots.as_ptr().cast_mut().cast()) };
    }
    1
}

/// Versions of tools make no difference here.
extern "C" fn set_version(_version: u32) {}

/// What a tool calls for the tables.
extern "C" fn export_table(table: u32) -> *const c_void {
    match table {
        NVTX_ETID_CALLBACKS => (&raw const CALLBACKS).cast(),
        NVTX_ETID_VERSIONINFO => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

/// A tool's entry, in a library that stays loaded.
pub struct Entry(NvtxInitializeInjectionNvtxFunc_t);

impl Entry {
    /// The entry of a library; `Err` says that it has none.
    pub fn of(library: Library) -> Result<Entry, String> {
        let entry = library.symbol(ENTRY).ok_or_else(|| format!("it has no {}", ENTRY.to_string_lossy()))?;
        // SAFETY: the address of the C function of this name, whose signature the interface states; `Library` never unloads.
        Ok(Entry(unsafe { std::mem::transmute::<*mut c_void, NvtxInitializeInjectionNvtxFunc_t>(entry.as_ptr()) }))
    }
}

/// Lets the tool of this process attach, once; `load` finds its entry. Later calls give the first one's answer.
pub(crate) fn attach(tool: &OsStr, load: impl FnOnce(&OsStr) -> Result<Entry, NoNvtx>) -> Result<(), NoNvtx> {
    static ATTACHED: OnceLock<(OsString, Result<(), NoNvtx>)> = OnceLock::new();
    let told = |why, remedy| NoNvtx::Tool { tool: tool.display().to_string(), why, remedy };
    let (first, answer) = ATTACHED.get_or_init(|| {
        let attached = load(tool).and_then(|entry| {
            // SAFETY: a tool's entry, which asks for the tables by this function, as the interface has it.
            let status = unsafe { (entry.0)(export_table) };
            let why = || format!("refuses to attach ({} gives 0)", ENTRY.to_string_lossy());
            if status == 0 { Err(told(why(), "the profiler's own output says why")) } else { Ok(()) }
        });
        (tool.to_os_string(), attached)
    });
    if first != tool {
        let why = format!("comes after {}, and a process has one", first.display());
        return Err(told(why, "do not change the variable while the program runs"));
    }
    answer.clone()
}

/// The tool's function in a slot of the core, as an address.
fn function(id: usize) -> Option<std::ptr::NonNull<c_void>> {
    std::ptr::NonNull::new(CORE[id].load(Ordering::Acquire))
}

/// `nvtxRangePushA`.
pub(crate) fn push(name: &CStr) -> c_int {
    function(NVTX_CBID_CORE_RangePushA).map_or(NVTX_NO_PUSH_POP_TRACKING, |f| {
        // SAFETY: the tool put its function of this signature into the slot; a C string that lives as long as the call.
        unsafe { std::mem::transmute::<*mut c_void, RangePushA>(f.as_ptr())(name.as_ptr()) }
    })
}

/// `nvtxRangePop`.
pub(crate) fn pop() -> c_int {
    function(NVTX_CBID_CORE_RangePop).map_or(NVTX_NO_PUSH_POP_TRACKING, |f| {
        // SAFETY: the tool put its function of this signature into the slot.
        unsafe { std::mem::transmute::<*mut c_void, RangePop>(f.as_ptr())() }
    })
}

/// `nvtxNameOsThreadA`.
pub(crate) fn name_thread(thread: u32, name: &CStr) {
    if let Some(f) = function(NVTX_CBID_CORE_NameOsThreadA) {
        // SAFETY: as in `push`.
        unsafe { std::mem::transmute::<*mut c_void, NameOsThreadA>(f.as_ptr())(thread, name.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;
    use std::sync::atomic::AtomicI32;

    use super::*;

    static OPEN: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn tools_push(name: *const c_char) -> c_int {
        // SAFETY: the test gives a C string.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"range");
        OPEN.fetch_add(1, Ordering::Relaxed)
    }

    extern "C" fn tools_pop() -> c_int {
        OPEN.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// As a tool does: tables by number, slots by module, then functions into slots, one after the other. The slots are the
    /// process's, so this is one test.
    #[test]
    fn a_tool_finds_the_slots_and_what_it_leaves_null_does_nothing() {
        assert!(export_table(0).is_null() && export_table(2).is_null() && export_table(4).is_null());
        // SAFETY: tables of these numbers are of these types.
        let (callbacks, versions) = unsafe {
            (
                &*export_table(NVTX_ETID_CALLBACKS).cast::<NvtxExportTableCallbacks>(),
                &*export_table(NVTX_ETID_VERSIONINFO).cast::<NvtxExportTableVersionInfo>(),
            )
        };
        assert_eq!((callbacks.struct_size, versions.struct_size, versions.version), (16, 24, 3));
        // SAFETY: takes any number; out-parameters may be null.
        unsafe {
            (versions.SetInjectionNvtxVersion)(7);
            let ask = |m| (callbacks.GetModuleFunctionTable)(m, null_mut(), null_mut());
            assert_eq!([-1, 0, 1, 6, 7].map(ask), [0, 0, 1, 1, 0]);
        }
        let (mut slots, mut size): (NvtxFunctionTable, c_uint) = (null_mut(), 0);
        // SAFETY: out-parameters.
        assert_eq!(unsafe { (callbacks.GetModuleFunctionTable)(NVTX_CB_MODULE_CORE, &mut slots, &mut size) }, 1);
        assert_eq!(size as usize, NVTX_CBID_CORE_SIZE);
        // SAFETY: the table has `size` entries and a null, and its entries are places of function pointers.
        let fill = |id: usize, function: *mut c_void| unsafe {
            assert!((*slots).is_null() && (*slots.add(size as usize)).is_null());
            (*slots.add(id)).write(function);
        };

        assert_eq!((push(c"range"), pop()), (NVTX_NO_PUSH_POP_TRACKING, NVTX_NO_PUSH_POP_TRACKING));
        name_thread(1, c"nobody hears");
        fill(NVTX_CBID_CORE_RangePushA, tools_push as *mut c_void);
        assert_eq!((push(c"range"), pop()), (0, NVTX_NO_PUSH_POP_TRACKING));
        fill(NVTX_CBID_CORE_RangePop, tools_pop as *mut c_void);
        assert_eq!((push(c"range"), pop(), pop()), (1, 1, 0));
        // a tool that leaves takes its functions away
        fill(NVTX_CBID_CORE_RangePushA, null_mut());
        assert_eq!((push(c"range"), OPEN.load(Ordering::Relaxed)), (NVTX_NO_PUSH_POP_TRACKING, 0));
    }
}
