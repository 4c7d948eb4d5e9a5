//! Where nobody would hear of ranges the error says why and what to do.
#![allow(clippy::unwrap_used)] // a test

use ferrotron_dynlib::{Place, Search};
use ferrotron_nvtx_sys::{LIBRARIES, NoNvtx, Nvtx};

fn nowhere() -> Search {
    Search::new(LIBRARIES).places([Place::folder("a test", "/nowhere")])
}

#[test]
fn without_library_and_tool_the_error_names_both() {
    for tool in [None, Some("".into()), Some("./.".into())] {
        let e = Nvtx::open(&nowhere(), tool).unwrap_err();
        let NoNvtx::Nobody { searched, unfit: None } = &e else { panic!("{e:?}") };
        assert!(searched[0].starts_with("/nowhere/libnvToolsExt.so.1 (a test): no such file"), "{searched:?}");
        assert_eq!(
            e.to_string(),
            "there is no libnvToolsExt.so.1 or libnvtx3interop.so.1 (2 places searched), and NVTX_INJECTION64_PATH names no \
             tool; start the program under a profiler, which sets it: nsys profile --trace=cuda,nvtx ..."
        );
    }
}

#[test]
fn a_library_that_is_another_is_named_with_what_it_lacks() {
    let libc = Search::new(["libc.so.6"]).places([Place::system()]);
    let e = Nvtx::open(&libc, None).unwrap_err().to_string();
    assert!(e.contains("no nvtxRangePushA in libc.so.6") && e.contains("nsys profile"), "{e}");
}

/// One test, for a process has one tool: the first.
#[test]
fn a_tool_that_is_none_is_an_error_for_good() {
    let open = |tool: &str| Nvtx::open(&nowhere(), Some(tool.into())).unwrap_err().to_string();
    let e = open("libc.so.6");
    assert!(e.contains("the tool libc.so.6 that NVTX_INJECTION64_PATH names is none"), "{e}");
    assert!(e.contains("it has no InitializeInjectionNvtx2; unset the variable"), "{e}");
    assert_eq!(open("libc.so.6"), e);
    let e = open("/nowhere/tool.so");
    assert!(e.contains("the tool /nowhere/tool.so") && e.contains("comes after libc.so.6"), "{e}");
}
